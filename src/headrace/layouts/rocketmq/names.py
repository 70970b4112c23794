"""Names: a log here is one queue, `<topic>-<queue>`. Checked before any path is made of them.

<store>/commitlog/%020d                        name = address of its first byte
<store>/consumequeue/<topic>/<queue>/%020d     name = position of its first byte in the queue
<store>/index/yyyyMMddHHmmssSSS   checkpoint   abort   lock   config/
<store>/headrace/                              ours
"""

from __future__ import annotations

import re

from headrace.errors import BadInput
from headrace.layouts.base import Damage
from headrace.layouts.directories import misplaced_files
from headrace.layouts.rocketmq._kernels import Disk

TOPIC_BYTES_MAX = 127
COMMIT_LOG, QUEUES, INDEX = "commitlog", "consumequeue", "index"
DLEDGER = "dledger"
"""How the folder begins that a broker with DLedger has instead of a commit log: not read here."""
CHECKPOINT, ABORT, LOCK = "checkpoint", "abort", "lock"
SIDE, DAMAGED, OUR_LOCK = "headrace", "headrace/damaged", "headrace.lock"
CLEAN_END = "headrace/clean.json"
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_QUEUE = re.compile(r"0|[1-9][0-9]{0,9}")
_FILE = re.compile(r"[0-9]{20}")
_DIGITS = re.compile(r"[0-9]+")
OFFSET_MAX = 2**63 - 1


def split_name(name: str) -> tuple[str, int]:
    """Topic and queue of a log's name; BadInput for what cannot be one."""
    topic, hyphen, queue = name.rpartition("-")
    if not hyphen or not _QUEUE.fullmatch(queue) or int(queue) > 2**31 - 1:
        raise BadInput(f"{name!r}: a log of RocketMQ is named <topic>-<queue>, for instance orders-0")
    if not _TOPIC.fullmatch(topic) or len(topic) > TOPIC_BYTES_MAX:
        raise BadInput(
            f"topic {topic[:40]!r}: 1 to {TOPIC_BYTES_MAX} of letters, digits, '%', '|', '_' and '-'"
        )
    return topic, int(queue)


def is_log_name(name: str) -> bool:
    """Whether a log can be called so."""
    try:
        split_name(name)
    except BadInput:
        return False
    return True


def numbered(disk: Disk, directory: str) -> dict[int, int]:
    """Number in the name → length, of files named by twenty digits, in order."""
    if disk.entry(directory) is None:
        return {}
    found = {_number(name): size for name, is_dir, size in disk.list(directory) if not is_dir}
    return dict(sorted((number, size) for number, size in found.items() if number is not None))


def _number(name: str) -> int | None:
    return int(name) if _FILE.fullmatch(name) and int(name) <= OFFSET_MAX else None


def misplaced(disk: Disk, directory: str) -> list[Damage]:
    """What is named as a file of a log and cannot be one."""
    return misplaced_files(disk, directory, _DIGITS, lambda name: _number(name) is not None, "file")


def queue_dirs(disk: Disk, root: str) -> dict[str, str]:
    """Log name → directory of every queue."""
    found: dict[str, str] = {}
    base = f"{root}/{QUEUES}"
    if disk.entry(base) is None:
        return found
    for topic, is_dir, _ in disk.list(base):
        if is_dir and _TOPIC.fullmatch(topic):
            for queue, is_queue, _ in disk.list(f"{base}/{topic}"):
                if is_queue and _QUEUE.fullmatch(queue):
                    found[f"{topic}-{queue}"] = f"{base}/{topic}/{queue}"
    return found
