"""The turn of a server, whatever it serves: what was taken in is decided once per run, and answered when it is durable.

    sources, one per protocol ─→ what arrived, decided
    whoever woke up ─→ one `deliver` each
    long work ─→ a step per turn          timers ─→ what is due
    what must be on disk before it is said ─→ one commit group, off the loop
    released(group) ─ answers of the group, those who follow see what became durable

It does no I/O and knows no protocol: syncs go through the committer, threads and connections are the host's (`ports`).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from headrace.engine.commits import ALL_SO_FAR, Group, Refused, Release
from headrace.engine.ports import Committer, Deliverer, Host, InlineHost, WorkSource
from headrace.engine.slices import Slices, once
from headrace.engine.timers import RETRY_NS, Timers
from headrace.layouts.stream_store import Committable

LOG = logging.getLogger("headrace.engine")

HEAL_EVERY_NS = 1_000_000_000
CALLS_NS = 2_000_000
"""So long a turn may have taken before further calls are left for the next one."""


class InlineCommitter:
    """Commits at once: for tests, and for volumes that need no waiting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(self, group: Group) -> None:
        group.commit()
        self._engine.released(group)


class Engine:
    """The turn, its commit group, timers and long work, for any number of sources."""

    def __init__(
        self,
        *,
        sync_needed: bool,
        clock: Callable[[], int] = time.time_ns,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.clock, self.now, self.sync_needed = clock, now, sync_needed
        self.timers = Timers()
        self.slices = Slices(now)
        self.sources: list[WorkSource] = []
        self.ready: dict[Deliverer, None] = {}
        self.stalled: dict[Deliverer, None] = {}
        """Those who wait until clients read on."""
        self.committer: Committer = InlineCommitter(self)
        self.host: Host = InlineHost()
        self.alone = False
        """One request arrived in this turn, perhaps behind an ack: its answer need not wait for others (`send_early`)."""
        self._turn_began = 0
        self._more_arrived = False
        self._ids = itertools.count(1)
        self._group = Group()
        self._in_flight = False
        self._at_end: list[Release] = []
        self._healing: set[Committable] = set()
        self._unlinking: set[Committable] = set()

    def new_id(self) -> int:
        """A number that nothing else in this engine has."""
        return next(self._ids)

    # The turn

    def turn(self) -> None:
        """Serve everything that arrived and is due, and commit."""
        self._turn_began = now = self.now()
        self._more_arrived = False
        for source in self.sources:
            try:
                if source.serve(now):
                    self._more_arrived = True
            except Exception:
                LOG.exception("taking in what arrived at %r failed", source)
        due = self.timers.next_ns()
        if due is not None and due <= now:
            self.timers.run_due(now)
        if self.slices:
            self.slices.run()
        if self.ready:
            self.deliver(now)
        self._finish()

    def deliver(self, now: int) -> None:
        """Everybody who was woken gets a call."""
        ready, self.ready = self.ready, {}
        for each in ready:
            try:
                each.deliver(now)
            except Exception:
                LOG.exception("delivering for %r failed; it is tried again in a second", each)
                self.timers.at(now + RETRY_NS, partial(self.wake, each))

    def wake(self, deliverer: Deliverer) -> None:
        """Have `deliverer.deliver` called before this turn (or the next) ends."""
        if not self.ready:
            self.host.wake_loop()
        self.ready[deliverer] = None

    @property
    def has_work(self) -> bool:
        """Whether another turn is wanted, even if nothing arrives."""
        return self._more_arrived or bool(self.ready) or len(self.slices) > 0

    def in_turn(self, conn: Hashable, act: Callable[[], object]) -> None:
        """Serve a call of a connection: now, or in a later turn because this one took long already. Calls of one
        connection are served in order."""
        if conn not in self.slices and self.now() - self._turn_began < CALLS_NS:
            act()
        else:
            self.do_in_steps(conn, once(act))

    def do_in_steps(self, key: Hashable, steps: Iterator[None]) -> None:
        """Have long work done a bit per turn (`Slices`)."""
        self.slices.add(key, steps)
        self.host.wake_loop()

    def wake_stalled(self) -> None:
        """Clients that were behind read again: those who waited for them go on."""
        stalled, self.stalled = self.stalled, {}
        for each in stalled:
            self.wake(each)

    # Durability

    def after(
        self,
        target: Committable,
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
        self._group.add(target, ALL_SO_FAR if mark is None else mark, release, refused)

    def at_end(self, release: Release) -> None:
        """Call `release` when everything of this turn was taken in: for what waits for no disk."""
        self._at_end.append(release)

    @property
    def commit_runs(self) -> bool:
        """Whether a commit group is being synced."""
        return self._in_flight

    @property
    def waits(self) -> bool:
        """Whether answers wait for the disk, or for their turn."""
        return self._in_flight or bool(self._group.releases) or len(self.slices) > 0

    def _finish(self) -> None:
        while self._at_end:
            at_end, self._at_end = self._at_end, []
            for release in at_end:
                try:
                    release()
                except Exception:
                    LOG.exception("answering at the end of a turn failed")
            if self.ready:
                self.deliver(self.now())
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
            target, _ = group.marks[key]
            self._heal_later(target)
        if self.ready:
            self.deliver(self.now())
        for target, _ in group.marks.values():
            if target.has_dead_files:
                self._unlink_later(target)
        self._finish()

    def _unlink_later(self, target: Committable) -> None:
        """Files without messages go off the loop, once what they wait for is on disk; one thread at a time per stream."""
        if target in self._unlinking:
            return
        self._unlinking.add(target)

        def done(result: Any) -> None:
            self._unlinking.discard(target)
            if isinstance(result, Exception):
                LOG.warning("files of %r that nobody needs are still there: %s", target, result)

        self.off_loop(target.unlink_dead, done)

    def _heal_later(self, target: Committable) -> None:
        """A poisoned store is written again from its doubtful tail on, until that works."""
        if not target.can_heal or target in self._healing:
            return
        self._healing.add(target)

        def done(result: Any) -> None:
            self._healing.discard(target)
            if isinstance(result, Exception):
                LOG.warning("%r still cannot be written: %s", target, result)
                self._heal_later(target)
            else:
                LOG.warning("%r is written again", target)

        self.timers.at(self.now() + HEAL_EVERY_NS, lambda: self.off_loop(target.heal, done))

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` on a thread; `done(result or exception)` comes back on the loop."""
        self.host.run_off_loop(work, done)
