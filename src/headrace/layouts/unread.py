"""What lies in a product's directory and is not read here: other kinds of queues, tiered storage, unknown folders.

    Unread      one such place, with what it is and how large
    strangers   the entries of a folder that a layout has a word for, measured

Every layout says what it leaves out (`Layout.unread`), so that no command passes over messages in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace._core import Disk
from headrace.errors import HeadraceError

UNKNOWN = "a folder that no reader here knows"
RAFT = "the Raft log of a cluster: what was agreed on and not stored yet is only there"
LOST_AND_FOUND = "lost+found"
_ENTRIES_MAX = 1_000_000
_DEPTH_MAX = 64


@dataclass(frozen=True, slots=True)
class Unread:
    """A place that is not read. `may_hold_messages` is False for what a server keeps for itself."""

    path: str
    what: str
    files: int = 0
    file_bytes: int = 0
    may_hold_messages: bool = True


Describe = Callable[[str, bool], str | None]
"""(name, is a folder) → what it is, if it is not read; None for what is read, or never holds a message."""


def unread_entries(
    disk: Disk, folder: str, describe: Describe, *, may_hold_messages: bool = True
) -> list[Unread]:
    """Every entry of the folder that is described, and not empty."""
    found: list[Unread] = []
    if disk.entry(folder) is None:
        return found
    for name, is_dir, size in disk.list(folder):
        what = None if name == LOST_AND_FOUND else describe(name, is_dir)
        if what is None:
            continue
        files, file_bytes = measure(disk, f"{folder}/{name}") if is_dir else (1, size)
        if file_bytes:
            found.append(Unread(f"{folder}/{name}", what, files, file_bytes, may_hold_messages))
    return found


def measure(disk: Disk, folder: str) -> tuple[int, int]:
    """(files, bytes) below a folder. What cannot be listed counts nothing; so does what lies absurdly deep."""
    files = total = entries = 0
    waiting = [(folder, 0)]
    while waiting and entries < _ENTRIES_MAX:
        at, depth = waiting.pop()
        try:
            rows = disk.list(at)
        except HeadraceError:
            continue
        entries += len(rows)
        for name, is_dir, size in rows:
            if not is_dir:
                files, total = files + 1, total + size
            elif depth < _DEPTH_MAX:
                waiting.append((f"{at}/{name}", depth + 1))
    return files, total
