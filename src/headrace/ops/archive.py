"""`archive`: a store of any layout → Parquet files with a manifest; only what is new, exactly once.

    plan     for each log: from where the archive ends, groups of sealed blocks (driver; reads indexes only)
    work     write_group, by an engine: each worker writes its files into `staging`
    commit   groups in order, as far as they are complete, every few seconds: one replacement of the manifest

Killed at any moment, the next run goes on after the last commit; run twice, the second has nothing to do. The newest block
of a log still grows, so that it is left for later unless asked for (`newest`). What retention took before it was archived
is an error that names it (`lost_ok` goes on and notes it in the manifest).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import BadInput
from headrace.layouts.archives import (
    CODECS,
    AddedRange,
    ArchivedFile,
    ArchivedLog,
    ArchiveGroup,
    Archives,
    Ledger,
    WriteOptions,
    WrittenGroup,
)
from headrace.layouts.base import Log, Volume
from headrace.layouts.places import only_read
from headrace.layouts.plain import plain
from headrace.layouts.registry import ARCHIVE, JETSTREAM, layout_at, layout_named, open_volume
from headrace.layouts.unread import Unread
from headrace.ops.engines import Done, OnProgress, Threads, WorkEngine
from headrace.ops.names import chosen
from headrace.units import parse_time_ns

TARGET_BYTES = 64 << 20
COMMIT_EVERY_S = 5.0
SERVER = "server"

Released = Callable[[str, int, int], None]
"""Called with (log, first, next) when that range is committed: retention may let go of it."""


@dataclass(slots=True)
class LogArchived:
    """One log: the range of this run, and what was left."""

    name: str
    id: str
    first: int
    next: int
    rows: int = 0
    files: int = 0
    left: int = 0
    """Positions of the newest block, left for later."""
    lost: list[tuple[int, int]] = field(default_factory=lambda: [])


@dataclass(slots=True)
class ArchiveResult:
    """What a run has added. `rows_all` counts the whole archive."""

    source: str
    target: str
    format: str
    engine: str
    logs: list[LogArchived]
    blocks: int = 0
    rows: int = 0
    rows_all: int = 0
    files: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    commits: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    groups: list[tuple[str, int, int, int]] = field(default_factory=lambda: [])
    """The plan of a dry run: log, first, next, bytes."""
    unread: list[Unread] = field(default_factory=lambda: [])
    """What the source holds and is not read."""

    @property
    def left_out(self) -> list[Unread]:
        """What may hold messages, and is not read."""
        return [place for place in self.unread if place.may_hold_messages]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found: dict[str, Any] = plain(self)
        if not self.dry_run:
            del found["groups"]
        return found


def archives() -> Archives:
    """What writes Parquet files, for every format."""
    return layout_named(ARCHIVE).archives()


def write_group(group: ArchiveGroup) -> WrittenGroup:
    """In a worker."""
    return group.write()


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The options of a run."""

    logs: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    compression: str = "auto"
    target_bytes: int = TARGET_BYTES
    newest: bool = False
    until_seq: int | None = None
    lost_ok: bool = False
    format: str = "parquet"
    key: str | None = None

    def check(self) -> None:
        """BadInput for what cannot be."""
        if self.compression not in CODECS:
            raise BadInput(f"compression {self.compression!r}; known are: {', '.join(CODECS)}")
        if self.target_bytes < 1:
            raise BadInput(f"target size {self.target_bytes}: at least 1 byte")
        archives().division(self.by)

    def write_options(self, place: str) -> WriteOptions:
        """For files that go to a directory."""
        end = None if self.until_seq is None else self.until_seq + 1
        return WriteOptions(
            place=place,
            target_bytes=self.target_bytes,
            by=self.by,
            compression=self.compression,
            end=end,
        )


def archive(
    source: str,
    target: str,
    options: ArchiveOptions | None = None,
    *,
    engine: WorkEngine | None = None,
    volume: Volume | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
    released: Released | None = None,
) -> ArchiveResult:
    """Add everything new of the store `source` (or of `volume`, already opened) to the archive `target`."""
    options, engine = options or ArchiveOptions(), engine or Threads()
    options.check()
    started = time.monotonic()
    only_read(target, "an archive's target")
    own = volume is None
    opened = open_volume(source, key=options.key) if volume is None else volume
    try:
        result = ArchiveResult(source, target, options.format, engine.name, [], dry_run=dry_run)
        result.unread = layout_at(source).unread_at(source) if own and not options.logs else []
        if dry_run:
            known = _committed(target, options)
            plan = _plan(opened, options, "", known, result)
            result.groups = [(group.log, group.first, group.next, group.size_bytes) for _, group in plan]
            result.blocks = len(plan)
        else:
            ledger = open_ledger(target, _origin(opened), options)
            try:
                plan = _plan(opened, options, ledger.place, ledger.log, result)
                run_groups(plan, ledger, engine, result, progress, released)
                result.rows_all = ledger.rows
            finally:
                ledger.close()
        result.seconds = round(time.monotonic() - started, 3)
        return result
    finally:
        if own:
            opened.close()


def _origin(volume: Volume) -> str:
    """The layout that the messages have: a server's streams are JetStream's."""
    return JETSTREAM if volume.layout == SERVER else volume.layout


def _incarnation(volume: Volume, log: Log) -> str:
    """The same whether a stream is read from its files or from its server."""
    return str(parse_time_ns(log.incarnation)) if volume.layout == SERVER else log.incarnation


def open_ledger(target: str, layout: str, options: ArchiveOptions) -> Ledger:
    """By the format that is asked for."""
    if options.format == "parquet":
        return archives().ledger(target, layout, options.by)
    if options.format == "delta":
        from headrace.ops.lake import DeltaLedger

        return DeltaLedger(target, archives().division(options.by))
    if options.format == "iceberg":
        from headrace.ops.lake import IcebergLedger

        return IcebergLedger(target, archives().division(options.by))
    raise BadInput(f"format {options.format!r}; known are: parquet, delta, iceberg")


def _committed(target: str, options: ArchiveOptions) -> Callable[[str, str], ArchivedLog]:
    """For a plan only: nothing is locked or made."""
    logs = archives().committed(target) if options.format == "parquet" else {}
    return lambda name, incarnation: logs.get(name) or ArchivedLog(id=incarnation)


Planned = tuple[ArchivedLog, ArchiveGroup]


def _plan(
    volume: Volume,
    options: ArchiveOptions,
    place: str,
    known: Callable[[str, str], ArchivedLog],
    result: ArchiveResult,
) -> list[Planned]:
    plan: list[Planned] = []
    for name in chosen(volume, options.logs):
        log = volume.open(name)
        entry = known(name, _incarnation(volume, log))
        row, groups = _plan_log(log, entry, options, place)
        plan += [(entry, group) for group in groups]
        result.logs.append(row)
    return plan


def _plan_log(
    log: Log, entry: ArchivedLog, options: ArchiveOptions, place: str
) -> tuple[LogArchived, Sequence[ArchiveGroup]]:
    state = log.state()
    start = entry.next
    row = LogArchived(log.name, entry.id, 0, 0)
    if start is None:
        start = state.first_seq
    elif start < state.first_seq <= state.last_seq + 1:
        row.lost = [(start, state.first_seq)]
        if not options.lost_ok:
            raise BadInput(
                f"log {log.name} no longer holds {start} to {state.first_seq - 1}: retention or a purge took them before they "
                "were archived; --lost-ok goes on without them"
            )
        entry.lost.append((start, state.first_seq))
        start = state.first_seq
    how = options.write_options(place)
    tasks = sorted(log.scan_tasks(), key=lambda task: (task.first, task.next))
    # The newest block still grows. It is complete for this run when the asked end lies in it.
    if tasks and not options.newest and (how.end is None or tasks[-1].next < how.end):
        row.left = max(tasks[-1].next - max(tasks[-1].first, start), 0)
        tasks.pop()
    groups = archives().groups(log.name, tasks, start, how)
    row.first, row.next = start, groups[-1].next if groups else start
    return row, groups


def run_groups(
    plan: list[Planned],
    ledger: Ledger,
    engine: WorkEngine,
    result: ArchiveResult,
    progress: OnProgress | None = None,
    released: Released | None = None,
) -> None:
    """Have all groups written; commit them in order."""
    done = Done(blocks_all=len(plan), bytes_all=sum(group.size_bytes for _, group in plan))
    rows = {row.name: row for row in result.logs}
    waiting: dict[int, WrittenGroup] = {}
    following, last_commit = 0, time.monotonic()

    def commit() -> None:
        nonlocal following, last_commit
        parts: list[AddedRange] = []
        while following in waiting:
            made = waiting.pop(following)
            parts.append(AddedRange(made.log, plan[following][0], made.first, made.next, made.files))
            following += 1
        if parts:
            ledger.commit(parts)
            result.commits += 1
            for part in parts:
                _count(result, rows[part.log], part.files)
                if released is not None:
                    released(part.log, part.first, part.next)
        last_commit = time.monotonic()

    if progress is not None:
        progress(done)
    for number, made in engine.run(write_group, [group for _, group in plan]):
        waiting[number] = made
        done.blocks += 1
        done.rows += made.rows
        done.bytes += made.size_bytes
        result.blocks += 1
        result.bytes_read += made.size_bytes
        if progress is not None:
            progress(done)
        if time.monotonic() - last_commit >= COMMIT_EVERY_S:
            commit()
    commit()


def _count(result: ArchiveResult, row: LogArchived, files: list[ArchivedFile]) -> None:
    added = sum(file.rows for file in files)
    row.rows += added
    row.files += len(files)
    result.rows += added
    result.files += len(files)
    result.bytes_written += sum(file.bytes for file in files)
