"""How many messages wait for a consumer that were never delivered to it.

Counted from the position to the end of what may be seen; kept while messages are sent and new ones come; counted again
when others went. Where that would take long (a filter over blocks that are not in memory, or over very many subjects)
it is counted off the loop, and nothing is sent before it is known: every delivery says how many are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.timers import RETRY_NS
from headrace.errors import NotInMemory
from headrace.layouts.stream_store import StreamStore
from headrace.streams.stream.loads import memory_only

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer

LOG = logging.getLogger("headrace.streams")


class Count(NamedTuple):
    """Messages on filters in `[first, below)`, and what the stream held when they were counted."""

    first: int
    below: int
    filters: tuple[str, ...]
    found: int
    messages: int
    last_seq: int


def count(store: StreamStore, first: int, below: int, filters: Sequence[str]) -> Count:
    """On whatever thread."""
    messages, last = store.messages, store.last_seq
    return Count(first, below, tuple(filters), store.count_matching(first, below, filters), messages, last)


class PendingCount:
    """The count of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer, self._store = consumer, consumer.stream.store
        self.stale = True
        """Messages went that it counts, or the position is another one."""
        self._found = self._below = 0
        self._under_way = False

    def sent(self, count: int) -> None:
        """Messages were delivered for the first time."""
        self._found = max(self._found - count, 0)

    def below(self, end: int) -> int:
        """How many there are below a sequence; counted now if need be."""
        if self.stale:
            self._take(end, self._store.count_matching(self._first(), end, self._consumer.position.filters))
        elif end > self._below:
            filters = self._consumer.position.filters
            self._found += self._store.count_matching(self._below, end, filters)
            self._below = end
        return self._found

    def _first(self) -> int:
        position = self._consumer.position
        return position.resume if position.skip_list else position.next_seq

    def _take(self, below: int, found: int) -> None:
        skip_list = self._consumer.position.skip_list
        waiting = self._store.count_live(skip_list.packed()) if skip_list else 0
        self._found, self._below, self.stale = waiting + found, below, False

    def known(self, end: int) -> bool:
        """Whether `below` has its answer at hand, or finds it soon."""
        if not self._consumer.position.filters or (not self.stale and end <= self._below):
            return True
        if self._under_way:
            return False
        try:
            with memory_only():
                self.below(end)
        except NotInMemory:
            return False
        return True

    # Off the loop

    def work(self, end: int) -> Callable[[], Count]:
        """What counts it, on whatever thread; `take` gets the result."""
        first, filters, store = self._first(), tuple(self._consumer.position.filters), self._store
        return lambda: count(store, first, end, filters)

    def take(self, counted: Count) -> None:
        """A count from another thread: it holds if nothing but new messages came since."""
        store, position = self._store, self._consumer.position
        same = (counted.first, counted.filters) == (self._first(), tuple(position.filters))
        only_more = store.messages - counted.messages == store.last_seq - counted.last_seq
        if same and only_more:
            self._take(counted.below, counted.found)

    def count_later(self, end: int) -> None:
        """Have it counted off the loop; the consumer is woken when that is done."""
        if self._under_way:
            return
        self._under_way = True
        engine, wake = self._consumer.engine, self._consumer.wake

        def done(result: Any) -> None:
            self._under_way = False
            if isinstance(result, Exception):
                LOG.warning("what waits for %r cannot be counted: %s", self._consumer, result)
                engine.timers.at(engine.now() + RETRY_NS, wake)
                return
            self.take(result)
            wake()

        engine.off_loop(self.work(end), done)
