"""Directories and the names in them: made durably, and distinguished from files."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace._core import Disk
from headrace.layouts.base import Damage


def make_dirs(disk: Disk, path: str, *, durable: bool = True) -> None:
    """Create a directory and make every new name on the way durable."""
    for made in disk.create_dir_all(path):
        if durable:
            disk.sync_dir(made.rsplit("/", 1)[0] or "/")


def misplaced_files(
    disk: Disk, directory: str, numbered: re.Pattern[str], is_read: Callable[[str], bool], what: str
) -> list[Damage]:
    """`numbered` matches whatever looks like the name of such a file, `is_read` those that can be one; `what` is what such
    a file is called."""
    found: list[Damage] = []
    for name, is_dir, length in disk.list(directory) if disk.entry(directory) is not None else []:
        if not numbered.fullmatch(name):
            continue
        if is_dir:
            detail = f"a directory stands where a {what} should be; what it held is not there"
            found.append(Damage(f"{directory}/{name}", 0, 0, "missing", detail))
        elif not is_read(name):
            detail = f"no writer numbers a {what} so; it is not read: move it out of the store"
            found.append(Damage(f"{directory}/{name}", 0, length, "metadata", detail))
    return found
