"""How a thread that makes a page reads the server, which belongs to its loop: in short visits there.

    visits = LoopVisits(loop)                   made on the loop
    visits.call(lambda: len(server.clients))    from a thread: runs on the loop, a short piece of work
    visits.each(streams, describe)              many pieces: as many per visit as fit into a millisecond or two

On the loop itself both simply run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

from headrace.errors import StoreClosed

VISIT_S = 0.002
LOOK_S = 0.2
BUSY_S = 0.002
"""How long a page waits for something that is being worked on."""
WAIT_S = 30.0

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")


class LoopVisits:
    """Access to one loop from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._thread = loop, threading.get_ident()

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises on the loop."""
        if threading.get_ident() == self._thread:
            return work()
        done: Future[T] = Future()

        def visit() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        deadline = time.monotonic() + WAIT_S
        try:
            self._loop.call_soon_threadsafe(visit)
        except RuntimeError as error:
            raise StoreClosed("the server has ended") from error
        while True:
            try:
                return done.result(LOOK_S)
            except NotYet:
                if self._loop.is_closed() or time.monotonic() > deadline:
                    raise StoreClosed("the server has ended, or is too busy") from None

    def each(
        self, items: Sequence[A], make: Callable[[A], B], is_busy: Callable[[A], bool] | None = None
    ) -> list[B]:
        """`make` of every item. One that is busy is waited for, off the loop."""
        found: list[B] = []
        on_loop = threading.get_ident() == self._thread

        def visit() -> bool:
            until = time.monotonic() + VISIT_S
            while len(found) < len(items):
                item: Any = items[len(found)]
                if not on_loop and is_busy is not None and is_busy(item):
                    return True
                found.append(make(item))
                if time.monotonic() >= until:
                    break
            return False

        while len(found) < len(items):
            if self.call(visit):
                time.sleep(BUSY_S)
        return found
