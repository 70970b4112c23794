"""Mirrors and sources: a stream takes the messages of other streams of its account.

    origin.stored ─→ followers wake ─→ deliver: read a batch of what is durable there
                                          │  mirror: as it is, sequences and times kept
                                          │  source: moved, with a header that says where it came from
                                          └→ append here ─→ commit group ─→ stream.stored: consumers, followers

At most one batch per origin and turn; what is left is taken in the next turns. What cannot be stored (no room, too
large) is not passed over: the stream waits before it and tries again, as nats-server does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.engine.timers import Timer
from headrace.errors import HeadraceError
from headrace.streams.errors import api_error, bad_stream
from headrace.streams.sourcing.state import Feed, OriginPosition, find_places, identity_of, save_places, shown
from headrace.streams.sourcing.store import SourcedWriter
from headrace.streams.stream.ingest import store_error

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream

LOG = logging.getLogger("headrace.streams")

MSGS_MAX = 4096
BYTES_MAX = 4 << 20
LOADS_MAX = 0
RETRY_NS = 1_000_000_000
HEARTBEAT_NS = 1_000_000_000
INTEREST_ORIGIN = "origin stream has interest retention: it does not keep messages for other streams"


class Origins:
    """What a stream with a mirror or sources follows."""

    def __init__(self, stream: Stream, before: Origins | None = None) -> None:
        self.stream, self.engine = stream, stream.engine
        config = stream.config
        self.mirror = config.mirror is not None
        wanted = config.sources if config.mirror is None else (config.mirror,)
        known = {feed.key: feed for feed in before.feeds} if before is not None else {}
        self.feeds = [Feed(each) for each in wanted]
        self._writer = SourcedWriter(stream, mirror=self.mirror)
        self._timer: Timer | None = None
        self._closed = False
        self._durable_last = before.saved_last if before is not None else stream.store.last_seq
        if not self.mirror:
            find_places(stream.store, [feed for feed in self.feeds if feed.key not in known])
            for feed in self.feeds:
                if (old := known.get(feed.key)) is not None:
                    feed.identity, feed.next = old.identity, old.next
                    feed.taken, feed.durable = old.taken, old.durable

    @classmethod
    def of(cls, stream: Stream, before: Origins | None = None) -> Origins | None:
        """None for a stream that takes nothing from others. `before` follows no more."""
        if before is not None:
            before.stop()
            before.save()
        config = stream.config
        return cls(stream, before) if config.mirror is not None or config.sources else None

    @property
    def saved_last(self) -> int:
        """The stream's own sequence up to which the durable places are known."""
        return self._durable_last

    # Who is followed

    def look(self, name: str) -> None:
        """A stream of that name was made, changed or removed; with its own name, look at all."""
        for feed in self.feeds:
            if name in (feed.name, self.stream.name):
                self._attach(feed)

    def _attach(self, feed: Feed) -> None:
        origin = self.stream.account.streams.get(feed.name)
        if origin is not feed.origin:
            self._detach(feed)
            feed.origin = origin
            if origin is not None:
                self._find_start(feed, origin)
        if origin is not None:
            origin.followers[self] = None
        self.wake()

    def _find_start(self, feed: Feed, origin: Stream) -> None:
        """Go on behind what was taken; from the configured start in an origin that is another one by now."""
        identity, before = identity_of(origin), feed.taken
        if self.mirror:
            before = OriginPosition(identity, self.stream.store.last_seq)
        if before.sequence and before.identity in ("", identity):
            feed.next = max(feed.next if feed.identity == identity else 0, before.sequence + 1)
            self._free_older(feed, origin)
        else:
            feed.next, feed.taken = feed.start(origin), OriginPosition(identity, 0)
        feed.identity = identity

    def _detach(self, feed: Feed) -> None:
        if feed.origin is not None:
            feed.origin.followers.pop(self, None)
            feed.origin = None

    # The turn

    def wake(self) -> None:
        """There may be something to take."""
        if not self._closed:
            self.engine.wake(self)

    def deliver(self, now: int) -> None:
        """Take one batch from every origin."""
        if self._closed or self.stream.fenced:
            return
        more = blocked = False
        for feed in self.feeds:
            before = feed.error
            feed.error = None
            if feed.origin is None:
                feed.error = api_error("JSStreamNotFoundErr")
            elif feed.origin.config.retention == "interest":
                feed.error = bad_stream(INTEREST_ORIGIN)
            else:
                feed.contact_ns = now
                more |= self._take(feed, feed.origin)
                blocked |= feed.error is not None
            if feed.error is not None and before is None:
                LOG.info("%s takes nothing from %s: %s", self.stream, feed.name, feed.error)
        if more:
            self._later(0)
        elif blocked:
            self._later(RETRY_NS)

    def _later(self, wait_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.engine.timers.at(self.engine.now() + wait_ns, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self.wake()

    def _take(self, feed: Feed, origin: Stream) -> bool:
        """A batch from an origin; whether there is more."""
        store, below = origin.store, origin.visible
        end = store.last_seq + 1 if below is None else below
        if feed.next >= end:
            return False
        # Messages of a source are made anew one by one: fewer at once, the loop waits for it.
        at_once = MSGS_MAX if self.mirror else MSGS_MAX // 4
        batch, following = store.read_matching(feed.next, at_once, BYTES_MAX, feed.filters, below, LOADS_MAX)
        try:
            whole = not len(batch) or self._writer.take(feed, batch)
        except HeadraceError as problem:
            feed.error, whole = store_error(problem), False
        if whole:
            feed.next = following
        if not len(batch) and following < end:
            self.engine.loads.want(store, following, self.wake, feed.filters)
            return False
        done = batch if whole else batch.filter(None, feed.next, None, None, [])
        if len(done):
            feed.taken = OriginPosition(feed.identity, done.last_position)
            free = done.positions() if origin.config.retention == "workqueue" else ()
            self._when_durable(partial(self._durable, feed, feed.taken, self._writer.last, origin, free))
        return whole and feed.next < end

    # Durability

    def _when_durable(self, release: Any) -> None:
        """Called again after a sync that failed: the store writes what is in doubt once more."""
        stream = self.stream
        if self._closed:
            return

        def refused(_error: Exception) -> None:
            self.engine.timers.at(self.engine.now() + RETRY_NS, partial(self._when_durable, release))

        self.engine.after(stream.store, stream.mark(), release, refused, now=stream.in_memory)

    def _durable(
        self, feed: Feed, place: OriginPosition, last: int, origin: Stream, free: Sequence[int]
    ) -> None:
        feed.durable = place
        self._durable_last = max(self._durable_last, last)
        if not self.stream.closed:
            self.stream.stored(None)
        if free and not origin.closed:
            _free(origin, free)

    def _free_older(self, feed: Feed, origin: Stream) -> None:
        """A crash came between taking messages and freeing them in the work queue."""
        if origin.config.retention != "workqueue":
            return
        position, store = feed.start(origin), origin.store
        while position < feed.next:
            batch, position = store.read_matching(
                position, MSGS_MAX, BYTES_MAX, feed.filters, feed.next, 1 << 30
            )
            if not len(batch):
                break
            _free(origin, batch.positions())

    def save(self) -> None:
        """Files of messages may go: note the places that they have."""
        if not self.mirror:
            save_places(self.stream.store, self._durable_last, self.feeds)

    def stop(self) -> None:
        """Follow nobody any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for feed in self.feeds:
            self._detach(feed)

    # Looking

    def info(self) -> list[dict[str, Any]]:
        """Every origin as a stream's info shows it."""
        return [shown(feed, self._lag(feed), self._active(feed), mirror=self.mirror) for feed in self.feeds]

    def _lag(self, feed: Feed) -> int:
        if feed.origin is None or feed.contact_ns is None:
            return 0
        return feed.origin.store.count_matching(feed.next, None, feed.filters)

    def _active(self, feed: Feed) -> int:
        """Nanoseconds since the last contact: an origin that is there is never farther than a heartbeat."""
        if feed.contact_ns is None:
            return -1
        since = max(self.engine.now() - feed.contact_ns, 1)
        return since if feed.origin is None else min(since, HEARTBEAT_NS)


def _free(origin: Stream, sequences: Sequence[int]) -> None:
    """Another stream has them: in a work queue they are done."""
    live = origin.store.live_among(list(sequences))
    if live:
        origin.store.remove(live)
        origin.removed(live)
