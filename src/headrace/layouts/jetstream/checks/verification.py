"""`verify`: is everything in this directory what it should be?

    every block      each record's hash and boundaries, order of sequences and times, gaps
    the indexes      index.db and N.idx against the blocks: their own hash, counts, sums, what they know and we miss
    the metadata     meta.inf against meta.sum, of streams and consumers; o.dat: hash, plausibility
    the sidecars     guards that are there

Damage is what is not as it was written. What a killed server leaves behind normally (an older index, an
unfinished purge) is a note; what could not be read is a problem. Nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.errors import DiskFault
from headrace.layouts.base import Damage
from headrace.layouts.checks import CheckPlan, CheckRow, CheckTask, joined
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.checks.audit import Indexes, audit_consumers, audit_evidence, audit_indexes
from headrace.layouts.jetstream.checks.inspector import BlockFacts, Survey
from headrace.layouts.jetstream.checks.plan import Plan, make_plan, run_plan
from headrace.layouts.jetstream.checks.report import StoreReport
from headrace.layouts.layout import THREADS, Look
from headrace.layouts.places import disk_at
from headrace.layouts.report import Extent, FileRow, LogReport
from headrace.units import format_size, plural


@dataclass(slots=True)
class StreamReport(LogReport):
    """One stream: its blocks one by one, and the sums."""

    name: str
    directory: str
    era: str
    blocks: list[BlockFacts]
    records: int = 0
    tombstones: int = 0
    placeholders: int = 0
    file_bytes: int = 0
    first_record: int | None = None
    last_record: int | None = None
    missing: int = 0
    """Sequences between first and last without a record: legal, removed messages leave them."""
    in_time_order: bool = True
    guarded: int = 0
    consumers: int = 0
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])

    def extent(self) -> Extent:
        following = None if self.last_record is None else self.last_record + 1
        return Extent(self.first_record, following, self.records, self.file_bytes)

    @property
    def findings(self) -> list[Damage]:
        return self.damage

    def file_rows(self) -> Sequence[FileRow]:
        return [
            FileRow(
                block.file,
                "block",
                block.file_bytes,
                block.messages,
                block.first_seq,
                None if block.last_seq is None else block.last_seq + 1,
                block.first_time_ns,
                block.last_time_ns,
                newest=block.newest,
                damage=list(block.damage),
            )
            for block in self.blocks
        ]

    @property
    def summary(self) -> str:
        sequences = f"{self.first_record}..{self.last_record}" if self.first_record is not None else "none"
        missing = f" ({plural(self.missing, 'sequence')} missing between)" if self.missing else ""
        return (
            f"{plural(self.records, 'record')}, sequences {sequences}{missing}, "
            f"{plural(self.tombstones, 'tombstone')}, {plural(self.placeholders, 'placeholder')}, "
            f"{format_size(self.file_bytes)} in {plural(len(self.blocks), 'block')} ({self.guarded} guarded), "
            f"{plural(self.consumers, 'consumer')}"
        )

    @property
    def unreadable(self) -> frozenset[int]:
        """Blocks that could not be read at all."""
        return frozenset(block.number for block in self.blocks if block.problem is not None)

    def check_row(self) -> CheckRow:
        """What was found beside the blocks: indexes, metadata, consumers."""
        of_blocks = {each for block in self.blocks for each in block.damage}
        unread = {block.problem for block in self.blocks}
        return CheckRow(
            self.name,
            self.directory,
            "stream",
            *self.extent(),
            tuple(each for each in self.damage if each not in of_blocks),
            joined([each for each in self.problems if each not in unread]),
        )


@dataclass(slots=True, repr=False)
class VerifyReport(StoreReport):
    """What `verify` found in a JetStream store, stream by stream and block by block."""

    streams: list[StreamReport] = field(default_factory=lambda: [])

    @property
    def logs(self) -> Sequence[StreamReport]:
        return self.streams

    @property
    def file_bytes(self) -> int:
        return sum(stream.file_bytes for stream in self.streams)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found = self.plain("streams", "seconds")
        for stream, each in zip(self.streams, found["streams"], strict=True):
            for name, ours in (
                ("messages", "records"),
                ("first_seq", "first_record"),
                ("last_seq", "last_record"),
            ):
                each[name] = each.pop(ours)
            each["sound"] = stream.sound
        return found


def verify(request: Look) -> VerifyReport:
    """Check a store, or one stream of it. Raises only when nothing can be said: no store, no key."""
    plan = make_plan(request.path, stream=request.log, key=request.key, disk=request.disk)
    facts = run_plan(plan, disk=request.disk, threads=request.threads, progress=request.progress)
    return report_on(plan, facts, disk=request.disk, threads=request.threads)


class StoreCheckPlan(CheckPlan):
    """Block by block; the report compares indexes, metadata and consumers with them."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self.pieces = plan, plan.tasks
        self.file_bytes = plan.file_bytes

    def report(self, found: Mapping[int, Any]) -> VerifyReport:
        facts: dict[str, list[BlockFacts]] = {name: [] for name in self._plan.streams}
        for number, block in found.items():
            facts[self._plan.tasks[number].log].append(block)
        for each in facts.values():
            each.sort(key=lambda block: block.number)
        return report_on(self._plan, facts, threads=THREADS)


@dataclass(frozen=True, slots=True)
class StreamCheck(CheckTask):
    """The indexes, metadata and consumers of one stream, compared with its blocks."""

    path: str
    log: str
    weight: int
    key: str | None = field(default=None, repr=False)

    @property
    def size_bytes(self) -> int:
        return self.weight

    def rows(self) -> Iterator[CheckRow]:
        report = verify(Look(path=self.path, log=self.log, key=self.key, full=True))
        for stream in report.streams:
            yield stream.check_row()


def check_tasks(path: str, logs: Sequence[str] | None, key: str | None) -> list[CheckTask]:
    """A task per block, and one per stream."""
    plan = make_plan(path, key=key)
    streams = {name: found for name, found in plan.streams.items() if logs is None or name in logs}
    sizes = {name: sum(each.file_bytes for each in found.blocks) for name, found in streams.items()}
    return [
        *(StreamCheck(path, name, size, key) for name, size in sizes.items()),
        *(task for task in plan.tasks if task.log in streams),
    ]


def report_on(
    plan: Plan, facts: dict[str, list[BlockFacts]], *, threads: int, disk: Disk | None = None
) -> VerifyReport:
    """The report from blocks that were checked already, here or elsewhere."""
    on = disk or disk_at(plan.path)
    streams = [
        _stream_report(on, found, plan.indexes[name], facts[name], threads)
        for name, found in plan.streams.items()
    ]
    return VerifyReport(plan.path, streams=streams)


def _stream_report(
    disk: Disk, found: Survey, indexes: Indexes, blocks: list[BlockFacts], threads: int
) -> StreamReport:
    held = [block for block in blocks if block.messages]
    report = StreamReport(found.name, found.directory, found.era, blocks)
    report.records = sum(block.messages for block in blocks)
    report.tombstones = sum(block.tombstones for block in blocks)
    report.placeholders = sum(block.placeholders for block in blocks)
    report.file_bytes = sum(block.file_bytes for block in blocks)
    report.guarded = sum(block.guarded for block in blocks)
    report.first_record = min((block.first_seq or 0 for block in held), default=None)
    report.last_record = max((block.last_seq or 0 for block in held), default=None)
    report.missing = sum(block.missing for block in held) + _between(held)
    report.in_time_order = _in_time_order(held)
    report.damage = list(found.damage)
    report.notes = list(found.notes)
    _note_order(report, held)
    for block in blocks:
        report.damage += block.damage
        if block.problem is not None:
            if found.writer is not None and "No such file" in block.problem:
                report.notes.append(f"block {block.number} was removed by its writer in the meantime")
            else:
                report.problems.append(block.problem)
    try:
        damage, notes = audit_indexes(disk, found, indexes, blocks, threads)
        audit, of_consumers, more = audit_consumers(disk, found)
        report.consumers = len(audit.consumers)
        seen = audit_evidence(disk, found, indexes, blocks, audit.max_stream_seq)
        named = {each.file for each in seen.damage}
        report.damage += [each for each in damage if each.kind != "missing" or each.file not in named]
        report.damage += of_consumers + seen.damage
        report.notes += notes + more + seen.notes
    except (DiskFault, LookupError) as error:
        report.problems.append(str(error))
    return report


def _between(held: list[BlockFacts]) -> int:
    """Sequences missing between one block and the next."""
    return sum(
        max((after.first_seq or 0) - (before.last_seq or 0) - 1, 0) for before, after in pairwise(held)
    )


def _in_time_order(held: list[BlockFacts]) -> bool:
    steps = ((before.last_time_ns or 0) <= (after.first_time_ns or 0) for before, after in pairwise(held))
    return all(block.in_time_order for block in held) and all(steps)


def _note_order(report: StreamReport, held: list[BlockFacts]) -> None:
    for before, after in pairwise(held):
        if (after.first_seq or 0) <= (before.last_seq or 0):
            report.notes.append(f"blocks {before.number} and {after.number} overlap: the newer record counts")
    if not report.in_time_order:
        report.notes.append("stored times go backwards: the writer's clock was set back")
