"""Work that is too much for one turn: done in steps, everybody who waits gets one in turn.

    slices.add(conn, steps)       a generator: each `next` is one step, of a millisecond or so
    slices.run()                  once per turn: steps, until their time is up

Steps under one key run in the order in which they were added; keys take turns, so that a client with a thousand requests
holds up nobody but itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator

LOG = logging.getLogger("headrace.engine")
TURN_NS = 2_000_000
"""So long the steps of one turn may take, the last one not counted."""


class Slices:
    """What is left to do, by key."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._waiting: dict[Hashable, deque[Iterator[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._waiting

    def add(self, key: Hashable, steps: Iterator[None]) -> None:
        """Do this too, after everything that waits under the same key."""
        self._waiting.setdefault(key, deque()).append(steps)

    def run(self) -> None:
        """One turn's share. Steps that fail are logged and end the work they belong to."""
        until = self._now() + TURN_NS
        while self._waiting:
            key, queue = next(iter(self._waiting.items()))
            del self._waiting[key]
            if not self._step(queue[0]):
                queue.popleft()
            if key in self._waiting:  # the step itself added something
                queue.extend(self._waiting.pop(key))
            if queue:
                self._waiting[key] = queue
            if self._now() >= until:
                return

    def _step(self, steps: Iterator[None]) -> bool:
        try:
            next(steps)
        except StopIteration:
            return False
        except Exception:
            LOG.exception("work in steps failed")
            return False
        return True


def once(act: Callable[[], object]) -> Iterator[None]:
    """A call as work of one step."""
    act()
    return
    yield
