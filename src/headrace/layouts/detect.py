"""Which product wrote a directory, and `open` for whatever it is.

JetStream is at home here (`JetStreamVolume`); every other layout is a `Room`, imported when somebody asks for it.
"""

from __future__ import annotations

from typing import Any

from headrace._core import Disk
from headrace.errors import BadInput, NotFound, ReadOnly, UnknownFormat
from headrace.layouts.base import Volume
from headrace.layouts.jetstream.volume import JetStreamVolume, looks_like_jetstream
from headrace.layouts.places import disk_at, is_remote, only_read, place_of
from headrace.layouts.room import Room

JETSTREAM = "jetstream"
ARCHIVE = "parquet"
# In the order in which they are asked: the surest marks first.
ROOMS = ("rabbitmq", "nats_streaming", "rocketmq", "kafka")
LAYOUTS = (JETSTREAM, *ROOMS)
PRODUCTS = {
    JETSTREAM: "NATS JetStream",
    "nats_streaming": "NATS Streaming",
    "kafka": "Kafka",
    "rocketmq": "RocketMQ",
    "rabbitmq": "RabbitMQ",
}
_ROOM_KEYWORDS = frozenset({"durability", "disk", "key", "clock"})


def is_archive(path: str, disk: Disk | None = None) -> bool:
    """Whether a directory holds Parquet files that Headrace has archived. (The manifest's module would load too much.)"""
    on = disk or disk_at(path)
    # The directory first: what is wrong with a remote place is said of it.
    found = on.entry(f"{path}/_headrace/manifest.json") if on.entry(path) is not None else None
    return found is not None and not found[0]


def room(layout: str) -> Room:
    """The room of a layout by its name."""
    if layout == "nats_streaming":
        from headrace.layouts.nats_streaming.room import ROOM as STREAMING

        return STREAMING
    if layout == "kafka":
        from headrace.layouts.kafka.room import ROOM as KAFKA

        return KAFKA
    if layout == "rocketmq":
        from headrace.layouts.rocketmq.room import ROOM as ROCKETMQ

        return ROCKETMQ
    if layout == "rabbitmq":
        from headrace.layouts.rabbitmq.room import ROOM as RABBITMQ

        return RABBITMQ
    if layout == ARCHIVE:
        from headrace.layouts.parquet.room import ROOM as PARQUET

        return PARQUET
    raise BadInput(f"unknown layout {layout!r}; known are: {', '.join(LAYOUTS)}")


def room_of(path: str, disk: Disk | None = None) -> Room | None:
    """The room that knows the directory; None for a JetStream store. UnknownFormat or NotFound if nobody does."""
    layout = detect(path, disk)
    return None if layout == JETSTREAM else room(layout)


def detect(path: str, disk: Disk | None = None) -> str:
    """The layout of a directory: "jetstream", "kafka" … UnknownFormat or NotFound otherwise."""
    path = place_of(path) if is_remote(path) else path
    on = disk or disk_at(path)
    if looks_like_jetstream(on, path):
        return JETSTREAM
    if on.entry(path) is None:
        raise NotFound(f"{path}: no such directory")
    for layout in ROOMS:
        if room(layout).recognises(on, path):
            return layout
    raise UnknownFormat(
        path,
        0,
        "files of no product that Headrace knows",
        f"a directory of {', '.join(PRODUCTS.values())}",
        "give the directory that holds `jetstream`, or the product's data directory",
    )


def open_volume(
    path: str, mode: str = "r", *, create: bool = False, layout: str | None = None, **options: Any
) -> Volume:
    """Open the directory with the layout it has; `create` makes one of `layout` (JetStream) where there is none.

    Options beside durability, disk, key and clock are the product's own, under its own names.
    """
    given_disk: Disk | None = options.get("disk")
    if is_remote(path) and given_disk is None:
        if create or mode != "r":
            only_read(path, "writing a store")
        path = place_of(path)
        # One for detecting and reading: what was listed is not asked for again.
        options["disk"] = disk_at(path)
    if create:
        chosen = layout or JETSTREAM
    elif layout in (None, ARCHIVE) and given_disk is None and is_archive(path, options.get("disk")):
        from headrace.layouts.parquet.volume import ArchiveVolume

        if mode != "r":
            raise ReadOnly(f"{path}: an archive is only read; `headrace pipeline archive` adds to it")
        return ArchiveVolume(path, options.get("disk"))
    else:
        chosen = detect(path, options.get("disk"))
        if layout not in (None, chosen):
            raise BadInput(f"{path}: a {PRODUCTS[chosen]} directory, opened as {layout!r}")
    if chosen == JETSTREAM:
        return JetStreamVolume(path, mode=mode, create=create, **options)
    where = room(chosen)
    own = {name: value for name, value in options.items() if name not in _ROOM_KEYWORDS}
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _ROOM_KEYWORDS}
    return where.open(path, mode, create=create, options=where.options.of(own) if own else None, **given)
