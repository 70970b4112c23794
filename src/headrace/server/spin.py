"""A short busy look after a turn, while it pays.

A client with one request in flight sends the next one some tens of microseconds after our answer. Going to sleep and
being woken up costs more than that. So after a turn the server looks a little longer; if nothing came in several such
looks, it stops trying for a while: an idle server sleeps.
"""

from __future__ import annotations

import time

LOOK_NS = 100_000
SYNC_LOOK_NS = 300_000
"""While a commit runs: a sync takes 150 to 250 us here, and being woken after it 40 more."""
MISSES_MAX = 8
REST_NS = 10_000_000


class Spin:
    """Decides whether looking pays."""

    def __init__(self) -> None:
        self._last_ns = 0
        self._misses = 0
        self._resting_until_ns = 0

    def pays(self, until_ns: int) -> bool:
        """A turn ended now. Is there time left, did it follow another one closely, and has looking paid lately?"""
        now = time.monotonic_ns()
        gap, self._last_ns = now - self._last_ns, now
        return gap < 2 * SYNC_LOOK_NS and self._resting_until_ns <= now < until_ns

    def hit(self) -> None:
        """It came while we were looking."""
        self._misses = 0

    def miss(self) -> None:
        """Nothing came."""
        self._misses += 1
        if self._misses >= MISSES_MAX:
            self._misses = 0
            self._resting_until_ns = time.monotonic_ns() + REST_NS
