"""What a log directory holds, or says is elsewhere, and is not read here.

<log dir>/remote-log-index-cache/ _rlmm_cache/     indexes of segments in remote (tiered) storage
<log dir>/<topic>-<n>.<32 hex>-stray | -future     a partition that was set aside; a copy on its way here
log-start-offset-checkpoint below the first segment    the offsets between are in remote storage
"""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.layouts.kafka import checkpoints
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.names import SIDE, is_log_name, partition_dirs
from headrace.layouts.kafka.segments import list_segments
from headrace.layouts.unread import UNKNOWN, Unread, unread_entries

_REMOTE = ("remote-log-index-cache", "_rlmm_cache")


def unread(disk: Disk, path: str) -> list[Unread]:
    """All of it, for a log directory or one partition's."""
    if is_log_name(path.rpartition("/")[2]):
        return unread_entries(disk, path, _of_partition)
    places = unread_entries(disk, path, _of_log_dir)
    starts = _starts(disk, path)
    for name, folder in partition_dirs(disk, path).items():
        places += unread_entries(disk, folder, _of_partition)
        start, segments = starts.get(name), list_segments(disk, folder)
        if start is not None and segments and start < segments[0].base:
            what = f"offsets {start}..{segments[0].base - 1} of {name} are in remote (tiered) storage"
            places.append(Unread(folder, what))
    return places


def _of_partition(name: str, is_dir: bool) -> str | None:
    return UNKNOWN if is_dir and name != SIDE else None


def _of_log_dir(name: str, is_dir: bool) -> str | None:
    if not is_dir or is_log_name(name) or name.endswith("-delete") or name == SIDE:
        return None
    if name in _REMOTE:
        return "indexes of segments in remote (tiered) storage, which are elsewhere"
    if name.endswith("-stray"):
        return "a partition that the broker set aside as stray"
    if name.endswith("-future"):
        return "a copy of a partition on its way into this directory"
    return UNKNOWN


def _starts(disk: Disk, path: str) -> dict[str, int]:
    """Log → its first offset as the broker knows it; nothing from a file that cannot be read (inspect says so)."""
    file = f"{path}/{checkpoints.LOG_START}"
    try:
        return checkpoints.read_offsets(disk, file) if disk.entry(file) is not None else {}
    except HeadraceError:
        return {}
