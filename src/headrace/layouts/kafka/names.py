"""Names: topics, partition directories, segment files. Checked before any path is made of them.

<log dir>/<topic>-<partition>/%020d.log .index .timeindex .txnindex .snapshot
    suffixes .deleted .cleaned .swap      files on their way out or in
    headrace/                             ours; the broker looks at plain files only
<log dir>/<topic>-<partition>.<32 hex>-delete | -stray | -future      not logs
"""

from __future__ import annotations

import re

from headrace.errors import BadInput
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.log_names import LogNames

TOPIC_BYTES_MAX = 249
PARTITION_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
SIDE = "headrace"
LOG_NAMES = LogNames(topics=True, internal=("__",))
DAMAGED = f"{SIDE}/damaged"
LOG, INDEX, TIMES, TXN, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
SEGMENT_ENDINGS = (LOG, INDEX, TIMES, TXN)
DELETED, CLEANED, SWAP = ".deleted", ".cleaned", ".swap"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_LEAVING = re.compile(r".*[.-][0-9a-f]{32}-(delete|stray|future)")
ANY_LOG = re.compile(r"[0-9]+\.log")
_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?"
)


def split_name(name: str) -> tuple[str, int]:
    """Topic and partition of a log's name; BadInput for one that cannot be a directory of Kafka's."""
    topic, hyphen, partition = name.rpartition("-")
    if not hyphen or not _PARTITION.fullmatch(partition) or int(partition) > PARTITION_MAX:
        raise BadInput(f"{name!r}: a log of Kafka is named <topic>-<partition>, for instance orders-0")
    if topic in ("", ".", "..") or not _TOPIC.fullmatch(topic):
        raise BadInput(f"topic {topic!r}: letters, digits, '.', '_' and '-' only, and not '.' or '..'")
    if len(topic) > TOPIC_BYTES_MAX:
        raise BadInput(f"topic {topic[:40]!r}…: longer than {TOPIC_BYTES_MAX} bytes")
    return topic, int(partition)


def is_log_name(name: str) -> bool:
    """Whether a directory of this name is a partition."""
    if _LEAVING.fullmatch(name):
        return False
    try:
        split_name(name)
    except BadInput:
        return False
    return True


def segment_file(base: int, ending: str) -> str:
    """`%020d` and the ending."""
    return f"{base:020d}{ending}"


def parse_file(name: str) -> tuple[int, str, str] | None:
    """(base offset, ending, suffix) of a file of a segment; None for all others."""
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) > OFFSET_MAX:
        return None
    return int(match[1]), match[2], match[3] or ""


def partition_dirs(disk: Disk, path: str) -> dict[str, str]:
    """Log name → directory, of everything in a log directory that is a partition."""
    found: dict[str, str] = {}
    for name, is_dir, _ in disk.list(path):
        if is_dir and is_log_name(name):
            found[name] = f"{path}/{name}"
    return found


def has_segments(disk: Disk, directory: str) -> bool:
    """Whether a directory holds segment files."""
    return any(not is_dir and parse_file(name) is not None for name, is_dir, _ in disk.list(directory))


def put_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file: the old one or the new one is there after a crash. Its name is not synced yet."""
    fresh = f"{path}.tmp"
    file = disk.open(fresh, "write")
    file.set_len(0)
    file.write_at(0, data)
    file.sync_data()
    disk.rename(fresh, path)
