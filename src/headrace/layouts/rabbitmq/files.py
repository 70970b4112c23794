"""Where things lie, and small files.

<node data dir>/msg_stores/vhosts/<VHOSTHASH>/
  .vhost  .config  recovery.dets           name · {segment_entry_count, N}. · what a clean stop of RabbitMQ left
  queues/<QUEUEHASH>/.queue_name  journal.jif  <N>.idx
  msg_store_persistent/<N>.rdq             msg_store_transient/<N>.rdq
Ours, and ignored by RabbitMQ:
  headrace.lock (in vhosts/)  headrace.next (in a queue)
  headrace.clean  headrace.index  headrace.marks  headrace.damaged/ (in a vhost)
"""

from __future__ import annotations

import re

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs, misplaced_files
from headrace.layouts.rabbitmq._kernels import Disk
from headrace.layouts.shortcuts import read_shortcut

QUEUES = "queues"
PERSISTENT = "msg_store_persistent"
TRANSIENT = "msg_store_transient"
JOURNAL = "journal.jif"
QUEUE_NAME = ".queue_name"
VHOST_NAME = ".vhost"
CONFIG = ".config"
RECOVERY = "recovery.dets"
LOCK = "headrace.lock"
CLEAN = "headrace.clean"
INDEX = "headrace.index"
NEXT = "headrace.next"
FRESH_JOURNALS = ("headrace.journal", "headrace.journal2")
DAMAGED = "headrace.damaged"
OLD_ENTRY_COUNT = 16384
SMALL_BYTES_MAX = 1 << 16
JOURNAL_BYTES_MAX = 2 << 30
SEGMENT_BYTES_MAX = 1 << 30
MISSING_LISTED_MAX = 1000
STOPPED_CLEAN = ("clean.dot", "file_summary.ets", "msg_store_index.ets")
_CONFIG_COUNT = re.compile(rb"^\s*\{\s*segment_entry_count\s*,\s*(\d+)\s*\}\s*\.", re.MULTILINE)
_VERSION_2 = re.compile(r"^[0-9]{1,15}\.q[is]$")
_NUMBERED = re.compile(r"^(0|[1-9][0-9]{0,14})\.(idx|rdq|rdt)$")
_ANY_NUMBER = re.compile(r"[0-9]+\.(idx|rdq|rdt)")


def numbered(disk: Disk, directory: str, suffix: str) -> dict[int, int]:
    """Number → bytes of every `<N>.<suffix>`, in order of the numbers."""
    if disk.entry(directory) is None:
        return {}
    found: dict[int, int] = {}
    for name, is_dir, size in disk.list(directory):
        match = _NUMBERED.match(name)
        if match and match[2] == suffix and not is_dir:
            found[int(match[1])] = size
    return dict(sorted(found.items()))


def version_2(disk: Disk, directory: str) -> dict[str, int]:
    """Name → bytes of the files that only a classic queue of version 2 has."""
    return {
        name: size for name, is_dir, size in disk.list(directory) if not is_dir and _VERSION_2.match(name)
    }


def is_version_2(disk: Disk, directory: str) -> bool:
    """Whether the queue in it is one of version 2, which is not read here."""
    has_journal = disk.entry(f"{directory}/{JOURNAL}") is not None
    return not has_journal and not numbered(disk, directory, "idx") and bool(version_2(disk, directory))


def misplaced(disk: Disk, directory: str) -> list[Damage]:
    """What is named as a segment or a store file and cannot be one."""
    return misplaced_files(disk, directory, _ANY_NUMBER, lambda name: bool(_NUMBERED.match(name)), "file")


def read_small(disk: Disk, path: str, found: list[Damage] | None = None) -> bytes | None:
    """A small file; None if it is not there or cannot be read, which is then in `found`."""
    return read_shortcut(disk, path, SMALL_BYTES_MAX, [] if found is None else found, "metadata")


def saved_next(disk: Disk, queue: str) -> int:
    """What `headrace.next` of a queue's directory says; 0 without one."""
    data = read_small(disk, f"{queue}/{NEXT}")
    return int(data) if data is not None and data.strip().isdigit() else 0


def entry_count(disk: Disk, vhost_path: str, damage: list[Damage]) -> int:
    """Entries per segment of a vhost: 16384 without a `.config`, as before 3.8.17."""
    path = f"{vhost_path}/{CONFIG}"
    data = read_small(disk, path, damage)
    if data is None:
        return OLD_ENTRY_COUNT
    match = _CONFIG_COUNT.search(data)
    count = int(match[1]) if match else 0
    if not 1 <= count <= OLD_ENTRY_COUNT:
        detail = f"no usable segment_entry_count ({data[:60]!r}); 2048 is assumed. RabbitMQ does not start such a vhost"
        damage.append(Damage(path, 0, len(data), "metadata", detail))
        return 2048
    return count


def config_text(count: int) -> bytes:
    """A `.config` as RabbitMQ reads it."""
    return f"%% Entries per index segment of this vhost. Segments depend on it: do not change.\n{{segment_entry_count, {count}}}.".encode()


def keep_copy(disk: Disk, vhost_path: str, path: str, data: bytes) -> str:
    """A copy of a damaged file's bytes, before the file is replaced. Returns where it is."""
    directory = f"{vhost_path}/{DAMAGED}"
    make_dirs(disk, directory)
    name = path.removeprefix(f"{vhost_path}/").replace("/", "_")
    number = 0
    while (entry := disk.entry(target := f"{directory}/{name}.{number}")) is not None:
        if entry.size == len(data) and disk.read(target) == data:
            return target
        number += 1
    disk.replace_file(target, data)
    return target


def damage_of(path: str, findings: list[tuple[str, int, int, int | None, int | None, str]]) -> list[Damage]:
    """The core's findings about a file."""
    return [
        Damage(path, offset, length, kind, detail, first, following)
        for kind, offset, length, first, following, detail in findings
    ]


def missing_of(directory: str, sequences: list[int]) -> list[Damage]:
    """Messages that the index knows and no store file has."""
    return [
        Damage(
            *(directory, 0, 0, "missing"),
            f"message {seq} is in the index; its body is in no store file, or cannot be read",
            *(seq, seq + 1),
        )
        for seq in sequences[:MISSING_LISTED_MAX]
    ]


def try_remove(disk: Disk, path: str) -> bool:
    """Remove a file if it is there."""
    try:
        if disk.entry(path) is None:
            return False
        disk.remove_file(path)
    except HeadraceError:
        return disk.entry(path) is None
    return True
