"""How many messages wait for a consumer that were never delivered to it.

Counted from the position to the end of what may be seen; kept while messages are sent and new ones come; counted again
when others went. Where that would take long (a filter over blocks that are not in memory, or over very many subjects)
it is counted off the loop, and nothing is sent before it is known: every delivery says how many are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.timers import RETRY_NS
from headrace.errors import NotInMemory
from headrace.layouts.stream_store import StreamStore
from headrace.streams.stream.loads import memory_only

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer

LOG = logging.getLogger("headrace.streams")


SKIPPED_AT_ONCE = 50_000
"""More sequences of a skip list are not looked at on the loop."""


class Count(NamedTuple):
    """Messages on filters in `[first, below)` and those of a skip list, and what the stream held when they were counted."""

    first: int
    below: int
    filters: tuple[str, ...]
    skipped: int
    """Sequences of the skip list."""
    found: int
    messages: int
    last_seq: int


def count(
    store: StreamStore, first: int, below: int, filters: Sequence[str], skip_list: bytes = b""
) -> Count:
    """On whatever thread; the skip list has 8 bytes for each sequence."""
    messages, last = store.messages, store.last_seq
    found = store.count_matching(first, below, filters)
    if skip_list:
        found += store.count_live(skip_list)
    return Count(first, below, tuple(filters), len(skip_list) // 8, found, messages, last)


class PendingCount:
    """The count of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer, self._store = consumer, consumer.stream.store
        self._stale = True
        self._changes = 0
        """How often messages went that it counts, or the position became another one."""
        self._found = self._below = self._in_vain = 0
        self._under_way = False

    def changed(self) -> None:
        """Messages went that it counts, or the position is another one: count again."""
        self._stale = True
        self._changes += 1

    def sent(self, count: int) -> None:
        """Messages were delivered for the first time."""
        self._found = max(self._found - count, 0)

    def below(self, end: int) -> int:
        """How many there are below a sequence; counted now if need be."""
        if self._stale:
            counted = self.work(end)()
            self._found, self._below, self._stale = counted.found, end, False
        elif end > self._below:
            filters = self._consumer.position.filters
            self._found += self._store.count_matching(self._below, end, filters)
            self._below = end
        return self._found

    def _first(self) -> int:
        position = self._consumer.position
        return position.resume if position.skip_list else position.next_seq

    def known(self, end: int) -> bool:
        """Whether `below` has its answer at hand, or finds it soon."""
        position = self._consumer.position
        long = self._stale and len(position.skip_list) > SKIPPED_AT_ONCE
        if not (long or position.filters) or (not self._stale and end <= self._below):
            return True
        if long or self._under_way:
            return False
        try:
            with memory_only():
                self.below(end)
        except NotInMemory:
            return False
        return True

    # Off the loop

    def work(self, end: int) -> Callable[[], Count]:
        """What counts it, on whatever thread; `taker` takes the result."""
        position = self._consumer.position
        skip_list = position.skip_list.packed() if position.skip_list else b""
        return partial(count, self._store, self._first(), end, tuple(position.filters), skip_list)

    def taker(self, *, shown: bool = False) -> Callable[[Count], None]:
        """What takes a count that begins now: it holds if nothing changed meanwhile. Where something changes all the time
        the second one holds all the same, or nothing would ever be sent; one that is only shown holds at once."""
        changes = self._changes

        def take(counted: Count) -> None:
            if self._is_of_now(counted) and (changes == self._changes or self._in_vain or shown):
                self._accept(counted)
            else:
                self._in_vain += 1

        return take

    def take_first(self, counted: Count) -> None:
        """A count from before the position was this one: it holds if nothing but new messages came since."""
        store = self._store
        if self._is_of_now(counted) and (
            store.messages - counted.messages == store.last_seq - counted.last_seq
        ):
            self._accept(counted)

    def _is_of_now(self, counted: Count) -> bool:
        position = self._consumer.position
        now = (self._first(), tuple(position.filters), len(position.skip_list))
        return (counted.first, counted.filters, counted.skipped) == now

    def _accept(self, counted: Count) -> None:
        self._found, self._below, self._stale, self._in_vain = counted.found, counted.below, False, 0

    def count_later(self, end: int) -> None:
        """Have it counted off the loop; the consumer is woken when that is done."""
        if self._under_way:
            return
        self._under_way = True
        engine, wake, take = self._consumer.engine, self._consumer.wake, self.taker()

        def done(result: Any) -> None:
            self._under_way = False
            if isinstance(result, Exception):
                LOG.warning("what waits for %r cannot be counted: %s", self._consumer, result)
                engine.timers.at(engine.now() + RETRY_NS, wake)
                return
            take(result)
            wake()

        engine.off_loop(self.work(end), done)
