"""`inspect` and `verify` for the layouts that are rooms: the room does the work, this asks it and times it.

JetStream stores have their own reports (`inspect.py`, `verify.py`), block by block.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from headrace._core import Disk
from headrace.errors import NotFound
from headrace.layouts.room import Progress, Room, VolumeView
from headrace.ops.plain import plain
from headrace.ops.plan import THREADS, check_path


@dataclass(slots=True)
class VolumeReport:
    """What a room says of a directory. `complete`: every byte was read (verify), not only looked at."""

    view: VolumeView
    complete: bool
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 sound, 1 damaged, 2 something could not be read."""
        return 2 if self.view.all_problems else 1 if self.view.all_damage else 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found = plain(self.view)
        found |= {"complete": self.complete, "sound": self.view.sound, "messages": self.view.messages}
        for log, each in zip(self.view.logs, found["logs"], strict=True):
            each["sound"] = log.sound
        return found


def inspect_volume(
    room: Room,
    path: str,
    *,
    log: str | None = None,
    key: str | None = None,
    quick: bool = False,
    disk: Disk | None = None,
    progress: Progress | None = None,
) -> VolumeReport:
    """What is in the directory."""
    started = time.monotonic()
    view = room.inspect(check_path(path), log=log, quick=quick, disk=disk, key=key, progress=progress)
    _refuse_unknown(view, log)
    return VolumeReport(view, complete=not quick, seconds=time.monotonic() - started)


def verify_volume(
    room: Room,
    path: str,
    *,
    log: str | None = None,
    key: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> VolumeReport:
    """Whether every byte of it is what it should be."""
    started = time.monotonic()
    view = room.verify(
        check_path(path), log=log, disk=disk, key=key, progress=progress, threads=max(threads, 1)
    )
    _refuse_unknown(view, log)
    return VolumeReport(view, complete=True, seconds=time.monotonic() - started)


def _refuse_unknown(view: VolumeView, log: str | None) -> None:
    if log is not None and not view.logs:
        raise NotFound(f"{view.path}: no log {log!r}")
