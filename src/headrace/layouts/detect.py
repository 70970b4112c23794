"""Which product wrote a directory, and `open` for whatever it is."""

from __future__ import annotations

from typing import Any

from headrace._core import Disk
from headrace.errors import NotFound
from headrace.layouts.base import Volume
from headrace.layouts.jetstream.volume import JetStreamVolume, looks_like_jetstream, unknown


def detect(path: str, disk: Disk | None = None) -> str:
    """The layout of a directory: "jetstream". UnknownFormat or NotFound otherwise."""
    on = disk or Disk.real()
    if looks_like_jetstream(on, path):
        return "jetstream"
    if on.entry(path) is None:
        raise NotFound(f"{path}: no such directory")
    raise unknown(path)


def open_volume(path: str, mode: str = "r", *, create: bool = False, **options: Any) -> Volume:
    """Open the directory with the layout it has; `create` makes a JetStream store where there is none."""
    if not create:
        detect(path, options.get("disk"))
    return JetStreamVolume(path, mode=mode, create=create, **options)
