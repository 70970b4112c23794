"""`RocketQueue`: one queue of a topic. Its messages lie in the shared commit log; the queue's files say where.

queue offset → (file, position) by arithmetic → address and size → the commit log
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import BadInput, ReadOnly, StoreClosed
from headrace.layouts.base import Damage, Log, LogState, Predicate, ScanTask, Ticket
from headrace.layouts.places import disk_at
from headrace.layouts.rocketmq._kernels import Batch, RocketReader, rocketmq_bytes_of
from headrace.layouts.rocketmq.names import split_name
from headrace.layouts.rocketmq.queue_files import ENTRY, QueueFiles, place_of

if TYPE_CHECKING:
    from headrace.layouts.rocketmq.volume import RocketVolume

NS_PER_MS = 1_000_000
ENTRIES_AT_ONCE = 65_536


class RocketQueue(Log):
    """A queue of a store that is open; its volume writes for it."""

    def __init__(self, volume: RocketVolume, name: str, files: QueueFiles, following: int) -> None:
        self.volume, self.name, self.files = volume, name, files
        self.topic, self.queue = split_name(name)
        self.next = following
        self.first = self._first()
        self._damage: dict[int, Damage] = {}
        self._followed: int | None = volume.durable_end
        self._closed = False

    def _first(self) -> int:
        """The first offset whose message is still in the commit log: whole files of that go, entries stay."""
        low, high, least = self.files.first, self.next, self.volume.commit_log.first
        while low < high:
            middle = (low + high) // 2
            address, _ = place_of(self.files.read(middle, 1) or bytes(ENTRY))
            low, high = (middle + 1, high) if address < least else (low, middle)
        return low

    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Store all messages at the end of the shared log and of this queue."""
        self._check_open()
        return self.volume.append(self, batch, keep_positions)

    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        """Messages from queue offset `first` on; see `Log.read`."""
        self._check_open()
        self.volume.files.use(self)
        if first >= self.next:
            self._follow()
        at = max(first, self.first)
        while at < self.next:
            entries = self.files.read(at, min(max_msgs, self.next - at, ENTRIES_AT_ONCE))
            if not entries:
                break
            batch, used, lost = self.volume.commit_log.reader().read(
                self.topic, self.queue, at, entries, max_bytes, self.volume.options.decompressed_bytes_max
            )
            self._note(lost)
            if len(batch):
                return batch if filter is None else batch.filter(None, None, None, None, [filter])
            at += max(used, 1)
        return Batch.build(self.topic, [], header_codec="rocketmq")

    def _follow(self) -> None:
        """Beside a writer of ours: messages that are durable by now."""
        volume = self.volume
        if volume.durable_end is None:
            return
        volume.follow()
        if volume.durable_end != self._followed:
            self.files.look_again()
            self.next, self._followed = max(self.next, self.files.end(volume.durable_end)), volume.durable_end

    def _note(self, lost: Sequence[tuple[int, int, int, str]]) -> None:
        log = self.volume.commit_log
        files = tuple((start, log.path(start)) for start in log.files) if lost else ()
        self._damage |= {finding.first_seq or 0: finding for finding in _unsound(files, lost)}

    def seq_from_time(self, time_ns: int) -> int:
        """By store time, which does not go backwards: binary search through the queue."""
        self._check_open()
        time_ms = -(-time_ns // NS_PER_MS)
        reader = self.volume.commit_log.reader()
        low, high = self.first, self.next
        while low < high:
            middle = (low + high) // 2
            store_ms = reader.store_time(*place_of(self.files.read(middle, 1)))
            # A message that cannot be read says nothing: the one before it decides.
            probe = middle
            while store_ms is None and probe > low:
                probe -= 1
                store_ms = reader.store_time(*place_of(self.files.read(probe, 1)))
            low, high = (low, probe) if store_ms is not None and store_ms >= time_ms else (middle + 1, high)
        return low

    def state(self) -> LogState:
        """Counts by the queue's entries; what is known to be lost is left out."""
        self._check_open()
        self._follow()
        size, at = 0, self.first
        while at < self.next and (entries := self.files.read(at, min(ENTRIES_AT_ONCE, self.next - at))):
            size, at = size + rocketmq_bytes_of(entries), at + len(entries) // ENTRY
        count = self.next - self.first - len(self._damage)
        times = (
            [self._time(self.first), self._time(self.next - 1)] if self.next > self.first else [None, None]
        )
        return LogState(
            messages=count,
            bytes=size,
            first_seq=self.first,
            last_seq=self.next - 1,
            first_time_ns=times[0],
            last_time_ns=times[1],
            num_subjects=1 if count else 0,
            num_deleted=len(self._damage),
            lost_messages=len(self._damage),
            lost_bytes=sum(finding.length for finding in self._damage.values()),
        )

    def _time(self, offset: int) -> int | None:
        store_ms = self.volume.commit_log.reader().store_time(*place_of(self.files.read(offset, 1)))
        return None if store_ms is None else store_ms * NS_PER_MS

    def remove(self, positions: Sequence[int]) -> Ticket:
        """Refused: messages go with their commit-log file only."""
        raise BadInput(f"log {self.name}: RocketMQ's layout cannot remove single messages")

    def drop_front(self, seq: int) -> int:
        """Refused: the commit log is shared; see fileReservedTime."""
        raise BadInput(
            f"log {self.name}: messages go with whole commit-log files, for all topics at once; set fileReservedTime"
        )

    def damage(self) -> list[Damage]:
        """Messages that entries point to and that are not there."""
        return [finding for _, finding in sorted(self._damage.items())]

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """One task per file of the queue."""
        self._check_open()
        self._follow()
        want, tasks, log = predicate or Predicate(), list[ScanTask](), self.volume.commit_log
        files = tuple((start, log.path(start)) for start in log.files)
        per_file = self.files.file_bytes // ENTRY
        for start in self.files.files:
            first = max(start // ENTRY, self.first, want.first or 0)
            following = min(start // ENTRY + per_file, self.next)
            following = min(following, want.next) if want.next is not None else following
            if first < following:
                size = rocketmq_bytes_of(self.files.read(first, following - first))
                path, most = self.files.directory, self.volume.options.decompressed_bytes_max
                tasks.append(
                    QueueTask(
                        self.name,
                        self.topic,
                        self.queue,
                        first,
                        following,
                        size,
                        path,
                        self.files.file_bytes,
                        files,
                        most,
                    )
                )
        return tasks

    def check_writable(self) -> None:
        """Raise unless the store may be changed."""
        self._check_open()
        if self.volume.read_only:
            raise ReadOnly(f"log {self.name} was opened for reading; open the volume with mode='rw'")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"log {self.name} was closed; open it again")

    def park(self) -> None:
        """Give the descriptors up until the queue is used again."""
        self.files.park()

    def close(self) -> None:
        """Give up the files; the volume has synced them."""
        self._closed = True
        self.volume.files.forget(self)
        self.files.close()


def _unsound(files: Sequence[tuple[int, str]], lost: Sequence[tuple[int, int, int, str]]) -> Iterator[Damage]:
    """Entries of a queue whose message is not where they point: in the file that should hold it."""
    for offset, address, size, why in lost:
        start, path = max((each for each in files if each[0] <= address), default=(0, "commitlog"))
        yield Damage(path, address - start, size, "bad-record", why, offset, offset + 1)


@dataclass(frozen=True, slots=True)
class QueueTask(ScanTask):
    """The messages of one file of a queue."""

    log: str
    topic: str
    queue: int
    first: int
    next: int
    size_bytes: int
    directory: str
    file_bytes: int
    commit_log: tuple[tuple[int, str], ...]
    inflated_max: int

    def own_column(self, name: str, batch: Batch) -> Any:
        from headrace.layouts.rocketmq.own_columns import own_column

        return own_column(self, name, batch)

    def entries(self, first: int, following: int) -> bytes:
        """The queue's own entries: address in the commit log, size, hash of the tag."""
        return QueueFiles(disk_at(self.directory), self.directory, self.file_bytes).read(
            first, following - first
        )

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The messages that match."""
        want, disk = predicate or Predicate(), disk_at(self.directory)
        files, reader = QueueFiles(disk, self.directory, self.file_bytes), RocketReader(disk, self.commit_log)
        at, end = (
            max(self.first, want.first or 0),
            min(self.next, want.next if want.next is not None else self.next),
        )
        while at < end:
            entries = files.read(at, min(ENTRIES_AT_ONCE, end - at))
            batch, used, lost = reader.read(self.topic, self.queue, at, entries, 8 << 20, self.inflated_max)
            if damage is not None:
                damage += _unsound(self.commit_log, lost)
            at += max(used, 1)
            kept = batch.filter(None, None, want.since_ns, want.until_ns, list(want.subjects))
            if len(kept):
                yield kept
