"""`KafkaLog`: one partition. Reading here; `append`, `roll` and what follows from them in appending.py.

offset → binary search over the segments → binary search in the mapped index → scan of the log
a reader that goes on where it stopped needs none of the three: the place is remembered
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.errors import BadInput, Damaged, ReadOnly, StoreClosed
from headrace.layouts.base import Damage, Durability, Frames, Log, LogState, Predicate, ScanTask, Ticket
from headrace.layouts.group_commit import GroupCommit
from headrace.layouts.kafka import appending, checkpoints, retention
from headrace.layouts.kafka._kernels import Batch, Disk, KafkaProducers, KafkaReader, KafkaWriter
from headrace.layouts.kafka.names import split_name
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.scan_task import plan_segments
from headrace.layouts.kafka.segments import (
    Segment,
    Summary,
    ceiling_of,
    durable_bytes,
    floor_of,
    list_segments,
    summary_of,
)
from headrace.layouts.marks import Mark, Marks, MarksBeside
from headrace.layouts.open_files import OpenFiles
from headrace.layouts.readers import Readers

if TYPE_CHECKING:
    from headrace.layouts.kafka.opening import OpenedPartition

NS_PER_MS = 1_000_000
CHUNK_LEAST = 64 << 10
BYTES_PER_MESSAGE = 1024
FAR = 2**62
READERS_MAX = 16


class KafkaLog(Log):
    """A partition, opened for reading or (by the volume that holds the lock) for writing."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: str,
        opened: OpenedPartition,
        *,
        options: KafkaOptions,
        read_only: bool,
        durability: Durability = "sync",
        clock: Callable[[], int] = time.time_ns,
        files: OpenFiles | None = None,
        marks: Marks | MarksBeside | None = None,
        groups: Callable[[KafkaLog], Readers] | None = None,
    ) -> None:
        self.disk, self.directory, self.name, self.options = disk, directory, name, options
        self.topic, self.partition = split_name(name)
        self.read_only, self.durability, self.clock = read_only, durability, clock
        self.segments: tuple[Segment, ...] = tuple(opened.segments)
        self.writer: KafkaWriter | None = opened.writer
        self.producers: KafkaProducers = opened.producers
        self.epochs = opened.epochs
        self.start, self.next = opened.start, opened.next
        self.recovery_point = opened.recovery_point
        self.live_writer = opened.live_writer
        self._damage: list[Damage] = list(opened.damage)
        self._seen = {(finding.file, finding.offset) for finding in self._damage}
        self.lock, self._closed = threading.RLock(), False
        self._files, self._marks, self._groups = files, marks, groups
        # Readers beside a writer of ours: (base of its newest segment, bytes of it, next offset) that are durable.
        self.durable: Mark | None = opened.durable
        # Where the last read ended: (next offset, base of its segment, position, last offset before it).
        self._hint: tuple[int, int, int, int] | None = None
        self.mark, self.unsynced_messages, self.unsynced_since_ns = 0, 0, 0
        self.retired: list[KafkaWriter] = []
        self.names_unsynced = opened.names_unsynced
        self.leaving: list[tuple[int, list[str]]] = []
        self.jitter_ms = appending.jitter(options)
        self.created_ns = clock()
        self.commits = GroupCommit(name, lambda: self.mark, lambda: appending.sync(self))
        self._reading: deque[Segment] = deque()
        self.aborted_cache: tuple[int, list[tuple[int, int, int]]] | None = None

    @property
    def readers(self) -> Readers:
        return super().readers if self._groups is None else self._groups(self)

    # Reading

    def read(
        self,
        first: int,
        max_msgs: int = 1000,
        max_bytes: int = 8 << 20,
        filter: str | None = None,
        *,
        control: bool = False,
    ) -> Batch:
        """Messages from offset `first` on; see `Log.read`. Transaction markers only with `control`.

        With the option isolation.level=read_committed what was aborted is left out and reading ends before the
        oldest open transaction.
        """
        self._use()
        segments, end = self.segments, self.read_end()
        first = max(first, self.start)
        if not segments:
            return Batch.build(self.topic, [], header_codec="kafka")
        wanted = min(max_bytes, max(CHUNK_LEAST, max_msgs * BYTES_PER_MESSAGE))
        aborted = self.aborted(first, end)
        at, position, last = self._place(segments, first)
        while True:
            segment = segments[at]
            reader = self.reader(segments, at)
            batch, position, last, ended, findings = reader.read(
                position, last, first, end, max_msgs, wanted, self.limit(segments, at), control, aborted
            )
            self._note(segment, findings, at == len(segments) - 1)
            if len(batch):
                self._hint = (batch.last_position + 1, segment.base, position, last)
                return batch if filter is None else batch.filter(None, None, None, None, [filter])
            if ended or at + 1 < len(segments):
                at += 1
            if at >= len(segments) or segments[at].base >= end:
                return batch
            position, last = 0, segments[at].base - 1

    def read_frames(self, first: int, max_bytes: int = 8 << 20) -> Frames:
        """Whole batches from the one that holds `first` on, as they are stored: checked, not opened."""
        self._use()
        segments = self.segments
        if not segments:
            return Frames("kafka", b"", first, first, 0)
        at, position, last = self._place(segments, max(first, self.start))
        while True:
            data, begin, following, count, max_time, _, _ = self.reader(segments, at).read_frames(
                position, last, max(first, self.start), max_bytes, self.limit(segments, at)
            )
            if data or at + 1 >= len(segments):
                largest = max_time * NS_PER_MS if max_time >= 0 else None
                return Frames("kafka", data, begin if data else following, following, count, largest)
            at, position, last = at + 1, 0, segments[at + 1].base - 1

    def lookup(self, offset: int) -> tuple[int, int, int]:
        """(base of the segment, position of the batch that holds `offset`, batches scanned on the way)."""
        segments = self.segments
        at = floor_of(segments, offset)
        reader = self.reader(segments, at)
        writer = self.writer if at == len(segments) - 1 else None
        position, last, _ = reader.locate(offset, writer)
        found = reader.find(offset, position, last)
        return (
            (segments[at].base, found.position, found.passed)
            if found
            else (segments[at].base, len(reader), 0)
        )

    def seq_from_time(self, time_ns: int) -> int:
        """The first offset whose time is not before `time_ns`; the end offset if there is none."""
        self._use()
        time_ms = -(-time_ns // NS_PER_MS)
        segments = self.segments
        for at, segment in enumerate(segments):
            active = at == len(segments) - 1
            largest = (
                self.writer.max_time_ms if active and self.writer else segment.largest_time_ms(self.disk)
            )
            if largest is not None and largest < time_ms:
                continue
            writer = self.writer if active else None
            limit = self.limit(segments, at)
            found = self.reader(segments, at).find_time(time_ms, self.start, limit, writer)
            if found is not None:
                return found
        return self.next

    def reader(self, segments: Sequence[Segment], at: int) -> KafkaReader:
        """The reader of a segment, opened when first needed; the latest few stay open."""
        segment = segments[at]
        found = segment.reader
        if found is not None:
            return found
        active = at == len(segments) - 1 and (self.writer is not None or self.live_writer)
        ceiling, most = ceiling_of(segments, at), self.options.decompressed_bytes_max
        found = segment.open(self.disk, self.topic, ceiling, most, active=active)
        self._reading.append(segment)
        if len(self._reading) > READERS_MAX:
            self._reading.popleft().reader = None
        return found

    def _place(self, segments: Sequence[Segment], first: int) -> tuple[int, int, int]:
        hint = self._hint
        if hint is not None and hint[0] == first:
            at = floor_of(segments, hint[1])
            if segments[at].base == hint[1]:
                return at, hint[2], hint[3]
        at = floor_of(segments, first)
        writer = self.writer if at == len(segments) - 1 else None
        position, last, believed = self.reader(segments, at).locate(first, writer)
        if not believed:
            self._add(
                Damage(
                    segments[at].path(".index"), 0, 0, "index", "an entry leads to no batch with its offset"
                )
            )
        return at, position, last

    def limit(self, segments: Sequence[Segment], at: int) -> int:
        """How many bytes of a segment count."""
        if at == len(segments) - 1 and self.writer is not None:
            return self.writer.size
        if not self.read_only:
            return segments[at].size
        most, there = durable_bytes(self.durable, segments[at].base), len(self.reader(segments, at))
        return there if most is None else min(most, there)

    def read_end(self) -> int:
        if self.read_only and self.live_writer:
            return FAR if self.durable is None else self.next
        if self.options.isolation_level == "read_committed":
            return self.last_stable
        return self.next

    def aborted(self, first: int, end: int) -> list[tuple[int, int, int]]:
        if self.options.isolation_level != "read_committed":
            return []
        if self.aborted_cache is None or self.aborted_cache[0] != self.mark:
            found = [entry for segment in self.segments for entry in self._aborted_of(segment)]
            self.aborted_cache = (self.mark, found)
        return [entry for entry in self.aborted_cache[1] if entry[2] >= first and entry[1] < end]

    def _aborted_of(self, segment: Segment) -> list[tuple[int, int, int]]:
        try:
            return [(producer, begin, last) for producer, begin, last, _ in segment.aborted(self.disk)]
        except Damaged as problem:
            self._add(Damage(problem.file, problem.offset, 0, "index", str(problem)))
            found = segment.survey(self.disk, None, self.options.index_interval_bytes)
            return [(producer, begin, last) for producer, begin, last, _ in found.aborted()]

    @property
    def last_stable(self) -> int:
        """The first offset of the oldest open transaction, or the end offset."""
        first = self.producers.first_open
        return self.next if first is None else first

    @property
    def incarnation(self) -> str:
        """The topic's id."""
        return checkpoints.read_topic_id(self.disk, self.directory) or ""

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """One task per segment that may hold a match."""
        self._use()
        return plan_segments(self, predicate or Predicate())

    # State

    def summary(self, at: int, segments: Sequence[Segment]) -> Summary:
        """What a segment holds; scanned once if nobody has yet."""
        segment = segments[at]
        if segment.summary is None:
            found = segment.survey(
                self.disk,
                ceiling_of(segments, at),
                self.options.index_interval_bytes,
                inflated_max=self.options.decompressed_bytes_max,
                limit=durable_bytes(self.durable, segment.base),
            )
            segment.summary = summary_of(found)
        return segment.summary

    def state(self) -> LogState:
        """Counts of messages without transaction markers. Scans segments that were not looked at yet."""
        self._use()
        segments = self.segments
        found = [self.summary(at, segments) for at in range(len(segments))]
        messages = sum(one.messages for one in found) - self._below_start(segments)
        times = [one.max_time_ms for one in found if one.max_time_ms >= 0]
        first_time = next((one.first_time_ns for one in found if one.first_time_ns), None)
        lost = [finding for finding in self._damage if finding.kind in ("bad-record", "unsound-tail")]
        return LogState(
            messages=messages,
            bytes=sum(self.limit(segments, at) for at in range(len(segments))),
            first_seq=self.start,
            last_seq=self.next - 1,
            first_time_ns=first_time,
            last_time_ns=max(times) * NS_PER_MS if times else None,
            num_subjects=1 if messages else 0,
            num_deleted=self.next - self.start - messages,
            lost_messages=sum((f.next_seq or 0) - (f.first_seq or 0) for f in lost),
            lost_bytes=sum(finding.length for finding in lost),
        )

    def _below_start(self, segments: Sequence[Segment]) -> int:
        """Messages that DeleteRecords took away: their segments are here as long as one message is above."""
        count = 0
        for at, segment in enumerate(segments):
            position, last, ended = 0, segment.base - 1, segment.base >= self.start
            while not ended:
                batch, position, last, ended, _ = self.reader(segments, at).read(
                    position, last, 0, self.start, 1 << 20, 8 << 20, self.limit(segments, at), False, []
                )
                count += len(batch)
        return count

    def damage(self) -> list[Damage]:
        """What was found unsound since the log was opened."""
        return [*self._damage, *(each for segment in self.segments for each in segment.unused)]

    def _note(
        self,
        segment: Segment,
        findings: Sequence[tuple[str, int, int, int | None, int | None, str]],
        newest: bool,
    ) -> None:
        for kind, offset, length, first, following, detail in findings:
            if kind == "unsound-tail" and newest and self.live_writer:
                continue  # the broker is writing there now
            segment.damaged = True
            self._add(Damage(segment.log_path, offset, length, kind, detail, first, following))

    def _add(self, finding: Damage) -> None:
        if (finding.file, finding.offset) not in self._seen:
            self._seen.add((finding.file, finding.offset))
            self._damage.append(finding)

    # Writing

    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Store all messages. With `keep_positions` the batch's own offsets are taken (they must grow; gaps stay).

        Should the disk fail in the middle of an append that spans segments, what was written before stays stored,
        but nothing of it is acknowledged.
        """
        self._use()
        with self.lock:
            self.check_writable()
            return appending.append(self, batch, keep_positions)

    def append_frames(self, frames: Frames, *, keep_positions: bool = False) -> Ticket:
        """Store whole batches as they are: checked, given offsets and leader epoch, not decoded."""
        self._use()
        with self.lock:
            self.check_writable()
            return appending.append_frames(self, frames, keep_positions)

    def roll(self, base: int | None = None) -> None:
        """End the active segment and begin the next, at the end offset or (leaving a hole) at `base` above it."""
        with self.lock:
            self.check_writable()
            appending.roll(self, max(self.next, base or 0))

    def remove(self, positions: Sequence[int]) -> Ticket:
        """Refused: this layout deletes from the front only."""
        raise BadInput(f"log {self.name}: Kafka's layout cannot remove single messages; use drop_front")

    def drop_front(self, seq: int) -> int:
        """Move the log's start (as DeleteRecords does) and delete the segments that lie wholly below."""
        with self.lock:
            self.check_writable()
            return retention.drop_front(self, seq)

    def apply_retention(self) -> int:
        """Delete whole segments by retention.bytes and retention.ms; returns how many went."""
        with self.lock:
            self.check_writable()
            return retention.apply(self)

    # Life

    def publish(self, base: int, size: int, following: int) -> None:
        """Tell readers in other processes how far the log is durable."""
        if isinstance(self._marks, Marks):
            self._marks.publish(self.name, (base, size, following))

    def _follow(self) -> None:
        """A reader beside a writer of ours: take up what became durable since."""
        if self.durable is None or not isinstance(self._marks, MarksBeside):
            return
        mark = self._marks.of(self.name)
        if mark is None or mark[2] <= self.next:
            return
        with self.lock:
            before, kept = self.durable[0], {segment.base: segment for segment in self.segments}
            if mark[0] != before:
                listed = list_segments(self.disk, self.directory)
                self.segments = tuple(kept.get(segment.base, segment) for segment in listed)
            for segment in self.segments:
                if segment.base >= before:
                    segment.summary = segment.reader = None
            self.durable, self.next = mark, mark[2]

    def _use(self) -> None:
        self._check_open()
        self._follow()
        if self._files is not None:
            self._files.use(self)

    def park(self) -> None:
        """Give the descriptors up until the log is used again; synced first."""
        if self.writer is not None and self.commits.durable < self.mark:
            self.commit()
        with self.lock:
            for segment in self.segments:
                segment.reader = None
            # Appended to meanwhile: then it is in use again.
            if self.writer is not None and self.commits.durable >= self.mark:
                self.writer.release_files()

    def commit(self) -> None:
        """Everything appended so far is on disk."""
        self.commits.commit(self.mark)

    def acknowledge(self, mark: int) -> None:
        """On disk in mode `sync`; in mode `interval` written is enough."""
        if self.durability == "sync":
            self.commits.commit(mark)
        else:
            self.check_writable()

    def tick(self, now_ns: int, sync_every_ns: int) -> None:
        """What time brings: interval syncs and files that were deleted a while ago."""
        if self._closed or self.read_only:
            return
        due = min(sync_every_ns, self.options.flush_ms * NS_PER_MS)
        if self.unsynced_messages and now_ns - self.unsynced_since_ns >= due:
            self.commit()
        with self.lock:
            retention.unlink_due(self, now_ns)

    def check_writable(self) -> None:
        """Raise unless the log may be changed now."""
        self._check_open()
        if self.read_only:
            raise ReadOnly(f"log {self.name} was opened for reading; open the volume with mode='rw'")
        if self.commits.poisoned is not None:
            self.commits.commit(self.mark + 1)  # raises, with the reason

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"log {self.name} was closed; open it again")

    def close(self) -> None:
        """Everything synced, the index closed, a producer snapshot at the end."""
        with self.lock:
            if self._closed:
                return
            try:
                if not self.read_only:
                    self.check_writable()
                    appending.finish(self)
            finally:
                self._closed = True
                self.writer = None
                if self._files is not None:
                    self._files.forget(self)
                for segment in self.segments:
                    segment.reader = None
