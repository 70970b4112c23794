"""Reading one segment by itself, also in another process: its file, the journal, and the store files it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.layouts.base import Damage, Predicate, ScanTask
from headrace.layouts.places import disk_at
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import Batch, RabbitQueue, RabbitStore

if TYPE_CHECKING:
    from headrace.layouts.rabbitmq.log import RabbitLog


@dataclass(frozen=True, slots=True)
class QueueSegmentTask(ScanTask):
    """One segment of a queue."""

    log: str
    vhost_path: str
    directory: str
    number: int
    entries: int
    first: int
    next: int
    size_bytes: int
    store_files: tuple[tuple[str, int], ...]
    newest: bool = False

    def own_column(self, name: str, batch: Batch) -> Any:
        from headrace.layouts.own_columns import common_column, header, kernels, same

        vhost, _, queue = self.log.rpartition("/")
        if name == "vhost":
            return same(vhost or "/", batch)
        if name == "queue":
            return same(queue, batch)
        if name == "exchange":
            return header("amqp-exchange", batch)
        if name == "routing_key":
            return common_column(batch, "subject")
        if name == "persistent":
            return kernels.fill_null(kernels.equal(header("delivery-mode", batch), "2"), False)
        return None

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The unacked messages of the segment that match."""
        want = predicate or Predicate()
        disk = disk_at(self.vhost_path)
        queue = RabbitQueue(self.entries, bytes(16))
        segment, journal = f"{self.directory}/{self.number}.idx", f"{self.directory}/{files.JOURNAL}"
        found: list[Damage] = []
        if disk.entry(segment) is not None:
            findings, _ = queue.load_for_reading(disk, self.directory, self.number)
            found += files.damage_of(segment, findings)
        if disk.entry(journal) is not None:
            # Whoever reads the journal's newest part says what is unsound in it: once for the queue.
            unsound = files.damage_of(
                journal, queue.load_journal(disk.read(journal, files.JOURNAL_BYTES_MAX))
            )
            found += unsound if self.newest else []
        store = RabbitStore(
            disk, f"{self.vhost_path}/{files.PERSISTENT}", f"{self.vhost_path}/{files.TRANSIENT}"
        )
        for kind, number in self.store_files:
            store.scan(kind, number)
        lost = set(queue.reference(store, False))
        position = max(self.first, want.first or 0)
        below = self.next if want.next is None else min(self.next, want.next)
        while position < below:
            batch, position, findings, unread = queue.read(
                disk, self.directory, store, position, 65_536, 64 << 20, below
            )
            found += files.damage_of(self.directory, findings)
            lost.update(unread)
            kept = batch.filter(None, None, want.since_ns, want.until_ns, list(want.subjects))
            if len(kept):
                yield kept
        if damage is not None:
            damage += found + files.missing_of(
                self.directory, sorted(each for each in lost if self.first <= each < below)
            )


def plan_segments(log: RabbitLog, visible: int, want: Predicate) -> list[ScanTask]:
    """A task for every segment that may hold a match."""
    count = log.vhost.entry_count
    tasks: list[QueueSegmentTask] = []
    for number, unacked, size, _ in log.kernel.segments():
        first, following = number * count, min((number + 1) * count, visible)
        outside = (want.first is not None and following <= want.first) or (
            want.next is not None and first >= want.next
        )
        if not unacked or outside or first >= visible:
            continue
        tasks.append(
            QueueSegmentTask(
                log=log.name,
                vhost_path=log.vhost.path,
                directory=log.directory,
                number=number,
                entries=count,
                first=first,
                next=following,
                size_bytes=size,
                store_files=tuple(log.kernel.store_files(number, log.vhost.store.kernel)),
            )
        )
    return [*tasks[:-1], replace(tasks[-1], newest=True)] if tasks else []
