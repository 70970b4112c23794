"""A short spin after a turn, while it pays.

A client with one request in flight sends the next one some tens of microseconds after our answer. Going to sleep and
being woken up costs more than that. So after a turn the loop polls a little longer; if nothing came in several such
spins, it stops trying for a while: an idle server sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SPIN_S = 100e-6
MISSES_MAX = 8
REST_S = 0.01


class Spin:
    """Keeps the loop awake between turns that follow each other closely."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Callable[[], None]) -> None:
        self._loop = loop
        self._turn = turn
        self._until = 0.0
        self._handle: asyncio.Handle | None = None
        self._last_turn = 0.0
        self._misses = 0
        self._resting_until = 0.0
        self.enabled = True

    def after_turn(self) -> None:
        """A turn ended now."""
        if not self.enabled:
            return
        now = time.monotonic()
        if self._handle is not None:
            self._misses = 0  # it came while we were waiting for it
        gap, self._last_turn = now - self._last_turn, now
        if gap > 4 * SPIN_S and self._handle is None:
            return
        if now < self._resting_until:
            return
        self._until = now + SPIN_S
        if self._handle is None:
            self._handle = self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        if time.monotonic() < self._until:
            self._handle = self._loop.call_soon(self._poll)
            return
        self._handle = None
        self._misses += 1
        if self._misses >= MISSES_MAX:
            self._misses = 0
            self._resting_until = time.monotonic() + REST_S

    def stop(self) -> None:
        """No more."""
        self.enabled = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
