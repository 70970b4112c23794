"""Syncs off the loop: one thread takes commit groups one after the other; what comes meanwhile shares the next."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.streams.engine import Group


class ThreadCommitter:
    """`submit` returns at once; `done(group)` is called on the loop when the group is on disk.

    With `wake`, the loop is woken by it and calls `take` by itself.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Group], None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._loop, self._done, self._wake = loop, done, wake
        self._finished: deque[Group] = deque()
        self._groups: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-commit", daemon=True)
        self._thread.start()

    def submit(self, group: Group) -> None:
        """Take a group; the engine hands over the next one only when this one is done."""
        self._groups.put(group)

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            group.sync()
            self._finished.append(group)
            if self._wake is not None:
                self._wake()
                continue
            try:
                self._loop.call_soon_threadsafe(self.take)
            except RuntimeError:  # the loop has ended: nobody waits for answers any more
                return

    def take(self) -> None:
        """On the loop: hand over what is on disk."""
        while self._finished:
            self._done(self._finished.popleft())

    def close(self) -> None:
        """Finish what was handed over and end."""
        self._groups.put(None)
        self._thread.join()
