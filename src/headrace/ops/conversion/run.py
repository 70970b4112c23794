"""Plan, copy, compare.

    for each log   source.batches → recast (core) → target.append, committed every 64 MiB
    joined logs    rounds of all of them (`joining`) → recast each → interleaved → target.append
    afterwards     both sides are read again: count and one hash over everything the target has a place for

With several threads logs are read, recast and compared side by side; the target is written by one at a time (`worker_pool`).
Memory holds one batch for each thread, whatever the size of the directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from headrace.errors import Damaged
from headrace.layouts.base import Damage, Log, LogState, Predicate, Volume
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.copies import CopyOrigin
from headrace.layouts.layout import OpenRequest, Progress
from headrace.layouts.places import absolute, check_path, only_read
from headrace.layouts.plain import plain
from headrace.layouts.readers import CarriedReaders
from headrace.layouts.registry import detect, layout_named
from headrace.layouts.unread import Unread
from headrace.ops._kernels import Batch, Digest, Disk, deinterleave, interleave, recast
from headrace.ops.conversion import mapping as names
from headrace.ops.conversion.joined_readers import JoinedReaders
from headrace.ops.conversion.joining import rounds
from headrace.ops.conversion.losses import Loss, Shape, losses
from headrace.ops.conversion.plan import ConvertedLog, by_target, check_streams, plan_logs
from headrace.ops.conversion.spec import ConversionSpec
from headrace.ops.conversion.target import ConversionNote, ConversionTarget, is_work_queue, open_target
from headrace.ops.conversion.worker_pool import WorkerPool, independent

COMMIT_EVERY_BYTES = 64 << 20
POSITION, TIME, KEY, HEADERS, SUBJECT, NULL = 1, 2, 4, 8, 16, 32
OFFSETS_TOPIC = "__consumer_offsets"


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
    unread: list[Unread] = field(default_factory=lambda: [])
    """What the source holds and is not read."""
    stopped: bool = False
    """Nothing was written: the source holds what is not read, and nobody said to go on without it."""

    @property
    def exit_code(self) -> int:
        """0 done, 1 done from a damaged source, or stopped before what is not read was left out."""
        return 1 if self.stopped or self.damage else 0

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

    from_: Capabilities
    to: Capabilities
    carry: str
    order: str
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

    @property
    def copies_offsets(self) -> bool:
        """Whether the log of committed offsets is copied as it is."""
        return self.from_.layout == self.to.layout == "kafka"

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
    spec: ConversionSpec | None = None,
    *,
    disk: Disk | None = None,
    progress: Progress | None = None,
    clock: Callable[[], int] = time.time_ns,
    approve: Callable[[ConvertReport], None] = lambda _plan: None,
) -> ConvertReport:
    """Convert every log of the directory `source` (or those that `spec` names) into the directory `target` of layout `to`.

    `approve` sees the plan, with the table of what is lost, before anything is written. The source is only read. Where it
    holds what is not read, nothing is written unless `unread_ok`.
    """
    started = time.monotonic()
    spec = spec or ConversionSpec()
    spec.check(to)
    given = layout_named(to).check_log_options(spec.options)
    only_read(target, "a conversion's target")
    path = absolute(check_path(source))
    reader = layout_named(detect(path, disk))

    def open_source() -> Volume:
        return reader.open(path, OpenRequest(disk=disk, key=spec.key, options=reader.source_options()))

    with open_source() as volume:
        from_ = reader.capabilities
        into_kind = layout_named(to).capabilities.taking_from(from_)
        how = _How(from_, into_kind, spec.carry, spec.order, clock())
        items = _planned(volume, how, spec)
        shape = Shape.of(items, spec.order, work_queue=is_work_queue(given))
        rows = [*losses(how.from_, how.to, spec.carry, shape), *_left_out(volume, items, spec.log)]
        report = ConvertReport(path, reader.name, absolute(target), to, rows, items, dry_run=spec.dry_run)
        report.unread = reader.unread_at(path, disk) if spec.log is None else []
        report.stopped = not spec.unread_ok and any(place.may_hold_messages for place in report.unread)
        approve(report)
        if not spec.dry_run and not report.stopped:
            into = open_target(
                target, _note_of(report, spec, clock()), disk, restart=spec.restart, clock=clock
            )
            report.resumed = into.resumed
            how = replace(how, began_ns=into.note.began_ns)
            _write(
                items,
                into,
                how,
                _Steps(progress, 3 * report.messages),
                spec.threads or 1,
                (volume, open_source),
            )
            report.verified = True
    report.seconds = time.monotonic() - started
    return report


def _planned(volume: Volume, how: _How, spec: ConversionSpec) -> list[ConvertedLog]:
    """Which log goes where; BadInput where two streams would take the same subject."""
    ways = names.make_mapping(how.from_.layout, how.to.layout, spec.rules, spec.subject)
    items = plan_logs(volume, ways, how.from_, how.to, spec.log, spec.order)
    if how.to.claims_subjects:
        check_streams(volume, items, how.cast)
    return items


def _note_of(report: ConvertReport, spec: ConversionSpec, began_ns: int) -> ConversionNote:
    """What lies beside the target while it is built."""
    return ConversionNote(
        source=report.source,
        to=report.target_layout,
        logs=tuple((item.source, item.target, *item.subjects) for item in report.logs),
        subject=spec.subject,
        carry=spec.carry,
        order=spec.order,
        options=dict(spec.options),
        began_ns=began_ns,
        fresh=True,
    )


def _write(
    items: Sequence[ConvertedLog],
    into: ConversionTarget,
    how: _How,
    steps: _Steps,
    threads: int,
    source: tuple[Volume, Callable[[], Volume]],
) -> None:
    """Copy all logs, read both sides again and compare them; then the target takes its name. With one thread the source
    that is open is read, with several each opens it for itself."""
    opened_already, open_source = source
    groups = independent(items, lambda item: (item.source, item.target))
    workers = WorkerPool(min(threads, len(groups)))
    sources = (lambda: nullcontext(opened_already)) if workers.threads <= 1 else open_source
    try:
        workers.run(
            lambda opened, group: _copy_all(opened[0], into, how, group, steps, workers.lock), groups, sources
        )
        for step in into.later:
            step()
    finally:
        into.close()
    workers.run(
        lambda opened, group: _compare(opened[0], opened[1], into, how, group, steps),
        groups,
        sources,
        into.reopen,
    )
    into.take_name()


class _Steps:
    """Progress in messages: copied, then read on both sides."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, max(total, 1), 0
        self._lock = Lock()

    def done(self, messages: int) -> None:
        with self._lock:
            self._done += messages
            if self._progress is not None:
                self._progress(min(self._done, self._total), self._total)


def _copy_all(
    volume: Volume,
    into: ConversionTarget,
    how: _How,
    items: Sequence[ConvertedLog],
    steps: _Steps,
    writing: Lock,
) -> None:
    """Logs one after the other; everything that touches the target is done by who holds `writing`."""
    for target, group in by_target(items).items():
        sources = [volume.open(item.source) for item in group]
        with writing:
            log = into.log(target, sources[0])
            have = log.state()
        if len(group) > 1:
            _copy_joined(sources, log, into, how, group, have, steps, writing)
        else:
            _copy(sources[0], log, into, how, group[0], have, steps, writing)
            with writing:
                _finish(sources[0], log, into, how, group[0])
        for source, item in zip(sources, group, strict=True):
            item.damage = list(source.damage())


def _copy_joined(
    sources: Sequence[Log],
    log: Log,
    into: ConversionTarget,
    how: _How,
    items: Sequence[ConvertedLog],
    have: LogState,
    steps: _Steps,
    writing: Lock,
) -> None:
    """Several logs into one. The order is the same in every run: what is there already is passed over by counting."""
    first = have.first_seq if have.messages else have.last_seq + 1
    waiting, last, seen = 0, None, 0
    carried = JoinedReaders(sources, items, how.from_, how.to)
    for each in rounds(sources, [item.subjects for item in items], how.order):
        parts = [how.cast(item, part) for item, part in zip(items, each.parts, strict=True)]
        carried.see(first + seen, each.origins, parts)
        skipped = min(max(have.messages - seen, 0), each.messages)
        made = interleave(parts, each.origins).slice(skipped, each.messages)
        seen += each.messages
        steps.done(each.messages)
        if not len(made):
            continue
        fresh = deinterleave(made, each.origins_from(skipped, len(made)), len(items)) if skipped else parts
        for item, part in zip(items, fresh, strict=True):
            item.copied += len(part)
        waiting += made.payload_bytes
        with writing:
            last = _append(log, made, keep=False)
            if waiting >= COMMIT_EVERY_BYTES:
                into.volume.commit([last])
                waiting = 0
    with writing:
        if last is not None:
            into.volume.commit([last])
        items[0].notes += carried.notes
        _carry(into, how, items[0], lambda: log.readers.put(carried.results(log.state())))
        whole = not any(item.subjects for item in items)
        into.copies.finish(log, CopyOrigin(sources, [item.subject for item in items], whole))


def _carry(
    into: ConversionTarget, how: _How, item: ConvertedLog, carry: Callable[[], CarriedReaders]
) -> None:
    """Take readers along. Between directories of Kafka their log is copied like any other: what it does not say already is
    added when that is done."""

    def now() -> None:
        carried = carry()
        item.readers, item.notes = carried.names, item.notes + carried.notes

    if into.is_work_queue:
        return
    if not how.copies_offsets:
        now()
    elif item.joined > 1 or item.source != item.target:
        into.later.append(now)


def _finish(source: Log, log: Log, into: ConversionTarget, how: _How, item: ConvertedLog) -> None:
    """What a log has beside its messages."""
    whole = item.positions != "renumbered" and not item.subjects
    if whole:
        into.copies.end_at(log, source.state().last_seq + item.shift)
        _carry(into, how, item, lambda: log.readers.carry(source, item.shift))
    into.copies.finish(log, CopyOrigin([source], [item.subject], whole))


def _copy(
    source: Log,
    log: Log,
    into: ConversionTarget,
    how: _How,
    item: ConvertedLog,
    have: LogState,
    steps: _Steps,
    writing: Lock,
) -> None:
    """Messages from where the target ends: some are there when an interrupted conversion goes on."""
    keep, done = item.positions != "renumbered", have.messages
    start, leave = None, done
    if keep and have.messages:
        start, leave = have.last_seq + 1 - item.shift, 0
    elif keep:
        with writing:
            into.copies.begin_at(log, item.first + item.shift)
    steps.done(min(done, item.messages))
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


def _left_out(volume: Volume, items: Sequence[ConvertedLog], log: str | None) -> list[Loss]:
    """The broker's own topics, which are not converted unless they are named."""
    taken, rule = {item.source for item in items}, layout_named(volume.layout).log_names
    own = [name for name in volume.logs() if name not in taken and rule.is_internal(name)]
    if log is not None or not own:
        return []
    topics = ", ".join(dict.fromkeys(rule.topic_of(name) or name for name in own))
    return [Loss("the broker's own topics", "lost", f"{topics}: left out; --log names them")]


def _append(log: Log, batch: Batch, keep: bool) -> Any:
    return log.append_copy(batch, keep_positions=keep)


def _compare(
    volume: Volume,
    written: Volume,
    into: ConversionTarget,
    how: _How,
    items: Sequence[ConvertedLog],
    steps: _Steps,
) -> None:
    """Read both sides; Damaged names the first log that differs. What was begun stays, to be looked at."""
    for target, group in by_target(items).items():
        readers = {target: _one_by_one(written.open(target))}
        if len(group) > 1:
            _compare_joined(volume, readers, into, how, group, steps)
        else:
            theirs, ours = Digest(), Digest()
            for batch in volume.open(group[0].source).batches(Predicate(subjects=group[0].subjects)):
                _digest(theirs, how, group[0], batch, group[0].shift)
                steps.done(len(batch))
            for batch in _take(readers, target, theirs.count):
                _digest(ours, how, group[0], batch, 0)
                steps.done(len(batch))
            _refuse_difference(into, group[0], theirs, ours)
        if how.copies_offsets and layout_named(how.to.layout).log_names.topic_of(target) == OFFSETS_TOPIC:
            continue  # groups of logs with other names were added
        if extra := next(readers[target], None):
            raise Damaged(
                into.building,
                0,
                f"{target} holds {len(extra)} or more messages that no source has",
                "the same messages on both sides",
                "repeat the command with --restart",
            )


def _compare_joined(
    volume: Volume,
    readers: dict[str, Iterator[Batch]],
    into: ConversionTarget,
    how: _How,
    items: Sequence[ConvertedLog],
    steps: _Steps,
) -> None:
    """Each log by itself: its messages are picked out of the joined one where the order says they are."""
    theirs, ours = [Digest() for _ in items], [Digest() for _ in items]
    sources = [volume.open(item.source) for item in items]
    for each in rounds(sources, [item.subjects for item in items], how.order):
        for item, digest, part in zip(items, theirs, each.parts, strict=True):
            _digest(digest, how, item, part, 0)
        at = 0
        for batch in _take(readers, items[0].target, each.messages):
            picked = deinterleave(batch, each.origins_from(at, len(batch)), len(items))
            for item, digest, part in zip(items, ours, picked, strict=True):
                _digest(digest, how, item, part, 0)
            at += len(batch)
        steps.done(2 * each.messages)
    for item, their, our in zip(items, theirs, ours, strict=True):
        _refuse_difference(into, item, their, our)


def _digest(digest: Digest, how: _How, item: ConvertedLog, batch: Batch, shift: int) -> None:
    kept = shift if item.positions != "renumbered" else 0
    digest.add(batch, how.parts(item), kept, how.began_ns, max(how.to.tick_ns, 1))


def _refuse_difference(into: ConversionTarget, item: ConvertedLog, theirs: Digest, ours: Digest) -> None:
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
