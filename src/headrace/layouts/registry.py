"""The layouts by name, which of them a directory has, and `open` for whatever it is.

A layout is imported when somebody asks for it: no other module above `layouts` names a product's package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from headrace._core import Disk
from headrace.errors import BadInput, DiskFault, NotFound, UnknownFormat
from headrace.layouts.base import Volume
from headrace.layouts.layout import Layout, OpenRequest
from headrace.layouts.log_names import LogNames
from headrace.layouts.places import check_path, disk_at, is_remote, only_read, place_of
from headrace.layouts.unknown import unknown

if TYPE_CHECKING:
    from headrace.layouts.jetstream.volume import JetStreamVolume
    from headrace.layouts.kafka.volume import KafkaVolume
    from headrace.layouts.nats_streaming.volume import StreamingVolume
    from headrace.layouts.rabbitmq.volume import RabbitVolume
    from headrace.layouts.rocketmq.volume import RocketVolume

JETSTREAM = "jetstream"
ARCHIVE = "parquet"
# In the order in which they are asked: the surest marks first.
LAYOUTS = (JETSTREAM, "rabbitmq", "nats_streaming", "rocketmq", "kafka")
"""The layouts of products, which can be written."""
_REQUEST = frozenset({"durability", "disk", "key", "clock", "maintenance"})


def layout_named(name: str) -> Layout:
    """A layout by its name."""
    match name:
        case "jetstream":
            from headrace.layouts.jetstream.layout import LAYOUT
        case "nats_streaming":
            from headrace.layouts.nats_streaming.layout import LAYOUT
        case "kafka":
            from headrace.layouts.kafka.layout import LAYOUT
        case "rocketmq":
            from headrace.layouts.rocketmq.layout import LAYOUT
        case "rabbitmq":
            from headrace.layouts.rabbitmq.layout import LAYOUT
        case "parquet":
            from headrace.layouts.parquet.layout import LAYOUT
        case _:
            raise unknown_layout(name)
    return LAYOUT


def log_names_of(origin: str) -> LogNames:
    """How logs are named in whatever a volume's `origin` names: a layout, or a server, whose streams have plain names."""
    return layout_named(origin).log_names if origin in LAYOUTS else LogNames()


def unknown_layout(name: str) -> BadInput:
    """To be raised."""
    return BadInput(f"unknown layout {name!r}; known are: {', '.join(LAYOUTS)}")


def layout_at(path: str | os.PathLike[str], disk: Disk | None = None) -> Layout:
    """The layout of whatever can be looked at: a product's directory, an archive, one log's own directory. UnknownFormat or
    NotFound otherwise."""
    checked = check_path(path)
    if disk is None and is_archive(checked):
        return layout_named(ARCHIVE)
    on = disk or disk_at(checked)
    try:
        return layout_named(detect(checked, on))
    except UnknownFormat:
        for name in LAYOUTS:
            if layout_named(name).recognise_log(checked, on):
                return layout_named(name)
        raise


def detect(path: str | os.PathLike[str], disk: Disk | None = None) -> str:
    """The layout of a directory: "jetstream", "kafka" … UnknownFormat or NotFound otherwise."""
    path = os.fspath(path)
    path = place_of(path) if is_remote(path) else path
    on = disk or disk_at(path)
    entry = on.entry(path)
    if entry is None:
        raise NotFound(f"{path}: no such directory")
    for name in LAYOUTS:
        if layout_named(name).recognise(path, on):
            return name
    if not entry.is_dir:
        raise unknown(path, "a file")
    raise unknown(path, "files of no product that Headrace knows" if on.list(path) else "an empty directory")


def is_archive(path: str, disk: Disk | None = None) -> bool:
    """Whether a directory holds Parquet files that Headrace has archived. (The layout's module would load too much.)"""
    on = disk or disk_at(path)
    # The directory first: what is wrong with it is said of it, not of a file that may not even be there.
    if (
        disk is None
        and not is_remote(path)
        and Path(path).is_dir()
        and not os.access(path, os.R_OK | os.X_OK)
    ):
        raise DiskFault(f"{path}: no permission to read it")
    found = on.entry(f"{path}/_headrace/manifest.json") if on.entry(path) is not None else None
    return found is not None and not found.is_dir


@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: Literal[True],
    layout: Literal["jetstream"] | None = None,
    **options: Any,
) -> JetStreamVolume: ...
@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: Literal["jetstream"],
    **options: Any,
) -> JetStreamVolume: ...
@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: Literal["nats_streaming"],
    **options: Any,
) -> StreamingVolume: ...
@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: Literal["kafka"],
    **options: Any,
) -> KafkaVolume: ...
@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: Literal["rocketmq"],
    **options: Any,
) -> RocketVolume: ...
@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: Literal["rabbitmq"],
    **options: Any,
) -> RabbitVolume: ...
@overload
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: str | None = None,
    **options: Any,
) -> Volume: ...
def open_volume(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    create: bool = False,
    layout: str | None = None,
    **options: Any,
) -> Volume:
    """Open the directory with the layout it has; `create` makes one of `layout` (JetStream) where there is none.

    With `layout` it must be that one, and type checkers know what a log of it can do. Options beside durability, disk,
    key, clock and maintenance are the product's own, under its own names.
    """
    path = os.fspath(path)
    if not path:
        raise BadInput("'' is not a path")
    disk: Disk | None = options.get("disk")
    given = disk is not None
    if is_remote(path) and not given:
        if create or mode != "r":
            only_read(path, "writing a store")
        path = place_of(path)
        # One for detecting and reading: what was listed is not asked for again.
        disk = options["disk"] = disk_at(path)
    if layout is not None and layout not in (*LAYOUTS, ARCHIVE):
        raise unknown_layout(layout)
    if create:
        chosen = layout or JETSTREAM
    elif layout in (None, ARCHIVE) and not given and is_archive(path, disk):
        chosen = ARCHIVE
    else:
        chosen = detect(path, disk)
        if layout not in (None, chosen):
            raise BadInput(f"{path}: a {layout_named(chosen).label} directory, opened as {layout!r}")
    where = layout_named(chosen)
    own = {name: value for name, value in options.items() if name not in _REQUEST}
    fields: dict[str, Any] = {name: value for name, value in options.items() if name in _REQUEST}
    if fields.get("clock", ...) is None:
        del fields["clock"]
    request = OpenRequest(mode=mode, create=create, options=where.options.of(own) if own else None, **fields)
    return where.open(path, request)


def create_volume(path: str | os.PathLike[str], layout: str = JETSTREAM, **options: Any) -> Volume:
    """A new directory of a product, opened for writing. Options as for `open`."""
    return open_volume(path, "rw", create=True, layout=layout, **options)
