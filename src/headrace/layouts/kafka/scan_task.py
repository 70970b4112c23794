"""Reading one segment by itself: what Spark's tasks and parallel checks are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.layouts.base import Damage, Predicate, ScanTask
from headrace.layouts.kafka._kernels import Batch, KafkaReader
from headrace.layouts.kafka.segments import ceiling_of
from headrace.layouts.places import disk_at

if TYPE_CHECKING:
    from headrace.layouts.kafka.log import KafkaLog

ROWS_AT_ONCE = 65_536
BYTES_AT_ONCE = 8 << 20
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class SegmentTask(ScanTask):
    """One segment of a partition."""

    log: str
    topic: str
    base: int
    ceiling: int | None
    path: str
    indexes: tuple[str, str] | None
    first: int
    next: int
    size_bytes: int
    inflated_max: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    growing: bool = False
    """Somebody is writing at its end now."""

    def own_column(self, name: str, batch: Batch) -> Any:
        from headrace.layouts.kafka.own_columns import own_column

        return own_column(self, name, batch)

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The messages of the segment that match, without transaction markers."""
        want = predicate or Predicate()
        first = max(self.first, want.first or 0)
        following = min(self.next, want.next) if want.next is not None else self.next
        index, times = self.indexes or (None, None)
        reader = KafkaReader(
            *(disk_at(self.path), self.path, self.base, self.ceiling, self.topic, self.inflated_max),
            *(index, times),
        )
        position, last, _ = reader.locate(first)
        ended = False
        while not ended:
            batch, position, last, ended, findings = reader.read(
                *(position, last, first, following, ROWS_AT_ONCE, BYTES_AT_ONCE),
                *(self.size_bytes, False, list(self.aborted)),
            )
            if damage is not None:
                damage += [
                    Damage(self.path, offset, length, kind, detail, begin, after)
                    for kind, offset, length, begin, after, detail in findings
                    if kind != "unsound-tail" or not self.growing
                ]
            if not len(batch):
                continue
            first = batch.last_position + 1
            kept = batch.filter(None, None, want.since_ns, want.until_ns, list(want.subjects))
            if len(kept):
                yield kept


def plan_segments(log: KafkaLog, want: Predicate) -> list[ScanTask]:
    """A task for every segment that may hold a match."""
    segments, tasks, end = log.segments, list[ScanTask](), log.read_end()
    for at, segment in enumerate(segments):
        ceiling = ceiling_of(segments, at)
        first, following = max(segment.base, log.start), min(end, ceiling if ceiling is not None else end)
        size = log.limit(segments, at)
        after = want.first is not None and following <= want.first
        before = want.next is not None and first >= want.next
        largest = None if want.since_ns is None else segment.largest_time_ms(log.disk)
        active = at == len(segments) - 1
        older = largest is not None and not active and (largest + 1) * NS_PER_MS <= (want.since_ns or 0)
        if not size or first >= following or after or before or older:
            continue
        mapped = not active and segment.has_index(log.disk)
        tasks.append(
            SegmentTask(
                log=log.name,
                topic=log.topic,
                base=segment.base,
                ceiling=ceiling,
                path=segment.log_path,
                indexes=(segment.path(".index"), segment.path(".timeindex")) if mapped else None,
                first=first,
                next=following,
                size_bytes=size,
                inflated_max=log.options.decompressed_bytes_max,
                aborted=tuple(log.aborted(first, following)),
                growing=active and log.live_writer,
            )
        )
    return tasks
