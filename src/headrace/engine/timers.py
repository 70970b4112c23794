"""Timers on the monotonic clock: one heap per server, callbacks run by the engine's turn.

A callback that raises is logged and called again a second later: what it does is still due, and no other timer waits
for it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

LOG = logging.getLogger("headrace.engine")
RETRY_NS = 1_000_000_000


class Timer:
    """A callback that is due at a time; `cancel` is cheap, the heap forgets it later."""

    __slots__ = ("at_ns", "callback")

    def __init__(self, at_ns: int, callback: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not call."""
        self.callback = None


class Timers:
    """What is due when."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = itertools.count()

    def at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call back at a monotonic time in ns."""
        timer = Timer(at_ns, callback)
        heapq.heappush(self._heap, (at_ns, next(self._count), timer))
        return timer

    def next_ns(self) -> int | None:
        """When the next one is due; None for never."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_ns: int) -> int:
        """Run everything that is due; returns how many. Timers set meanwhile for now wait for the next turn."""
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        ran = 0
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is None:
                continue
            ran += 1
            try:
                callback()
            except Exception:
                LOG.exception("a timer failed; it runs again in a second")
                self.at(now_ns + RETRY_NS, callback)
        return ran
