"""Opening a store for writing: where the log ends, what the queues must hold.

The broker cuts the log at the first message that is not sound. Here a bad message is replaced, at the same size, by one
that is in no queue (its kind is "prepared") and whose body is the bytes that were found; so everything after it stays,
and the broker walks over it too. The bytes are also kept in headrace/damaged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.rocketmq._kernels import Disk, RocketScan, rocketmq_crc, rocketmq_scan
from headrace.layouts.rocketmq.commit_log import CommitLog
from headrace.layouts.rocketmq.fields import (
    BLANK,
    FIXED_BYTES,
    HEAD_BYTES,
    MAGIC_BLANK,
    PROPERTIES_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES,
    MessageHead,
)
from headrace.layouts.rocketmq.names import CHECKPOINT, CLEAN_END, DAMAGED, SIDE
from headrace.layouts.rocketmq.queue_files import ENTRY, QueueFiles, place_of

PREPARED = 0x4
# Times of messages are coarse, and several share one: as much earlier the broker begins, too.
SAFETY_MS = 3000
FILLER_TOPIC = b"headrace_damaged"
FILLER_LEAST = FIXED_BYTES + len(FILLER_TOPIC)
BEFORE_BYTES = 4096
TAIL_BYTES = 64
"""The end of a message: its topic is in it, if it has no properties."""
_HOLE = (0).to_bytes(8, "big") + (1).to_bytes(4, "big") + bytes(8)
"""An entry of size 1 at an address that holds nothing."""
HOLE_ENTRIES_MAX = 1 << 24
_CHECKPOINT = struct.Struct(">6q")


class _CleanEnd(msgspec.Struct, frozen=True, kw_only=True):
    """`headrace/clean.json`."""

    address: int
    store_ms: int
    before: str
    """SHA-256 of the bytes before the address."""


@dataclass(slots=True)
class RecoveredLog:
    """The end of the log, and what was found on the way."""

    next: int = 0
    last_store_ms: int = 0
    damage: list[Damage] = field(default_factory=lambda: [])
    scans: list[RocketScan] = field(default_factory=lambda: [])
    tails: list[tuple[int, int]] = field(default_factory=lambda: [])
    """Addresses of unsound ends that were set aside."""


def read_checkpoint(disk: Disk, root: str) -> tuple[int, ...]:
    """(log, queues, index: store times ms; master flushed, confirm, queue address); zeros when it is not there."""
    path = f"{root}/{CHECKPOINT}"
    if disk.entry(path) is None:
        return (0,) * 6
    data = disk.open(path).read_at(0, _CHECKPOINT.size)
    return _CHECKPOINT.unpack(data) if len(data) == _CHECKPOINT.size else (0,) * 6


def write_checkpoint(disk: Disk, root: str, store_ms: int, address: int) -> None:
    """Everything up to here is on disk."""
    body = _CHECKPOINT.pack(store_ms, store_ms, store_ms, 0, address, 0)
    disk.replace_file(f"{root}/{CHECKPOINT}", body.ljust(4096, b"\0"))


def write_clean_end(disk: Disk, root: str, log: CommitLog, store_ms: int) -> None:
    """At a clean stop: where the log ends, and what stands before, so that the next start need not read up to there."""
    start = max(log.files, default=None)
    if start is None or not start < log.next:
        return
    make_dirs(disk, f"{root}/{SIDE}")
    said = _CleanEnd(address=log.next, store_ms=store_ms, before=_before(disk, log, start, log.next))
    disk.replace_file(f"{root}/{CLEAN_END}", msgspec.json.encode(said))


def _before(disk: Disk, log: CommitLog, start: int, address: int) -> str:
    size = min(BEFORE_BYTES, address - start)
    return sha256(disk.open(log.path(start)).read_at(address - start - size, size)).hexdigest()


def read_clean_end(disk: Disk, root: str, log: CommitLog) -> tuple[int, int] | None:
    """(address, store time in ms) where the last clean stop of ours was, if the newest file still says the same there.
    It stays true when the broker has appended since; then the rest is scanned from there."""
    path, start = f"{root}/{CLEAN_END}", max(log.files)
    try:
        said = msgspec.json.decode(disk.read(path, 1 << 16), type=_CleanEnd) if disk.entry(path) else None
    except msgspec.DecodeError:
        return None
    if said is None or not start < said.address <= start + log.files[start]:
        return None
    return (said.address, said.store_ms) if _before(disk, log, start, said.address) == said.before else None


def lost_end(disk: Disk, log: CommitLog, synced: int) -> list[Damage]:
    """Without a scan: whether the log reaches as far as a writer of ours had synced it."""
    start, newest = synced - 1 - (synced - 1) % log.file_bytes, max(log.files, default=None)
    size = log.files.get(start, 0)
    if not synced or (newest is not None and newest > start):
        return []
    if start + size >= synced and any(
        disk.open(log.path(start)).read_at(max(synced - start - TAIL_BYTES, 0), TAIL_BYTES)
    ):
        return []
    return [
        _missing(log, max((at + bytes_ for at, bytes_ in log.files.items() if at < start), default=0), synced)
    ]


def _missing(log: CommitLog, first: int, synced: int) -> Damage:
    """The log ends at `first`, and had been synced up to `synced`."""
    start = synced - 1 - (synced - 1) % log.file_bytes
    there = "is there, without its end" if start in log.files else "is not there"
    detail = f"the file {there}: the log was synced up to address {synced}, and ends at {first}"
    return Damage(log.path(start), max(first - start, 0), synced - max(first, start), "missing", detail)


def _replace_lost(disk: Disk, log: CommitLog, found: RecoveredLog, synced: int) -> None:
    """What was synced and is gone: its addresses and queue offsets are not given out again. Blanks lead the broker,
    which knows no gaps between files, over it; the log goes on in a new file."""
    first = max([found.next, *(end for _, end in found.tails)])
    if first >= synced:
        return
    found.damage.append(_missing(log, first, synced))
    following = -(-synced // log.file_bytes) * log.file_bytes
    found.tails.append((found.next, following))
    start = found.next - found.next % log.file_bytes
    if log.files:
        for each in range(start, following, log.file_bytes):
            at = max(found.next - each, 0)
            file = disk.open(log.path(each), "write")
            file.set_len(log.file_bytes)
            if log.file_bytes - at >= BLANK.size:
                file.write_at(at, BLANK.pack(log.file_bytes - at, MAGIC_BLANK))
            file.sync_data()
            log.files = {**log.files, each: log.file_bytes}
        disk.sync_dir(log.directory)
    found.next = following


def recover(
    disk: Disk, root: str, log: CommitLog, *, clean: bool, keys: bool, synced: int = 0
) -> RecoveredLog:
    """Scan what may not be whole, put it right, and say what the queues get. `synced`: up to which address a writer of ours
    had synced the log."""
    found = _recover(disk, root, log, clean=clean, keys=keys)
    _replace_lost(disk, log, found, synced)
    return found


def _recover(disk: Disk, root: str, log: CommitLog, *, clean: bool, keys: bool) -> RecoveredLog:
    starts = list(log.files)
    found = RecoveredLog()
    if not starts:
        return found
    if clean and (end := read_clean_end(disk, root, log)) is not None:
        start = starts[-1]
        scan = rocketmq_scan(disk, log.path(start), start, end[0] - start, keys)
        if not scan.bad():
            found.scans.append(scan)
            found.last_store_ms = scan.last_store_ms if scan.messages else end[1]
            found.next = start + scan.end
            return found
    first = len(starts) - 1 if clean else _first_to_scan(disk, root, log, starts)
    for number, start in enumerate(starts[first:], first):
        newest = number == len(starts) - 1
        scan = rocketmq_scan(disk, log.path(start), start, 0, keys)
        if scan.bad():
            _mend(disk, root, log, start, scan, newest, found)
            scan = rocketmq_scan(disk, log.path(start), start, 0, keys)
        found.scans.append(scan)
        if scan.messages:
            found.last_store_ms = scan.last_store_ms
        found.next = start + scan.end
        if not clean:
            disk.open(log.path(start), "write").sync_data()
    return found


def _first_to_scan(disk: Disk, root: str, log: CommitLog, starts: list[int]) -> int:
    """The newest file whose first message is not newer than all that the checkpoint says is on disk."""
    safe_ms = min(read_checkpoint(disk, root)[:3]) - SAFETY_MS
    for number in range(len(starts) - 1, 0, -1):
        head = MessageHead.unpack(disk.open(log.path(starts[number])).read_at(0, HEAD_BYTES))
        if head is not None and head.is_message() and 0 < head.store_ms < safe_ms:
            return number
    return 0


def _mend(
    disk: Disk, root: str, log: CommitLog, start: int, scan: RocketScan, newest: bool, found: RecoveredLog
) -> None:
    path = log.path(start)
    file = disk.open(path, "write")
    for at, to, why, tail in scan.bad():
        data = file.read_at(at, to - at)
        if not any(data):
            continue
        folder = f"{root}/{DAMAGED}"
        make_dirs(disk, folder)
        kept = f"{folder}/{start + at}-{start + to}"
        disk.replace_file(kept, data)
        detail = f"{why}; its bytes are in {kept}"
        found.damage.append(Damage(path, at, to - at, "unsound-tail" if tail else "bad-record", detail))
        if tail and newest:
            file.write_at(at, bytes(to - at))
            found.tails.append((start + at, start + to))
        elif tail or to - at < FILLER_LEAST:
            file.write_at(at, BLANK.pack(log.file_bytes - at, MAGIC_BLANK))
        else:
            file.write_at(at, _filler(start + at, data))
    file.sync_data()


def _filler(address: int, data: bytes) -> bytes:
    """A message of exactly that size that no queue gets."""
    body = data[: len(data) - FILLER_LEAST]
    head = MessageHead(
        len(data), body_crc=rocketmq_crc(body), address=address, kind=PREPARED, body_size=len(body)
    )
    topic = len(FILLER_TOPIC).to_bytes(TOPIC_LENGTH_BYTES, "big") + FILLER_TOPIC
    return head.pack() + body + topic + bytes(PROPERTIES_LENGTH_BYTES)


def dispatch(queues: QueueFiles, first: int, entries: bytes) -> None:
    """Put entries where they belong, if they are not there already. A hole before them gets entries of size 1 at an
    address that holds nothing, so that offsets stay what they were.
    """
    end = queues.end()
    if first > end:
        queues.write(end, _HOLE * (first - end))
    if queues.read(first, len(entries) // ENTRY) != entries:
        queues.write(first, entries)


def queue_from_log(disk: Disk, log: CommitLog, topic: str, queue: int, file_bytes: int) -> QueueFiles:
    """A queue's entries from the messages themselves, in memory: for readers, where its files cannot be read."""
    made = QueueFiles(Disk.memory(), f"/{topic}/{queue}", file_bytes)
    for start in log.files:
        for of_topic, of_queue, first, entries in rocketmq_scan(
            disk, log.path(start), start, 0, False
        ).queues():
            if (of_topic, of_queue) != (topic, queue):
                continue
            if not made.files:
                # What was before the first message is not known; its file begins where such files begin.
                begin = first * ENTRY // made.file_bytes * made.file_bytes // ENTRY
                made.write(begin, _HOLE * (first - begin))
            if first - made.end() <= HOLE_ENTRIES_MAX:
                dispatch(made, first, entries)
    return made


def cut_queue(queues: QueueFiles, end_address: int, tails: list[tuple[int, int]]) -> int:
    """Entries beyond the log's end were never acknowledged; those of an unsound end may have been, and stay as holes."""
    end = queues.end()
    while end > queues.first:
        address, _ = place_of(queues.read(end - 1, 1))
        if address < end_address or any(begin <= address < stop for begin, stop in tails):
            break
        queues.write(end - 1, bytes(ENTRY))
        end -= 1
    return end
