"""Calls that take longer than a turn: those that change the same thing run one after the other, others pass.

    CONSUMER.CREATE.S.a   ── off the loop ──────────→ answer
    CONSUMER.CREATE.S.b   ── off the loop ────→ answer           another consumer: beside it
    STREAM.UPDATE.S       ····················· waits ··· ──→     the whole stream: when both are done
    STREAM.INFO.T         answered at once

A key is (stream, part of it). Keys conflict when the stream is the same and the part too, or when one of them means the
whole stream (`WHOLE`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

WHOLE = ""
Key = tuple[str, str]
_parts = itertools.count(1)


def own_part() -> str:
    """A part that nobody else has: the call conflicts with those on the whole stream only."""
    return f" {next(_parts)}"


class CallQueue:
    """What is under way in one account, and what waits for it, in the order of arrival."""

    def __init__(self) -> None:
        self._running: dict[str, list[str]] = {}
        self._waiting: dict[str, deque[tuple[str, Callable[[], None]]]] = {}

    def is_busy(self, key: Key) -> bool:
        """Whether something that conflicts with the key is under way, or waits to be."""
        stream, part = key
        running = self._running.get(stream, ())
        waiting = self._waiting.get(stream, ())
        return any(_conflict(part, other) for other in running) or any(
            _conflict(part, other) for other, _ in waiting
        )

    def submit(self, key: Key, start: Callable[[], None]) -> None:
        """Call `start` now, or as soon as nothing conflicts with its key."""
        if self.is_busy(key):
            self._waiting.setdefault(key[0], deque()).append((key[1], start))
        else:
            start()

    def begin(self, key: Key) -> None:
        """Something under that key goes on beyond this turn."""
        self._running.setdefault(key[0], []).append(key[1])

    def end(self, key: Key) -> None:
        """It is over: start what waited for it."""
        stream, part = key
        running = self._running[stream]
        running.remove(part)
        if not running:
            del self._running[stream]
        waiting = self._waiting.pop(stream, deque[tuple[str, Callable[[], None]]]())
        while waiting:
            part, start = waiting.popleft()
            if self.is_busy((stream, part)):
                self._waiting.setdefault(stream, deque()).append((part, start))
            else:
                start()


def _conflict(one: str, other: str) -> bool:
    return one == other or WHOLE in (one, other)
