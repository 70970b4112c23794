"""The segments of a partition: which files belong together, what each holds, and how to look into one.

    base 0            base 368770                base 737338
    [ .log .index .timeindex ][ .log … ][ .log … ]      an offset lies in the last segment whose base is not above it

The base is a lower bound: after compaction, or when something was taken out, the first message may be higher.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.errors import DiskFault
from headrace.layouts.base import Damage
from headrace.layouts.directories import misplaced_files
from headrace.layouts.kafka._kernels import Disk, KafkaProducers, KafkaReader, KafkaSurvey, kafka_survey
from headrace.layouts.kafka.names import (
    ANY_LOG,
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIMES,
    TXN,
    parse_file,
)
from headrace.layouts.kafka.producer_files import Aborted, read_aborted
from headrace.layouts.marks import Mark
from headrace.layouts.shortcuts import is_there, problem_of, read_shortcut

TIME_ENTRY = 12
INDEX_ENTRY = 8
INDEX_BYTES_MAX = 1 << 30


@dataclass(slots=True)
class Summary:
    """What a segment holds, once somebody has looked at every batch."""

    messages: int = 0
    control: int = 0
    batches: int = 0
    first: int | None = None
    last: int = -1
    first_time_ns: int | None = None
    max_time_ms: int = -1
    first_batch_time_ms: int = -1


@dataclass(slots=True)
class Segment:
    """One segment. `size` counts whole batches; bytes after it are not the log's."""

    base: int
    directory: str
    size: int
    suffix: str = ""
    """".swap" while a cleaner's result waits to take its place (readers only)."""
    summary: Summary | None = None
    reader: KafkaReader | None = field(default=None, repr=False)
    unused: list[Damage] = field(default_factory=lambda: [], repr=False)
    """Indexes that are there and cannot be read."""
    damaged: bool = False
    """Damage was met in it, so its bytes and counts were taken with tolerance."""

    @property
    def stem(self) -> str:
        return f"{self.directory}/{self.base:020d}"

    @property
    def log_path(self) -> str:
        return f"{self.stem}{LOG}{self.suffix}"

    def path(self, ending: str) -> str:
        return f"{self.stem}{ending}{self.suffix}"

    def open(
        self, disk: Disk, topic: str, ceiling: int | None, inflated_max: int, *, active: bool = False
    ) -> KafkaReader:
        """The reader, made once. The indexes of the active segment still grow and are not mapped."""
        if self.reader is None:
            index, times = self.path(INDEX), self.path(TIMES)
            args = (disk, self.log_path, self.base, ceiling, topic, inflated_max)
            if not active:
                problems = (problem_of(disk, path, INDEX_BYTES_MAX) for path in (index, times))
                self.unused = [problem for problem in problems if problem is not None]
            if active or self.unused or not self.has_index(disk):
                self.reader = KafkaReader(*args)
            else:
                self.reader = KafkaReader(*args, index, times)
        return self.reader

    def has_index(self, disk: Disk) -> bool:
        """Whether both indexes are there."""
        return is_there(disk, self.path(INDEX)) and is_there(disk, self.path(TIMES))

    def survey(
        self,
        disk: Disk,
        ceiling: int | None,
        interval: int,
        producers: KafkaProducers | None = None,
        *,
        start: int = 0,
        deep: bool = False,
        inflated_max: int = 128 << 20,
        limit: int | None = None,
    ) -> KafkaSurvey:
        """Every batch from a position on (up to `limit` bytes), checksums included."""
        return kafka_survey(
            disk,
            self.log_path,
            self.base,
            ceiling,
            interval,
            producers or KafkaProducers([]),
            start,
            None,
            deep,
            inflated_max,
            read_shortcut(disk, self.path(INDEX), INDEX_BYTES_MAX, []),
            limit,
        )

    def largest_time_ms(self, disk: Disk) -> int | None:
        """From the last entry of `.timeindex`; None when it does not say."""
        if self.summary is not None:
            return self.summary.max_time_ms
        path = self.path(TIMES)
        try:
            entry = disk.entry(path)
            if entry is None or entry.size < TIME_ENTRY:
                return None
            last = disk.open(path).read_at(entry.size // TIME_ENTRY * TIME_ENTRY - TIME_ENTRY, TIME_ENTRY)
        except DiskFault:
            return None
        time = int.from_bytes(last[:8], "big", signed=True)
        return time if time > 0 else None

    def aborted(self, disk: Disk) -> list[Aborted]:
        """Transactions whose abort marker lies in this segment."""
        return read_aborted(disk, self.path(TXN))


def summary_of(found: KafkaSurvey) -> Summary:
    """The counts of a survey that began at the segment's beginning."""
    return Summary(
        found.messages,
        found.control_records,
        found.batches,
        found.first,
        found.last,
        found.first_time_ns,
        found.max_time_ms,
        found.first_batch_time_ms,
    )


def list_segments(disk: Disk, directory: str) -> list[Segment]:
    """The segments as a reader sees them. A cleaner's `.swap` stands in where the old file is gone already."""
    logs: dict[int, Segment] = {}
    for name, is_dir, length in disk.list(directory):
        parsed = parse_file(name)
        if is_dir or parsed is None or parsed[1] != LOG or parsed[2] in (DELETED, CLEANED):
            continue
        base, _, suffix = parsed
        if suffix != SWAP or base not in logs:
            logs[base] = Segment(base, directory, length, suffix)
    return [logs[base] for base in sorted(logs)]


def misplaced(disk: Disk, directory: str) -> list[Damage]:
    """What is named as a segment and cannot be one."""
    return misplaced_files(disk, directory, ANY_LOG, lambda name: parse_file(name) is not None, "segment")


def durable_bytes(mark: Mark | None, base: int) -> int | None:
    """How many bytes of a segment are durable by the writer's mark; None: all that are there."""
    if mark is None or base < mark[0]:
        return None
    return mark[1] if base == mark[0] else 0


def ceiling_of(segments: Sequence[Segment], at: int) -> int | None:
    """The base of the next segment: offsets of this one lie below."""
    return segments[at + 1].base if at + 1 < len(segments) else None


def floor_of(segments: Sequence[Segment], offset: int) -> int:
    """Binary search: the last segment whose base is not above the offset (the first, if all are)."""
    return max(bisect.bisect_right(segments, offset, key=lambda segment: segment.base) - 1, 0)
