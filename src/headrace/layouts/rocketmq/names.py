"""Names: a log here is one queue, `<topic>-<queue>`. Checked before any path is made of them.

<store>/commitlog/%020d                        name = address of its first byte
<store>/consumequeue/<topic>/<queue>/%020d     name = position of its first byte in the queue
<store>/index/yyyyMMddHHmmssSSS   checkpoint   abort   lock   config/
<store>/headrace/                              ours
"""

from __future__ import annotations

import re

from headrace.errors import BadInput
from headrace.layouts.rocketmq._kernels import Disk

TOPIC_BYTES_MAX = 127
COMMIT_LOG, QUEUES, INDEX = "commitlog", "consumequeue", "index"
CHECKPOINT, ABORT, LOCK = "checkpoint", "abort", "lock"
SIDE, DAMAGED, OUR_LOCK = "headrace", "headrace/damaged", "headrace.lock"
CLEAN_END = "headrace/clean.json"
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_QUEUE = re.compile(r"0|[1-9][0-9]{0,9}")
_FILE = re.compile(r"[0-9]{20}")


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


def numbered(disk: Disk, directory: str) -> dict[int, int]:
    """Number in the name → length, of files named by twenty digits, in order."""
    if disk.entry(directory) is None:
        return {}
    found = {int(n): size for n, is_dir, size in disk.list(directory) if not is_dir and _FILE.fullmatch(n)}
    return dict(sorted(found.items()))


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


def make_dirs(disk: Disk, path: str) -> None:
    """Create a directory and make every new name on the way durable."""
    for made in disk.create_dir_all(path):
        disk.sync_dir(made.rsplit("/", 1)[0] or "/")
