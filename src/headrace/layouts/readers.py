"""Who reads a log and how far: JetStream's consumers, NATS Streaming's subscriptions, Kafka's groups, RabbitMQ's queues.

    Readers        all of one log (`Log.readers`); those that outlive their clients can be carried to another layout
    ReaderState    one of them, in the log's own positions
    DurableReader  what another layout needs to know of one to go on where it stands

RocketMQ keeps the readers' offsets outside of its store: nothing is known of them here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.layouts.base import ConsumerState, Log

SECOND_NS = 1_000_000_000
_NOT_IN_NAME = re.compile(r"[\s.*>/\\:\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class ReaderState:
    """One reader of one log. `delivered` and `ack_floor` are included in what is done; `lag` counts messages that it was
    not given yet, `pending` those that it was given and has not acked."""

    log: str
    consumer: str
    kind: str
    durable: bool
    filter: str
    delivered: int
    ack_floor: int
    pending: int
    redelivered: int
    lag: int
    oldest_pending: int | None


@dataclass(frozen=True, slots=True)
class DurableReader:
    """A reader that outlives its client: where it stands and what it has not acked."""

    name: str
    delivered: int
    floor: int
    pending: tuple[int, ...]
    ack_wait_ns: int
    max_pending: int
    origin: str
    notes: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    """The subjects that it reads; none: all."""

    def moved(self, shift: int) -> DurableReader:
        """The same in the positions of a log that counts otherwise."""
        pending = tuple(seq + shift for seq in self.pending)
        return replace(self, delivered=self.delivered + shift, floor=self.floor + shift, pending=pending)


@dataclass(slots=True)
class CarriedReaders:
    """What became of the readers of one log."""

    names: list[str] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])


class Readers:
    """The readers of one log. This one knows none and takes none."""

    whole_topics = False
    """Whether a reader of one log reads all logs of its topic."""

    def states(self) -> list[ReaderState]:
        """Every reader, by name."""
        return []

    def durable(self) -> list[DurableReader]:
        """Those that outlive their clients, in the log's positions."""
        return []

    def put(self, readers: Sequence[DurableReader]) -> CarriedReaders:
        """Have readers here whose positions are this log's. What was put before is put again, not twice."""
        return CarriedReaders(notes=[left_behind([each.name for each in readers])] if readers else [])

    def carry(self, source: Log, shift: int) -> CarriedReaders:
        """Every durable reader of another log. `shift`: what positions moved by."""
        return self.put([each.moved(shift) for each in source.readers.durable()])


def left_behind(names: Sequence[str], why: str = "") -> str:
    """The note on readers that have no place in the target."""
    return f"{len(names)} reader(s) not carried over{why}: {', '.join(names[:10])}"


def safe_name(name: str) -> str:
    """A name that every layout's readers can have."""
    return _NOT_IN_NAME.sub("_", name)


def plain_state(
    log: Log, name: str, kind: str, state: ConsumerState, end: int, *, durable: bool = True
) -> ReaderState:
    """Of a reader without filters: what it was not given yet are all messages behind."""
    return ReaderState(
        log=log.name,
        consumer=name,
        kind=kind,
        durable=durable,
        filter="",
        delivered=state.delivered.stream,
        ack_floor=state.ack_floor.stream,
        pending=len(state.pending),
        redelivered=len(state.redelivered),
        lag=max(end - state.delivered.stream, 0),
        oldest_pending=min(state.pending, default=None),
    )
