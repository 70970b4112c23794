"""Plan, copy, compare.

    for each log   source.batches → recast (core) → target.append, committed every 64 MiB
    afterwards     both sides are read again: count and one hash over everything the target has a place for

With several threads logs are read, recast and compared side by side; the target is written by one at a time (`crew`).
Memory holds one batch for each thread, whatever the size of the directory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from headrace.errors import BadInput, Damaged, NotFound
from headrace.layouts.base import Damage, Log, LogState, Predicate, Volume
from headrace.layouts.detect import LAYOUTS, PRODUCTS, detect
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.places import only_read
from headrace.ops._kernels import Batch, Digest, Disk, recast
from headrace.ops.conversion import mapping as names
from headrace.ops.conversion.crew import Crew, independent
from headrace.ops.conversion.losses import Loss, losses
from headrace.ops.conversion.readers import Carried, Readers
from headrace.ops.conversion.sides import Side, sides
from headrace.ops.conversion.target import Asked, Target, is_channel, open_side, open_target
from headrace.ops.plain import plain
from headrace.ops.plan import Progress, absolute, check_path

COMMIT_EVERY_BYTES = 64 << 20
POSITION, TIME, KEY, HEADERS, SUBJECT, NULL = 1, 2, 4, 8, 16, 32
CARRIES = ("header", "key", "no")


@dataclass(slots=True)
class ConvertedLog:
    """One log of the source, and what became of it."""

    source: str
    target: str
    subject: str | None
    messages: int
    first: int
    last: int
    positions: str
    """"kept", "shifted", or "renumbered"."""
    shift: int = 0
    subjects: tuple[str, ...] = ()
    """Only the messages on these; empty: all."""
    copied: int = 0
    """In this run: fewer than there are when an interrupted conversion went on."""
    source_hash: str | None = None
    target_hash: str | None = None
    readers: list[str] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    damage: list[Damage] = field(default_factory=lambda: [])


@dataclass(slots=True)
class ConvertReport:
    """What was done, or, in a dry run, what would be."""

    source: str
    source_layout: str
    target: str
    target_layout: str
    losses: list[Loss]
    logs: list[ConvertedLog]
    dry_run: bool = False
    resumed: bool = False
    verified: bool = False
    seconds: float = 0.0

    @property
    def messages(self) -> int:
        return sum(log.messages for log in self.logs)

    @property
    def damage(self) -> list[Damage]:
        return [each for log in self.logs for each in log.damage]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found | {"messages": self.messages}


@dataclass(frozen=True, slots=True)
class _How:
    """Everything that is the same for all batches of a conversion."""

    from_: Side
    to: Side
    carry: str
    began_ns: int

    def cast(self, item: ConvertedLog, batch: Batch) -> Batch:
        """The batch as the target takes it."""
        to = self.to
        subject = item.subject if to.subjects else ""
        same = self.from_.layout == to.layout
        usual = "" if same else names.usual_subject(self.from_.layout, item.source)
        return recast(
            batch,
            to.codec,
            to.keys,
            to.nulls,
            None if subject is None else subject.encode(),
            to.layout == "jetstream" and not same,
            "no" if same or to.layout == "rabbitmq" else self.carry,
            usual.encode("utf-8", "surrogateescape"),
            to.subject_max,
            item.shift if item.positions != "renumbered" else 0,
            self.began_ns,
        )

    def parts(self, item: ConvertedLog) -> int:
        """What can be compared afterwards: all that the target has a place for."""
        to = self.to
        kept = item.positions != "renumbered"
        parts = POSITION if kept else 0
        # A channel of NATS Streaming that numbers its messages lets their times grow only.
        if to.tick_ns and (kept or to.layout != "nats_streaming"):
            parts |= TIME
        if to.headers:
            parts |= HEADERS | NULL
            parts |= KEY if self.carry != "key" else 0
            keeps_subject = self.from_.subjects and (
                to.layout == self.from_.layout or to.subjects or self.carry == "header"
            )
            parts |= SUBJECT if keeps_subject and item.subject is None else 0
        return parts


def convert(
    source: str,
    target: str,
    to: str,
    *,
    rules: Sequence[str] = (),
    subject: str | None = None,
    carry: str = "header",
    log: str | None = None,
    options: Mapping[str, str] | None = None,
    key: str | None = None,
    dry_run: bool = False,
    restart: bool = False,
    threads: int = 1,
    disk: Disk | None = None,
    progress: Progress | None = None,
    clock: Callable[[], int] = time.time_ns,
    approve: Callable[[ConvertReport], None] = lambda _plan: None,
) -> ConvertReport:
    """Convert every log (or `log`) of the directory `source` into the directory `target` of layout `to`.

    `approve` sees the plan, with the table of what is lost, before anything is written. The source is only read.
    """
    started = time.monotonic()
    if to not in LAYOUTS:
        raise BadInput(f"--to {to!r}; known are: {', '.join(LAYOUTS)}")
    if carry not in CARRIES:
        raise BadInput(f"subjects in {carry!r}; known are: {', '.join(CARRIES)}")
    only_read(target, "a conversion's target")
    path = absolute(check_path(source))
    layout = detect(path, disk)
    from_side, to_side = sides(layout, to)
    reading = {"isolation.level": "read_committed"} if layout == "kafka" else {}
    ways = names.make_mapping(layout, to, rules, subject)

    def open_source() -> Volume:
        return open_side(layout, path, disk, reading, key=key)

    with open_source() as volume:
        items = _plan(volume, ways, from_side, to_side, log)
        report = ConvertReport(
            path, layout, absolute(target), to, losses(from_side, to_side, carry), items, dry_run=dry_run
        )
        approve(report)
        if dry_run:
            report.seconds = time.monotonic() - started
            return report
        asked = Asked(
            source=path,
            to=to,
            logs=tuple((item.source, item.target, *item.subjects) for item in items),
            subject=subject,
            carry=carry,
            options=dict(options or {}),
            began_ns=clock(),
            fresh=True,
        )
        into = open_target(target, asked, disk, restart=restart, clock=clock)
        report.resumed = into.resumed
        how = _How(from_side, to_side, carry, into.asked.began_ns)
        steps = _Steps(progress, 3 * sum(item.messages for item in items))
        groups = independent(items, lambda item: (item.source, item.target))
        crew = Crew(min(threads, len(groups)))
        sources = (lambda: nullcontext(volume)) if crew.threads <= 1 else open_source
        try:
            crew.run(
                lambda opened, group: _copy_all(opened[0], into, how, group, steps, crew.lock),
                groups,
                sources,
            )
        finally:
            into.close()
        crew.run(
            lambda opened, group: _compare(opened[0], opened[1], into, how, group, steps),
            groups,
            sources,
            into.reopen,
        )
    into.take_name()
    report.verified, report.seconds = True, time.monotonic() - started
    return report


class _Steps:
    """Progress in messages: copied, then read on both sides."""

    def __init__(self, tell: Progress | None, total: int) -> None:
        self._tell, self._total, self._done = tell, max(total, 1), 0
        self._lock = Lock()

    def done(self, messages: int) -> None:
        with self._lock:
            self._done += messages
            if self._tell is not None:
                self._tell(min(self._done, self._total), self._total)


def _plan(volume: Volume, ways: names.Mapping, from_: Side, to: Side, only: str | None) -> list[ConvertedLog]:
    known = volume.logs()
    if only is not None and only not in known:
        raise NotFound(
            f"{volume.path}: no {from_.log} {only!r}; there are: {', '.join(known[:20]) or 'none'}"
        )
    chosen = [name for name in known if only in (None, name)]
    if from_.layout == "kafka" and to.layout != "kafka" and only is None:
        # The cluster's own topics are not anybody's messages.
        chosen = [name for name in chosen if not name.startswith("__")]
    items = [item for name in chosen for item in _items(volume.open(name), ways)]
    together = Counter(item.target for item in items)
    for item in items:
        item.shift = to.origin - from_.origin
        if together[item.target] > 1 or not to.holes:
            item.positions = "renumbered"
        elif item.shift:
            item.positions = "shifted"
        if together[item.target] > 1:
            item.notes.append(f"joins {item.target} with others: one after the other, numbered anew")
            if not all(ways.ruled(item.source, subject) for subject in item.subjects or (None,)):
                same = [other.source for other in items if other.target == item.target]
                raise BadInput(
                    f"{', '.join(same)} would all be called {item.target!r} in {PRODUCTS[to.layout]}; say with --map how"
                )
    return items


def _items(log: Log, ways: names.Mapping) -> list[ConvertedLog]:
    """A log as one item, or, where rules go by subject, as one for each target."""
    name, subject = log.name, ways.subject_for(log.name)
    if not isinstance(log, FileStreamStore) or not ways.splits(name):
        state = log.state()
        target = ways.log_for(name)
        return [ConvertedLog(name, target, subject, state.messages, state.first_seq, state.last_seq, "kept")]
    found: dict[str, ConvertedLog] = {}
    on: dict[str, list[str]] = {}
    for each, state in sorted(log.subjects_state(">").items()):
        target = ways.log_for(name, each)
        on.setdefault(target, []).append(each)
        item = found.setdefault(target, ConvertedLog(name, target, subject, 0, state.first, 0, "kept"))
        item.messages += state.msgs
        item.first, item.last = min(item.first, state.first), max(item.last, state.last)
    for target, item in found.items():
        item.subjects = tuple(on[target])
    return list(found.values())


def _copy_all(
    volume: Volume, into: Target, how: _How, items: Sequence[ConvertedLog], steps: _Steps, writing: Lock
) -> None:
    """Logs one after the other; everything that touches the target is done by who holds `writing`."""
    before: Counter[str] = Counter()
    readers = Readers(volume, into.volume)
    for item in items:
        source = volume.open(item.source)
        with writing:
            log = into.log(item.target, source)
            have = log.state()
        _copy(source, log, into, how, item, have, have.messages - before[item.target], steps, writing)
        before[item.target] += item.messages
        item.damage = list(source.damage())
        with writing:
            _finish(source, log, into, item, readers)


def _finish(source: Log, log: Log, into: Target, item: ConvertedLog, readers: Readers) -> None:
    """What a log has beside its messages."""
    if isinstance(log, FileStreamStore):
        state = source.state()
        last = state.last_seq + item.shift
        if item.positions != "renumbered" and not item.subjects and last > log.fast_state().last_seq:
            log.skip_msg(last)
    whole = item.positions != "renumbered" and not item.subjects
    told = readers.carry(source, log, item.shift) if whole else Carried()
    item.readers, item.notes = told.names, item.notes + told.notes
    if isinstance(log, FileStreamStore):
        log.commit()
        into.finish_stream(source, log, item.subject, whole=whole)


def _copy(
    source: Log,
    log: Log,
    into: Target,
    how: _How,
    item: ConvertedLog,
    have: LogState,
    done: int,
    steps: _Steps,
    writing: Lock,
) -> None:
    """Messages from where the target ends. `done` of this log are there when an interrupted conversion goes on."""
    keep = item.positions != "renumbered"
    start, leave = None, max(done, 0)
    if keep and have.messages:
        start, leave = have.last_seq + 1 - item.shift, 0
    elif keep and isinstance(log, FileStreamStore) and item.first + item.shift > max(have.last_seq + 1, 1):
        with writing:
            log.compact(item.first + item.shift)
    steps.done(item.messages if done >= item.messages else max(done, 0))
    waiting, last = 0, None
    for batch in source.batches(Predicate(first=start, subjects=item.subjects)):
        if leave:
            skipped = min(leave, len(batch))
            leave -= skipped
            batch = batch.slice(skipped, len(batch))
        made = how.cast(item, batch)
        if not len(made):
            continue
        waiting += made.payload_bytes
        with writing:
            last = _append(log, made, keep)
            if waiting >= COMMIT_EVERY_BYTES:
                into.volume.commit([last])
                waiting = 0
        item.copied += len(made)
        steps.done(len(made))
    if last is not None:
        with writing:
            into.volume.commit([last])


def _append(log: Log, batch: Batch, keep: bool) -> Any:
    if is_channel(log):
        return log.append(batch, keep_positions=keep, lossy=True)  # type: ignore[call-arg]
    return log.append(batch, keep_positions=keep)


def _compare(
    volume: Volume, written: Volume, into: Target, how: _How, items: Sequence[ConvertedLog], steps: _Steps
) -> None:
    """Read both sides; Damaged names the first log that differs. What was begun stays, to be looked at."""
    readers: dict[str, Iterator[Batch]] = {}
    for item in items:
        parts, tick = how.parts(item), max(how.to.tick_ns, 1)
        shift = item.shift if item.positions != "renumbered" else 0
        theirs = Digest()
        for batch in volume.open(item.source).batches(Predicate(subjects=item.subjects)):
            theirs.add(batch, parts, shift, how.began_ns, tick)
            steps.done(len(batch))
        if item.target not in readers:
            readers[item.target] = _one_by_one(written.open(item.target))
        ours = Digest()
        for batch in _take(readers, item.target, theirs.count):
            ours.add(batch, parts, 0, how.began_ns, tick)
            steps.done(len(batch))
        item.messages = theirs.count
        item.source_hash, item.target_hash = f"{theirs.value:016x}", f"{ours.value:016x}"
        if (theirs.count, theirs.value) != (ours.count, ours.value):
            raise Damaged(
                into.building,
                0,
                f"{item.target} holds {ours.count:,} messages, hash {item.target_hash}",
                f"{theirs.count:,} messages of {item.source}, hash {item.source_hash}",
                "repeat the command with --restart; if it happens again, this is a defect",
            )
    for name, rest in readers.items():
        if extra := next(rest, None):
            raise Damaged(
                into.building,
                0,
                f"{name} holds {len(extra)} or more messages that no source has",
                "the same messages on both sides",
                "repeat the command with --restart",
            )


def _one_by_one(log: Log) -> Iterator[Batch]:
    for batch in log.batches():
        if len(batch):
            yield batch


def _take(readers: dict[str, Iterator[Batch]], name: str, count: int) -> Iterator[Batch]:
    """The next messages of a log; the rest of a batch is left for whoever joined the same log."""
    while count > 0:
        batch = next(readers[name], None)
        if batch is None:
            return
        if len(batch) > count:
            rest, tail = batch.slice(count, len(batch)), readers[name]
            readers[name] = _put_back(rest, tail)
            batch = batch.slice(0, count)
        count -= len(batch)
        yield batch


def _put_back(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest
