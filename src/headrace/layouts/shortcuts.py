"""Files that are only shortcuts: indexes, guards, stamps, checkpoints. What they say can be found without them.

So one that cannot be read (too large, a directory or a FIFO in its place, no permission, a bad sector) costs nothing but
time: it is passed over and reported, as one whose content is damaged is.
"""

from __future__ import annotations

from headrace._core import Disk
from headrace.errors import Damaged, DiskFault, NotFound
from headrace.layouts.base import Damage
from headrace.layouts.places import may_pass

_NOT_USED = "not used: "


def read_shortcut(
    disk: Disk, path: str, bytes_max: int, found: list[Damage], kind: str = "index"
) -> bytes | None:
    """Its bytes; None when it is not there or cannot be read, which is then in `found`."""
    try:
        return disk.read(path, bytes_max) if disk.entry(path) is not None else None
    except NotFound:
        return None
    except DiskFault as problem:
        # A network that fails says nothing of the file.
        if may_pass(problem, path):
            raise
        found.append(unreadable(path, problem, kind))
        return None


def is_there(disk: Disk, path: str) -> bool:
    """Whether anything has that name, also what is no file."""
    try:
        return disk.entry(path) is not None
    except DiskFault as problem:
        if may_pass(problem, path):
            raise
        return True


def read_or_damaged(disk: Disk, path: str, bytes_max: int, remedy: str) -> bytes | None:
    """Its bytes, None when it is not there; `Damaged`, which its readers expect anyway, when it cannot be read."""
    found: list[Damage] = []
    data = read_shortcut(disk, path, bytes_max, found)
    if found:
        raise Damaged(path, 0, found[0].detail.removeprefix(_NOT_USED), "a file that can be read", remedy)
    return data


def problem_of(disk: Disk, path: str, bytes_max: int) -> Damage | None:
    """Why a shortcut that is there cannot be read whole; None if it can, or if it is not there."""
    try:
        size = len(disk.open(path, "read"))
    except NotFound:
        return None
    except DiskFault as problem:
        if may_pass(problem, path):
            raise
        return unreadable(path, problem)
    if size <= bytes_max:
        return None
    return Damage(
        path, 0, 0, "index", f"{_NOT_USED}the file has {size} bytes, more than the {bytes_max} allowed here"
    )


def unreadable(path: str, problem: Exception, kind: str = "index") -> Damage:
    """The finding for a shortcut that cannot be read."""
    text = str(problem).removeprefix(f"{path}: ")
    return Damage(path, 0, 0, kind, f"{_NOT_USED}{text}")
