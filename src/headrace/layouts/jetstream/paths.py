"""Where things lie in a stream's directory, and which names are blocks.

<store>/jetstream/<account>/streams/<STREAM>/
  meta.inf meta.sum            msgs/N.blk  [index.db] [N.idx] [N.fss]      obs/<CONSUMER>/…
  __msgs__  __new_msgs__       a purge in progress
  headrace/                    ours: never needed to open, stamped, ignored when the stamp does not fit
"""

from __future__ import annotations

import re

from headrace.layouts.jetstream._kernels import Disk

MSGS = "msgs"
MSGS_OLD = "__msgs__"
MSGS_NEW = "__new_msgs__"
INDEX = "index.db"
SIDE = "headrace"
DAMAGED = "headrace/damaged"
_BLOCK = re.compile(r"^([1-9][0-9]*)\.blk$")


def block_numbers(disk: Disk, msgs_dir: str) -> dict[int, int]:
    """Number → file size of every block, in order. Anything not named `<decimal>.blk` is not one."""
    if disk.entry(msgs_dir) is None:
        return {}
    found: dict[int, int] = {}
    for name, is_dir, length in disk.list(msgs_dir):
        match = _BLOCK.match(name)
        if match and not is_dir:
            found[int(match[1])] = length
    return dict(sorted(found.items()))


def files_with(disk: Disk, directory: str, *suffixes: str) -> list[str]:
    """Names in a directory with one of the endings."""
    if disk.entry(directory) is None:
        return []
    return [name for name, is_dir, _ in disk.list(directory) if not is_dir and name.endswith(suffixes)]


def make_dirs(disk: Disk, path: str) -> None:
    """Create a directory and make every new name on the way durable."""
    for made in disk.create_dir_all(path):
        disk.sync_dir(made.rsplit("/", 1)[0] or "/")
