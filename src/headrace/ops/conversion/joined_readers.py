"""Readers of logs that become one: where each stands in the joined log.

    log 0   a . a . a │ b . b        acked up to │ in each log
    log 1     c . c │ d . d . d
    joined  a c a c a d d b d b      acked: all that was; pending: what was not, and stands before the last that was
                      ▲ ▲

A reader of one name on several logs (a Kafka group on the partitions of its topics) is one reader afterwards. One that
reads only some of the logs gets their subjects as its filter, where the target has filters and the subjects distinguish the logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.config.names import subjects_overlap
from headrace.layouts.base import Log, LogState
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.copies import OWN_SUBJECT
from headrace.layouts.readers import DurableReader
from headrace.ops._kernels import Batch, unacked
from headrace.ops.conversion.mapping import parts_of
from headrace.ops.conversion.plan import ConvertedLog

PENDING_MAX = 100_000
"""More than this a reader is not given as pending: it goes on at the first one."""


@dataclass(slots=True)
class _Reader:
    """One reader on its way: what it has not acked of what was seen so far."""

    name: str
    known: dict[int, DurableReader]
    """By the number of the log."""
    covered: frozenset[int]
    filters: tuple[str, ...] = ()
    open: list[int] = field(default_factory=lambda: [])
    last_acked: int | None = None
    passed: set[int] = field(default_factory=lambda: set[int]())
    """Logs whose acked messages were all seen."""

    def acked_of(self, log: int, part: Batch) -> int | None:
        """How many of the part's messages it has acked; None for a log that it does not read."""
        if log not in self.covered:
            return None
        floor = self.known[log].floor if log in self.known else -1
        return len(part.filter(None, floor + 1, None, None, [])) if floor >= 0 else 0

    def see(self, first: int, origins: bytes, parts: Sequence[Batch]) -> None:
        """More of the joined log, which begins at `first`."""
        if self.passed >= self.covered:
            return
        acked = [self.acked_of(at, part) for at, part in enumerate(parts)]
        places, last = unacked(origins, acked)
        if last is not None:
            self.last_acked = first + last
        self.open += [first + place for place in places[: max(PENDING_MAX - len(self.open), 0)]]
        self.passed |= {at for at, count in enumerate(acked) if count is not None and count < len(parts[at])}

    def result(self, state: LogState) -> DurableReader:
        """Where it stands, in positions of the joined log."""
        one = next(iter(self.known.values()))
        last = self.last_acked if self.last_acked is not None else state.first_seq - 1
        pending = tuple(seq for seq in self.open if seq < last)
        notes = [*dict.fromkeys(note for each in self.known.values() for note in each.notes)]
        if len(self.open) >= PENDING_MAX and last > self.open[-1]:
            pending, last = (), self.open[0] - 1
            notes.append(
                f"more than {PENDING_MAX:,} messages between are not acked: acked ones behind them come again"
            )
        again = sum(max(each.delivered - each.floor - len(each.pending), 0) for each in self.known.values())
        if again:
            notes.append(f"{again} acked message(s) behind its first open ones come again")
        return DurableReader(
            self.name,
            delivered=last,
            floor=min(pending, default=last + 1) - 1,
            pending=pending,
            ack_wait_ns=one.ack_wait_ns,
            max_pending=one.max_pending,
            origin=f"{one.origin} and {len(self.known) - 1} more" if len(self.known) > 1 else one.origin,
            notes=tuple(notes),
            filters=self.filters,
        )


class JoinedReaders:
    """The readers of all logs that one target takes."""

    def __init__(
        self, sources: Sequence[Log], items: Sequence[ConvertedLog], from_: Capabilities, to: Capabilities
    ) -> None:
        self.notes: list[str] = []
        self._readers: list[_Reader] = []
        by_name: dict[str, dict[int, DurableReader]] = {}
        for at, (source, item) in enumerate(zip(sources, items, strict=True)):
            for found in source.readers.durable() if not item.subjects else ():
                by_name.setdefault(found.name, {})[at] = found
        taken = [_taken(source, item) for source, item in zip(sources, items, strict=True)]
        for name, known in by_name.items():
            covered = frozenset(known)
            if sources[min(known)].readers.whole_topics:
                covered = _covered(from_.layout, items, known)
            filters = () if len(covered) == len(items) else _filters(taken, covered)
            if any(found.filters for found in known.values()):
                self.notes.append(f"reader {name} reads some subjects only: not carried over")
                continue
            if len(covered) < len(items) and (not to.filters or not filters):
                of = ", ".join(items[at].source for at in sorted(covered)[:10])
                self.notes.append(
                    f"reader {name} reads {of} only, and nothing distinguishes them afterwards: not carried over"
                )
                continue
            self._readers.append(_Reader(name, known, covered, filters))

    def see(self, first: int, origins: bytes, parts: Sequence[Batch]) -> None:
        """Another round: its messages stand from `first` on. `parts` are what each log gave, in its own positions."""
        for reader in self._readers:
            reader.see(first, origins, parts)

    def results(self, state: LogState) -> list[DurableReader]:
        """All of them, when everything was seen."""
        return [reader.result(state) for reader in self._readers]


def _covered(layout: str, items: Sequence[ConvertedLog], known: dict[int, DurableReader]) -> frozenset[int]:
    """The logs of a reader that reads whole topics, also those where it has committed nothing yet."""
    topics = {parts_of(layout, items[at].source)["topic"] for at in known}
    return frozenset(at for at, item in enumerate(items) if parts_of(layout, item.source)["topic"] in topics)


def _taken(source: Log, item: ConvertedLog) -> tuple[str, ...]:
    """The subjects that the log's messages have afterwards; none where only they know."""
    if item.subject is not None:
        return () if OWN_SUBJECT in item.subject else (item.subject,)
    return source.subjects


def _filters(taken: Sequence[tuple[str, ...]], covered: frozenset[int]) -> tuple[str, ...]:
    """The subjects of these logs, if they distinguish them from all others."""
    mine = {each for at in covered for each in taken[at]}
    others = {each for at, subjects in enumerate(taken) if at not in covered for each in subjects}
    if not all(taken) or any(subjects_overlap(one, other) for one in mine for other in others):
        return ()
    return tuple(sorted(mine))
