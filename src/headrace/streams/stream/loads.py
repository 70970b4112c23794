"""Blocks that readers need and that are not in memory: read on threads, kept in memory while they are read from.

    loads.want(store, sequence, wake)     the block of that sequence is on its way; `wake` when it is there
    loads.ahead(store, block)             the same for one that is needed next, where there is room
    loads.passed(store, block)            its reader needs it no more

Who reads from the loop sends what is in memory, wants the rest, and is woken. What is kept is bounded in bytes and in
time; a reader that comes too late wants its block again. A few blocks are read at a time, in the order in which they
were wanted; one that several readers want is read once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from headrace.engine.engine import Engine
from headrace.engine.timers import RETRY_NS, Timer
from headrace.layouts.stream_store import HeldBlock, StreamStore
from headrace.streams._kernels import refuse_block_loads, release_large_buffers

LOG = logging.getLogger("headrace.streams")
HELD_BYTES_MAX = 64 << 20
HELD_NS = 10_000_000_000
AT_ONCE = 4
SOON_NS = 10_000_000
"""When to look again for a block that could not be held: its file is being changed."""


@contextmanager
def memory_only() -> Generator[None]:
    """What is read inside must be in memory, and be done soon: `NotInMemory` otherwise."""
    before = refuse_block_loads(True)
    try:
        yield
    finally:
        refuse_block_loads(before)


class _Key(NamedTuple):
    store: StreamStore
    block: int
    filters: tuple[str, ...]


class _Kept(NamedTuple):
    held: HeldBlock
    since_ns: int


class BlockLoads:
    """The blocks that are on their way, and those that are kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wakes: dict[_Key, list[Callable[[], None]]] = {}
        self._queue: deque[_Key] = deque()
        self._running = self._size = 0
        self._kept: dict[_Key, _Kept] = {}
        """Oldest first."""
        self._timer: Timer | None = None

    def want(
        self, store: StreamStore, sequence: int, wake: Callable[[], None], filters: Sequence[str] = ()
    ) -> None:
        """Have the block of a sequence read; `wake` when it is there, or there is something else to look for."""
        place = store.block_of(sequence)
        if place is None:
            self._engine.timers.at(self._engine.now() + SOON_NS, wake)
        else:
            self._load(_Key(store, place.number, tuple(filters)), wake)

    def want_block(self, store: StreamStore, block: int, wake: Callable[[], None]) -> None:
        """The same by the block's number."""
        self._load(_Key(store, block, ()), wake)

    def ahead(self, store: StreamStore, block: int) -> None:
        """A block that is needed next, where that takes nothing from others."""
        if self._size <= HELD_BYTES_MAX // 2 and not self._queue:
            self._load(_Key(store, block, ()), None)

    def passed(self, store: StreamStore, block: int) -> None:
        """A reader has left this block behind; one shortly behind it finds it in the store's own cache."""
        self._drop(_Key(store, block, ()))

    def _load(self, key: _Key, wake: Callable[[], None] | None) -> None:
        waiting = self._wakes.get(key)
        if waiting is None:
            waiting = self._wakes[key] = []
            self._queue.append(key)
        if wake is not None:
            waiting.append(wake)
        self._start()

    def _start(self) -> None:
        while self._queue and self._running < AT_ONCE:
            key = self._queue.popleft()
            self._running += 1
            self._engine.off_loop(partial(key.store.hold, key.block, key.filters), partial(self._done, key))

    def _done(self, key: _Key, result: Any) -> None:
        self._running -= 1
        wakes, wait_ns = self._wakes.pop(key), 0
        if isinstance(result, Exception):
            LOG.warning("a block of %s cannot be read, it is tried again: %s", key.store.name, result)
            wait_ns = RETRY_NS
        elif result is None:
            wait_ns = SOON_NS
        else:
            self._keep(key, result)
        for wake in wakes:
            if wait_ns:
                self._engine.timers.at(self._engine.now() + wait_ns, wake)
            else:
                wake()
        self._start()

    # What is kept

    def _keep(self, key: _Key, held: HeldBlock) -> None:
        self._drop(key)
        self._kept[key] = _Kept(held, self._engine.now())
        self._size += held.size
        while self._size > HELD_BYTES_MAX and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._timer = self._engine.timers.at(self._engine.now() + HELD_NS, self._drop_old)

    def _drop(self, key: _Key) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._size -= kept.held.size

    def _drop_old(self) -> None:
        self._timer, now = None, self._engine.now()
        for key, kept in list(self._kept.items()):
            if kept.since_ns + HELD_NS > now:
                self._timer = self._engine.timers.at(kept.since_ns + HELD_NS, self._drop_old)
                return
            self._drop(key)
        release_large_buffers()
