"""`verify`: is everything in this directory what it should be?

    every block      each record's hash and boundaries, order of sequences and times, gaps
    the indexes      index.db and N.idx against the blocks: their own hash, counts, sums, what they know and we miss
    the metadata     meta.inf against meta.sum, of streams and consumers; o.dat: hash, plausibility
    the sidecars     guards that are there

Damage is what is not as it was written. What a killed server leaves behind normally (an older index, an
unfinished purge) is a note; what could not be read is a problem. Nothing is ever written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace._core import Disk
from headrace.errors import DiskFault
from headrace.layouts.base import Damage
from headrace.layouts.jetstream.audit import Indexes, audit_consumers, audit_indexes
from headrace.layouts.jetstream.inspector import BlockFacts, Survey
from headrace.layouts.places import disk_at
from headrace.ops.plain import plain
from headrace.ops.plan import PRODUCTS, THREADS, Plan, Progress, make_plan, run_plan


@dataclass(slots=True)
class StreamReport:
    """One stream: its blocks one by one, and the sums."""

    name: str
    directory: str
    era: str
    blocks: list[BlockFacts]
    messages: int = 0
    tombstones: int = 0
    placeholders: int = 0
    file_bytes: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    missing: int = 0
    """Sequences between first and last without a record: legal, removed messages leave them."""
    in_time_order: bool = True
    guarded: int = 0
    consumers: int = 0
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])

    @property
    def sound(self) -> bool:
        return not self.damage and not self.problems

    @property
    def unreadable(self) -> frozenset[int]:
        """Blocks that could not be read at all."""
        return frozenset(block.number for block in self.blocks if block.problem is not None)


@dataclass(slots=True)
class VerifyReport:
    """What `verify` found. `sound` means: everything was read and nothing is damaged."""

    path: str
    layout: str
    product: str
    streams: list[StreamReport]
    seconds: float = 0.0

    @property
    def damage(self) -> list[Damage]:
        """Every finding, of all streams."""
        return [each for stream in self.streams for each in stream.damage]

    @property
    def notes(self) -> list[str]:
        """Worth knowing, but nothing is wrong."""
        return [f"{stream.name}: {note}" for stream in self.streams for note in stream.notes]

    @property
    def problems(self) -> list[str]:
        """What could not be checked, and why."""
        return [f"{stream.name}: {problem}" for stream in self.streams for problem in stream.problems]

    @property
    def sound(self) -> bool:
        return all(stream.sound for stream in self.streams)

    @property
    def messages(self) -> int:
        return sum(stream.messages for stream in self.streams)

    @property
    def file_bytes(self) -> int:
        return sum(stream.file_bytes for stream in self.streams)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found = plain(self)
        found["sound"] = self.sound
        for stream, each in zip(self.streams, found["streams"], strict=True):
            each["sound"] = stream.sound
        return found

    def __str__(self) -> str:
        lines = [f"{self.path}: {'sound' if self.sound else 'not sound'}"]
        lines += [describe(each) for each in self.damage]
        return "\n".join(lines + [f"could not be checked: {problem}" for problem in self.problems])


def describe(damage: Damage) -> str:
    """One finding in one line: file, bytes (both ends included), kind, sequences, detail."""
    place = f"bytes {damage.offset}..{damage.offset + damage.length - 1}" if damage.length else "as a whole"
    seqs = ""
    if damage.first_seq is not None and damage.next_seq is not None and damage.next_seq > damage.first_seq:
        last = damage.next_seq - 1
        seqs = (
            f", sequence {damage.first_seq}"
            if last == damage.first_seq
            else f", sequences {damage.first_seq}..{last}"
        )
    return f"{damage.file}: {place}: {damage.kind}{seqs}: {damage.detail}"


def verify(
    path: str,
    *,
    stream: str | None = None,
    key: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> VerifyReport:
    """Check a store, or one stream of it. Raises only when nothing can be said: no store, no key."""
    started = time.monotonic()
    plan = make_plan(path, stream=stream, key=key, disk=disk)
    facts = run_plan(plan, disk=disk, threads=threads, progress=progress)
    report = report_on(plan, facts, disk=disk, threads=threads)
    report.seconds = round(time.monotonic() - started, 3)
    return report


def report_on(
    plan: Plan, facts: dict[str, list[BlockFacts]], *, disk: Disk | None = None, threads: int = THREADS
) -> VerifyReport:
    """The report from blocks that were checked already, here or elsewhere."""
    on = disk or disk_at(plan.path)
    streams = [
        _stream_report(on, found, plan.indexes[name], facts[name], threads)
        for name, found in plan.streams.items()
    ]
    return VerifyReport(plan.path, plan.layout, PRODUCTS[plan.layout], streams)


def _stream_report(
    disk: Disk, found: Survey, indexes: Indexes, blocks: list[BlockFacts], threads: int
) -> StreamReport:
    held = [block for block in blocks if block.messages]
    report = StreamReport(found.name, found.directory, found.era, blocks)
    report.messages = sum(block.messages for block in blocks)
    report.tombstones = sum(block.tombstones for block in blocks)
    report.placeholders = sum(block.placeholders for block in blocks)
    report.file_bytes = sum(block.file_bytes for block in blocks)
    report.guarded = sum(block.guarded for block in blocks)
    report.first_seq = min((block.first_seq or 0 for block in held), default=None)
    report.last_seq = max((block.last_seq or 0 for block in held), default=None)
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
        report.damage += damage
        report.notes += notes
        seen = indexes.index.told["last"] if indexes.index is not None else 0
        last = max(report.last_seq or 0, seen, *(each.expected.last for each in indexes.by_block.values()), 0)
        consumers, damage, notes = audit_consumers(disk, found, last)
        report.consumers = len(consumers)
        report.damage += damage
        report.notes += notes
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
