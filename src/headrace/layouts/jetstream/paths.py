"""Where things lie in a stream's directory, and which names are blocks.

<store>/jetstream/<account>/streams/<STREAM>/
  meta.inf meta.sum            msgs/N.blk  [index.db] [N.idx] [N.fss]      obs/<CONSUMER>/…
  __msgs__  __new_msgs__       a purge in progress
  headrace/                    ours: never needed to open, stamped, ignored when the stamp does not fit
"""

from __future__ import annotations

import re

from headrace.layouts.base import Damage
from headrace.layouts.directories import misplaced_files
from headrace.layouts.jetstream._kernels import Disk

MSGS = "msgs"
MSGS_OLD = "__msgs__"
MSGS_NEW = "__new_msgs__"
INDEX = "index.db"
INDEX_BYTES_MAX = 1 << 30
SIDE = "headrace"
DAMAGED = "headrace/damaged"
BLOCK_DIGITS_MAX = 19
"""More digits may not fit into 64 bits; no writer ever came that far."""
BLOCK_MAX = 10**18
"""No block has a higher number, whatever a file says."""
SEQUENCE_MAX = 1 << 61
"""No sequence is higher: the bits above are flags, and the next one must have room."""
_BLOCK = re.compile(rf"^([1-9][0-9]{{0,{BLOCK_DIGITS_MAX - 1}}})\.blk$")
_ANY_BLOCK = re.compile(r"([0-9]+)\.blk")


def _block_number(name: str) -> int | None:
    match = _BLOCK.match(name)
    return int(match[1]) if match and int(match[1]) <= BLOCK_MAX else None


def block_numbers(disk: Disk, msgs_dir: str) -> dict[int, int]:
    """Number → file size of every block, in order. Anything not named `<decimal>.blk` is not one."""
    if disk.entry(msgs_dir) is None:
        return {}
    found: dict[int, int] = {}
    for name, is_dir, length in disk.list(msgs_dir):
        number = _block_number(name)
        if number is not None and not is_dir:
            found[number] = length
    return dict(sorted(found.items()))


def misplaced(disk: Disk, msgs_dir: str) -> list[Damage]:
    """What is named as a block and cannot be one."""
    return misplaced_files(disk, msgs_dir, _ANY_BLOCK, lambda name: _block_number(name) is not None, "block")


def files_with(disk: Disk, directory: str, *suffixes: str) -> list[str]:
    """Names in a directory with one of the endings."""
    if disk.entry(directory) is None:
        return []
    return [name for name, is_dir, _ in disk.list(directory) if not is_dir and name.endswith(suffixes)]
