"""`replay`: the messages of an archive (or any store) again, into a stream or a directory; each once, in order.

    Target   where they go. `reached` says how far it is by its own evidence, so that a run that was killed, or is run
             again, goes on there; a target without such evidence takes everything and knows repetitions by their ids
    pace     0 at once; 1 with the pauses of the original; 10 ten times as fast

Logs are independent: the engine may run each somewhere else. Inside a log the order is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import BadInput
from headrace.layouts.base import Log, Predicate, Ticket, Volume
from headrace.layouts.places import absolute, only_read
from headrace.layouts.plain import plain
from headrace.layouts.registry import LAYOUTS, layout_named, open_volume
from headrace.ops._kernels import Batch, recast
from headrace.ops.conversion import mapping
from headrace.ops.conversion.target import open_copies
from headrace.ops.engines import Done, OnProgress, Threads, WorkEngine
from headrace.ops.names import chosen

COMMIT_EVERY_BYTES = 64 << 20
NS = 1_000_000_000
LONGEST_PAUSE_S = 0.05
"""Messages nearer to each other than this go together: no clock of a busy machine is finer."""


class ReplayTarget(Protocol):
    """Takes the messages of logs, each log by itself. Can be pickled."""

    @property
    def layout(self) -> str:
        """What it takes."""
        ...

    @property
    def spread(self) -> bool:
        """Whether logs may be written by several processes at once."""
        ...

    @property
    def positions(self) -> bool:
        """Whether the target's own positions are the source's."""
        ...

    def checker(self) -> Callable[[Batch], None] | None:
        """BadInput for a batch that it would not take; None where it takes everything."""
        ...

    def open(self, log: str) -> TargetLog:
        """For one log of the source, by its name here."""
        ...


class TargetLog(Protocol):
    """One log on its way."""

    def reached(self) -> int | None:
        """The first source position that is not there yet, if the target knows."""
        ...

    def write(self, batch: Batch) -> None:
        """More of it; durable after `flush`."""
        ...

    def flush(self) -> tuple[int, int]:
        """Everything is durable; how many were stored, and how many were there already."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """One log to be replayed."""

    source: str
    logs: tuple[str, ...]
    target: ReplayTarget
    pace: float = 0.0
    first: int | None = None
    next: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    subjects: tuple[str, ...] = ()
    subject: str | None = None
    """The subject that all get, perhaps with their own in it (`copy.{subject}`); None: their own, or the usual one of their log."""
    key: str | None = field(default=None, repr=False)

    def wanted(self, first: int | None) -> Predicate:
        """What is replayed of a log, from a position on."""
        return Predicate(first, self.next, self.since_ns, self.until_ns, self.subjects)


@dataclass(slots=True)
class LogReplayed:
    """What became of one log."""

    name: str
    rows: int = 0
    stored: int = 0
    duplicates: int = 0
    began_at: int | None = None


@dataclass(slots=True)
class ReplayResult:
    """What a run has done."""

    source: str
    target: str
    engine: str
    logs: list[LogReplayed]
    rows: int = 0
    stored: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def replay(
    task: ReplayTask,
    name: str,
    *,
    engine: WorkEngine | None = None,
    progress: OnProgress | None = None,
    dry_run: bool = False,
) -> ReplayResult:
    """Replay the logs of a task (all without names); `name` is the target's, for the result."""
    if task.pace < 0:
        raise BadInput(f"pace {task.pace:g}: 0 for at once, 1 for the original one, 10 for ten times that")
    engine, started = engine or Threads(), time.monotonic()
    with open_volume(task.source, key=task.key) as volume:
        names = chosen(volume, task.logs)
        rows = {each: volume.open(each).state().messages for each in names}
        _check_names({each: _named(task.target, volume.origin, each) for each in names})
    result = ReplayResult(task.source, name, engine.name, [], dry_run=dry_run)
    items = [_only(task, (each,)) for each in names] if task.target.spread else [_only(task, tuple(names))]
    if names and task.target.checker() is not None:
        for _ in engine.run(check_logs, items):  # all of it before the first message
            pass
    if dry_run:
        result.logs = [LogReplayed(each, rows[each]) for each in names]
        result.rows = sum(rows.values())
        return result
    done = Done(blocks_all=len(items), bytes_all=0)
    found: dict[int, list[LogReplayed]] = {}
    for number, logs in engine.run(replay_logs, items if names else []):
        found[number] = logs
        done.blocks += 1
        done.rows += sum(log.rows for log in logs)
        if progress is not None:
            progress(done)
    result.logs = [log for number in sorted(found) for log in found[number]]
    result.rows = sum(log.rows for log in result.logs)
    result.stored = sum(log.stored for log in result.logs)
    result.duplicates = sum(log.duplicates for log in result.logs)
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _only(task: ReplayTask, logs: tuple[str, ...]) -> ReplayTask:
    return replace(task, logs=logs)


def _named(target: ReplayTarget, origin: str, log: str) -> str:
    """The log's name at the target: a directory's product has its own rules; in a stream it is a part of the ids."""
    return mapping.default_log(origin, target.layout, log) if target.positions else log


def _check_names(names: dict[str, str]) -> None:
    known: dict[str, str] = {}
    for log, name in names.items():
        other = known.setdefault(name, log)
        if other != log:
            raise BadInput(
                f"{other} and {log} would both be {name}: replay one of them (--log) into another directory"
            )


def replay_logs(task: ReplayTask) -> list[LogReplayed]:
    """In a worker: these logs, one after the other."""
    done: list[LogReplayed] = []
    with open_volume(task.source, key=task.key) as volume:
        for name in task.logs:
            into = task.target.open(_named(task.target, volume.origin, name))
            try:
                done.append(_replay_log(task, volume, volume.open(name), into))
            finally:
                into.close()
    return done


def check_logs(task: ReplayTask) -> None:
    """In a worker: whether the target takes every message of these logs."""
    refuse = task.target.checker()
    if refuse is None:
        return
    with open_volume(task.source, key=task.key) as volume:
        for name in task.logs:
            cast = _caster(volume.origin, task.target.layout, name, task.subject, 0)
            for batch in volume.open(name).batches(task.wanted(task.first)):
                refuse(cast(batch))


def _replay_log(task: ReplayTask, volume: Volume, log: Log, into: TargetLog) -> LogReplayed:
    origin = volume.origin
    shift = _origin_of(task.target.layout) - _origin_of(origin) if task.target.positions else 0
    reached = into.reached()
    reached = None if reached is None else reached - shift
    first = max((each for each in (task.first, reached) if each is not None), default=None)
    row = LogReplayed(log.name, began_at=first)
    cast = _caster(origin, task.target.layout, log.name, task.subject, shift)
    pacer, waiting = _Pacer(task.pace), 0
    for batch in log.batches(task.wanted(first)):
        for part in pacer.parts(batch):
            made = cast(part)
            into.write(made)
            row.rows += len(made)
            waiting += made.payload_bytes
            if waiting >= COMMIT_EVERY_BYTES or pacer.on:
                stored, duplicates = into.flush()
                row.stored, row.duplicates, waiting = row.stored + stored, row.duplicates + duplicates, 0
    stored, duplicates = into.flush()
    row.stored, row.duplicates = row.stored + stored, row.duplicates + duplicates
    return row


def _origin_of(layout: str) -> int:
    return layout_named(layout).capabilities.origin


def _caster(origin: str, layout: str, log: str, subject: str | None, shift: int) -> Callable[[Batch], Batch]:
    """A batch as the target's layout takes it."""
    to, same = layout_named(layout).capabilities, origin == layout
    ways = mapping.make_mapping(origin, layout, (), subject)
    text = ways.subject_for(log) if to.subjects else ""
    usual = "" if same else mapping.usual_subject(origin, log)
    carry = "no" if same or layout == "rabbitmq" else "header"
    now = time.time_ns()

    def cast(batch: Batch) -> Batch:
        return recast(
            batch,
            to.codec,
            to.keys,
            to.nulls,
            None if text is None else text.encode(),
            layout == "jetstream" and not same,
            carry,
            usual.encode("utf-8", "surrogateescape"),
            to.subject_max,
            shift,
            now,
        )

    return cast


class _Pacer:
    """Gives a batch in parts, each when its time has come."""

    def __init__(self, pace: float) -> None:
        self._pace, self.on = pace, pace > 0
        self._began_s: float | None = None
        self._began_ns = 0

    def parts(self, batch: Batch) -> Sequence[Batch] | Any:
        if not self.on:
            return (batch,)
        return self._paced(batch)

    def _paced(self, batch: Batch) -> Any:
        times = batch.times()
        if self._began_s is None:
            self._began_s, self._began_ns = time.monotonic(), times[0]
        start, step_ns = 0, int(LONGEST_PAUSE_S * NS * self._pace)
        for at in range(1, len(times) + 1):
            if at == len(times) or times[at] - times[start] > step_ns:
                due = self._began_s + (times[start] - self._began_ns) / NS / self._pace
                time.sleep(max(due - time.monotonic(), 0))
                yield batch.slice(start, at)
                start = at


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """A directory of a product: new, or what an earlier run has made. Positions are kept, and say how far it is."""

    path: str
    layout: str
    spread: bool = False
    positions: bool = True

    def check(self) -> None:
        """BadInput for a layout that nobody writes, or one that cannot keep positions."""
        if self.layout not in LAYOUTS:
            raise BadInput(f"layout {self.layout!r}; known are: {', '.join(LAYOUTS)}")
        only_read(self.path, "a replay's target")

    def checker(self) -> None:
        """A directory takes everything."""

    def open(self, log: str) -> DirectoryLog:
        self.check()
        return DirectoryLog(self, log)


class DirectoryLog:
    """One log of a directory."""

    def __init__(self, target: DirectoryTarget, log: str) -> None:
        place = absolute(target.path)
        side = layout_named(target.layout).capabilities
        self._keep, self._name = side.holes, log
        there = Path(place).exists() and any(Path(place).iterdir())
        self._copies = open_copies(target.layout, place, create=not there)
        self._log: Log | None = None
        self._tickets: list[Ticket] = []
        self._stored, self._begun = 0, False
        self._layout = target.layout

    def _opened(self) -> Log:
        if self._log is None:
            self._log = self._copies.take(self._name)
        return self._log

    def reached(self) -> int | None:
        state = self._opened().state()
        if not self._keep and state.messages:
            raise BadInput(
                f"{self._copies.volume.path}: {self._name} holds messages, and {self._layout} numbers them anew, so that nobody can tell "
                "which: replay into another directory"
            )
        return state.last_seq + 1 if state.messages else None

    def write(self, batch: Batch) -> None:
        log = self._opened()
        if not len(batch):
            return
        if not self._begun and not log.state().messages:
            self._copies.begin_at(log, batch.first_position)
        self._begun = True
        self._tickets.append(log.append_copy(batch, keep_positions=self._keep))
        self._stored += len(batch)

    def flush(self) -> tuple[int, int]:
        self._copies.volume.commit(self._tickets)
        self._copies.adopt_subjects(self._opened())
        stored, self._stored, self._tickets = self._stored, 0, []
        return stored, 0

    def close(self) -> None:
        self._copies.close()
