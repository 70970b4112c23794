"""The turn of the server: what arrived since the last one, taken in order, decided once per run.

    drain ─ runs per stream, consumer, call ─→ ingest · acks · pulls · API
          ─ consumers that have something to do ─→ one `deliver` each
          ─ what must be on disk before it is said ─→ one commit group, off the loop
    released(group) ─ answers of the group, consumers see what became durable

No I/O: bytes come and go through the exchange, syncs through the committer that is handed in.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError
from headrace.streams._kernels import ACKS, CALL, INGEST, INTEREST, PULLS, Exchange
from headrace.streams.timers import Timers

if TYPE_CHECKING:
    from headrace.layouts.jetstream.volume import JetStreamVolume

LOG = logging.getLogger("headrace.streams")

HEAL_EVERY_NS = 1_000_000_000

Release = Callable[[], None]
Refused = Callable[[Exception], None]


class Syncs(Protocol):
    """Something with a write mark that a commit makes durable: a stream's store, a journal."""

    def commit(self, mark: int | None = None) -> None: ...


@dataclass(slots=True)
class Group:
    """What waits for the same syncs."""

    marks: dict[int, tuple[Syncs, int | None]] = field(default_factory=dict[int, tuple[Syncs, int | None]])
    releases: list[tuple[int, Release, Refused | None]] = field(
        default_factory=list[tuple[int, Release, Refused | None]]
    )
    errors: dict[int, Exception] = field(default_factory=dict[int, Exception])

    def sync(self) -> None:
        """Make everything durable; on whatever thread. Errors come back per target."""
        for key, (target, mark) in self.marks.items():
            try:
                target.commit(mark)
            except Exception as error:  # told to those who wait, on the loop
                self.errors[key] = error


class Committer(Protocol):
    """Syncs groups, one after the other, off the loop; calls `engine.released(group)` on the loop."""

    def submit(self, group: Group) -> None: ...


class InlineCommitter:
    """Syncs at once: for tests, and for volumes that need no waiting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(self, group: Group) -> None:
        group.sync()
        self._engine.released(group)


class Engine:
    """Everything that listens on the exchange, and the turn that serves it."""

    def __init__(
        self,
        exchange: Exchange,
        volume: JetStreamVolume | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        now: Callable[[], int] = time.monotonic_ns,
        options: Any = None,
    ) -> None:
        self.exchange, self.volume, self.clock, self.now, self.options = exchange, volume, clock, now, options
        self.timers = Timers()
        self.accounts: dict[str, Any] = {}
        self.handlers: dict[int, Any] = {}
        self.ready: dict[Any, None] = {}
        self.committer: Committer = InlineCommitter(self)
        self.on_work: Callable[[], None] = _nothing
        self.backlog: Callable[[int], int] = _no_backlog
        """Bytes that the client of a connection has not taken yet."""
        self.alone = False
        """One request arrived in this turn, perhaps behind an ack: its answer need not wait for others (`send_early`)."""
        self.send_early: Callable[[], None] = _nothing
        """Sends what there is; what is only for us to note comes after it, while the client has its turn."""
        self.stalled: dict[Any, None] = {}
        self.run_off_loop: Callable[[Callable[[], Any], Callable[[Any], None]], None] = _run_here
        self._ids = itertools.count(1)
        self._group = Group()
        self._in_flight = False
        self._at_end: list[Release] = []
        self._healing: set[Any] = set()
        self.sync_needed = volume is not None and volume.durability == "sync"

    # Who gets what

    def register(self, handler: Any) -> int:
        """An id under which the exchange hands things to `handler`: a stream, a consumer, a callable."""
        number = next(self._ids)
        self.handlers[number] = handler
        return number

    def unregister(self, number: int) -> None:
        """Nothing more is handed to it."""
        self.handlers.pop(number, None)

    # The turn

    def turn(self) -> None:
        """Serve everything that arrived and is due."""
        exchange = self.exchange
        now = self.now()
        exchange.set_now(now)
        handlers = self.handlers
        arrived = exchange.drain()
        self.alone = len(arrived) == 1
        if len(arrived) == 2 and arrived[0][0] == ACKS:
            self.alone = True
            self._serve_first(arrived, now)
        for kind, number, payload in arrived:
            handler = handlers.get(number)
            if handler is None:
                continue
            try:
                if kind == INGEST:
                    handler.ingest(payload)
                elif kind == ACKS:
                    handler.on_acks(payload)
                elif kind == PULLS:
                    handler.on_pulls(payload)
                elif kind == CALL:
                    handler(*payload)
                elif kind == INTEREST:
                    handler.on_interest(payload)
            except Exception:
                LOG.exception("serving %r failed", handler)
        due = self.timers.next_ns()
        if due is not None and due <= now:
            self.timers.run_due(now)
        if self.ready:
            self._deliver(now)
        self._finish()

    def _serve_first(self, arrived: list[Any], now: int) -> None:
        """Who fetches message by message sends an ack and the next request together: the request first, if that comes to
        the same."""
        (_, number, acks), (kind, other, pulls) = arrived
        consumer = self.handlers.get(number)
        if kind == PULLS and number == other and consumer is not None and consumer.may_wait(acks):
            arrived.pop()
            try:
                consumer.on_pulls(pulls)
            except Exception:
                LOG.exception("serving %r failed", consumer)
            if self.ready:
                self._deliver(now)

    def _deliver(self, now: int) -> None:
        ready, self.ready = self.ready, {}
        for consumer in ready:
            try:
                consumer.deliver(now)
            except Exception:
                LOG.exception("delivering for %r failed", consumer)

    def wake(self, consumer: Any) -> None:
        """Have `consumer.deliver` called before this turn (or the next) ends."""
        if not self.ready:
            self.on_work()
        self.ready[consumer] = None

    def wake_stalled(self) -> None:
        """Clients that were behind read again: consumers that waited for them go on."""
        stalled, self.stalled = self.stalled, {}
        for consumer in stalled:
            self.wake(consumer)

    # Durability

    def after(
        self,
        target: Syncs,
        mark: int | None,
        release: Release,
        refused: Refused | None = None,
        *,
        now: bool = False,
    ) -> None:
        """Call `release` when `mark` of `target` is on disk; at the end of the turn where that is not asked for
        (`now`, or mode `interval`). If the sync fails, `refused` is called with the error."""
        if now or not self.sync_needed:
            self.at_end(release)
            return
        key = id(target)
        known = self._group.marks.get(key)
        if known is None or (mark is not None and (known[1] is None or known[1] < mark)):
            self._group.marks[key] = (target, mark)
        self._group.releases.append((key, release, refused))

    def at_end(self, release: Release) -> None:
        """Call `release` when everything of this turn was taken in: for what waits for no disk."""
        self._at_end.append(release)

    def _finish(self) -> None:
        while self._at_end:
            at_end, self._at_end = self._at_end, []
            for release in at_end:
                release()
            if self.ready:
                self._deliver(self.now())
        if self._group.releases and not self._in_flight:
            group, self._group = self._group, Group()
            self._in_flight = True
            self.committer.submit(group)

    def released(self, group: Group) -> None:
        """A group is on disk (or its errors are known): say what waited for it, then take the next."""
        self._in_flight = False
        self.alone = len(group.releases) == 1
        for key, release, refused in group.releases:
            error = group.errors.get(key)
            try:
                if error is None:
                    release()
                elif refused is not None:
                    refused(error)
            except Exception:
                LOG.exception("answering after a sync failed")
        for key, error in group.errors.items():
            LOG.error("a sync failed, nothing of it was acknowledged: %s", error)
            self._heal_later(group.marks[key][0])
        if self.ready:
            self._deliver(self.now())
        self._finish()

    def _heal_later(self, target: Any) -> None:
        """A poisoned store is written again from its doubtful tail on, until that works."""
        if not hasattr(target, "heal") or target in self._healing:
            return
        self._healing.add(target)

        def done(result: Any) -> None:
            self._healing.discard(target)
            if isinstance(result, Exception):
                LOG.warning("stream %s still cannot be written: %s", target.name, result)
                self._heal_later(target)
            else:
                LOG.warning("stream %s is written again", target.name)

        self.timers.at(self.now() + HEAL_EVERY_NS, lambda: self.off_loop(target.heal, done))

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` on a thread; `done(result or exception)` comes back on the loop."""
        self.run_off_loop(work, done)


def _no_backlog(_slot: int) -> int:
    return 0


def _nothing() -> None:
    """Nobody is to be told."""


def _run_here(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    try:
        result: Any = work()
    except HeadraceError as error:
        result = error
    done(result)
