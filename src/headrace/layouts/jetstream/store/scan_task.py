"""Reading one block by itself: what Spark's tasks and parallel checks are made of.

The planner knows which messages are gone (tombstones may lie in other blocks) and says so in the task; the
task then needs nothing but the block's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage, KnownRange, Predicate, ScanTask
from headrace.layouts.jetstream._kernels import Batch, Disk, js_block_columns, js_scan_block
from headrace.layouts.places import disk_at, is_remote

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.layouts.jetstream.store.store import FileStreamStore

ROWS_AT_ONCE = 65_536
HEADER_CODEC = "nats"
Finding = tuple[str, int, int, int | None, int | None, str]


@dataclass(frozen=True, slots=True)
class BlockTask(ScanTask):
    """One block of a stream."""

    log: str
    stream: str
    number: int
    path: str
    guard_path: str
    first: int
    next: int
    size_bytes: int
    dead: tuple[int, ...] = ()
    cipher: tuple[str, bytes, bytes] | None = field(default=None, repr=False)
    messages: int = -1

    def known_range(self, predicate: Predicate) -> KnownRange | None:
        """Where the index accounts for every sequence, and nothing is asked that only the messages can show."""
        want = predicate
        if self.messages != self.next - self.first - len(self.dead):
            return None
        if want.subjects or want.since_ns is not None or want.until_ns is not None:
            return None
        first = max(self.first, want.first or 0)
        following = max(min(self.next, want.next) if want.next is not None else self.next, first)
        return KnownRange(first, following, self.dead)

    def header_codec(self) -> str:
        return HEADER_CODEC

    def own_column(self, name: str, batch: Batch) -> Any:
        from headrace.layouts.own_columns import header, same

        if name == "stream":
            return same(self.stream, batch)
        return header("Nats-Msg-Id", batch) if name == "msg_id" else None

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The live messages of the block that match."""
        want = predicate or Predicate()
        disk = disk_at(self.path)
        scan = js_scan_block(disk, self.path, self.stream, self.number, self._guard(disk), self.cipher)
        if damage is not None:
            damage += self._damage(scan.findings, scan.plain_bytes == scan.file_bytes)
        live = scan.batch.filter(*self._positions(want), want.since_ns, want.until_ns, list(want.subjects))
        live = live.without(self.dead)
        for start in range(0, len(live), ROWS_AT_ONCE):
            yield live.slice(start, min(start + ROWS_AT_ONCE, len(live)))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        damage: list[Damage] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """In one pass over the block where nothing but positions decides; else as every task does it."""
        want = predicate or Predicate()
        if want.subjects or want.since_ns is not None or want.until_ns is not None:
            # A class with slots is made twice: the plain `super()` would name the other one.
            yield from ScanTask.scan(self, columns, want, damage)
            return
        from headrace.arrow import COLUMNS, from_buffers, made_by_core

        disk, wanted = disk_at(self.path), list(columns or COLUMNS)
        count, made, found, file_bytes, plain_bytes = js_block_columns(
            disk,
            self.path,
            self.stream,
            self.number,
            self._guard(disk),
            self.cipher,
            *self._positions(want),
            self.dead,
            made_by_core(wanted),
        )
        if damage is not None:
            damage += self._damage(found, plain_bytes == file_bytes)
        whole = from_buffers(count, made, self.log, wanted)
        for start in range(0, count, ROWS_AT_ONCE):
            yield whole.slice(start, ROWS_AT_ONCE)

    def _positions(self, want: Predicate) -> tuple[int, int]:
        """`[first, next)` of what is asked for."""
        following = min(self.next, want.next) if want.next is not None else self.next
        return max(self.first, want.first or 0), following

    def _damage(self, findings: Sequence[Finding], as_written: bool) -> list[Damage]:
        """What lies in the planned part: behind it somebody may be writing now. (Offsets in a packed block show nothing.)"""
        return [
            Damage(self.path, offset, length, kind, detail, begin, after)
            for kind, offset, length, begin, after, detail in findings
            if not as_written or offset < self.size_bytes
        ]

    def _guard(self, disk: Disk) -> bytes | None:
        try:
            return disk.read(self.guard_path) if self.guard_path else None
        except HeadraceError:
            return None


def _guard_path(store: FileStreamStore, number: int) -> str:
    """Empty where the directory was listed anyway and has none: a worker's request would be in vain."""
    path = store.sidecar.guard_path(number)
    return path if not is_remote(path) or store.disk.entry(path) is not None else ""


def plan_blocks(store: FileStreamStore, want: Predicate) -> list[ScanTask]:
    """A task for every block that may hold a match."""
    tasks: list[ScanTask] = []
    for block in store.log.blocks():
        number = block.number
        after = want.first is not None and block.last_seq < want.first
        before = want.next is not None and block.first_seq >= want.next
        older = want.since_ns is not None and block.last_time_ns < want.since_ns
        newer = want.until_ns is not None and block.first_time_ns >= want.until_ns
        if not block.messages or after or before or older or newer:
            continue
        tasks.append(
            BlockTask(
                log=store.name,
                stream=store.name,
                number=number,
                path=f"{store.msgs_dir}/{number}.blk",
                guard_path=_guard_path(store, number),
                first=block.first_seq,
                next=block.last_seq + 1,
                size_bytes=block.file_bytes,
                dead=tuple(store.log.deleted_of(number)),
                cipher=store.log.cipher_of(number),
                messages=block.messages,
            )
        )
    return tasks
