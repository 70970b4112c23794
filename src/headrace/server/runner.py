"""`EngineRunner`: the turns of the engine on the event loop, for all front ends of the process.

    sockets of the core readable → pump → one turn → one flush: a send per client that has something to get
    asyncio's transports         → front end.feed → schedule → one turn → one flush
    a commit group is on disk    → its answers → flush

A turn that served plain clients is followed by a short look at their sockets: the next request of a client that waits
for our answer is often here before the loop could have gone to sleep and woken up (`spin.py`: only while that pays).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from headrace.server._kernels import SOCKETS, Exchange, Requests, Sockets
from headrace.server.committer import ThreadCommitter
from headrace.server.spin import LOOK_NS, SYNC_LOOK_NS, Spin

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.engine.engine import Engine
    from headrace.server.sockets import SocketClient

WORKERS = 16
"""Threads for what is not done on the loop. They mostly wait for syncs, which the file system does for all at once."""
SLICE_NS = 4_000_000
"""So long the sockets are served without going back to the loop, where new clients and monitoring wait."""
SHARED_SLICE_NS = 1_000_000
"""The same where the loop has clients of its own to serve."""

Notices = list[tuple[int, int, int]]


class FrontEnd(Protocol):
    """A protocol that is served: its listeners and clients."""

    @property
    def kernel(self) -> Exchange | Requests:
        """Its connections in the core."""
        ...

    @property
    def has_transports(self) -> bool:
        """Whether some of its clients are on asyncio's transports."""
        ...

    def on_notice(self, slot: int, notice: int) -> None:
        """What the sockets have to say of a connection (`sockets.Notice`)."""
        ...

    def send_to_transports(self) -> None:
        """Send what is there for clients whose sockets are not in the core."""
        ...


class EngineRunner:
    """One engine on one event loop; front ends are added to it."""

    def __init__(self, engine: Engine) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = engine
        self.sockets = Sockets() if SOCKETS else None
        self.plain_clients = 0
        """Connections whose sockets are in the core."""
        engine.committer = self.committer = ThreadCommitter(self.loop, self._released, self.sockets)
        engine.host = self
        self._front_ends: list[FrontEnd] = []
        self._workers = ThreadPoolExecutor(WORKERS, "headrace-work")
        self._notices: Notices = []
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._spin = Spin()
        self._leaving = False
        if self.sockets is not None:
            self.loop.add_reader(self.sockets.fileno(), self._ready)

    def add_front_end(self, front_end: FrontEnd) -> int:
        """Serve one more protocol; its number."""
        self._front_ends.append(front_end)
        if self.sockets is None:
            return len(self._front_ends) - 1
        return self.sockets.add_front_end(front_end.kernel)

    # The turn

    def wake_loop(self) -> None:
        """The engine has work."""
        self.schedule()

    def schedule(self) -> None:
        """Have a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = True  # what this turn wakes is served in it
        self.engine.turn()
        self._scheduled = False
        if self.engine.has_work:
            self.schedule()
        self.flush()
        self._set_timer()

    def _released(self, group: Any) -> None:
        self.engine.released(group)
        self.flush()
        self._set_timer()

    def send_early(self) -> None:
        """In the middle of a turn, where sockets are the core's: what they have to say waits for its end."""
        if self.sockets is None:
            return
        _, notices = self.sockets.flush()
        if notices is not None:
            self._notices += notices

    def flush(self) -> None:
        """Send what is there."""
        if self.sockets is not None:
            left, notices = self.sockets.flush()
            if self._notices:
                notices, self._notices = self._notices + (notices or []), []
            if notices is not None:
                self.handle_notices(notices)
            if not left:
                return
        for front_end in self._front_ends:
            front_end.send_to_transports()

    def _set_timer(self) -> None:
        due = self.engine.timers.next_ns()
        if due is None or (self._timer is not None and self._timer_ns <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due
        self._timer = self.loop.call_later(max(due - self.engine.now(), 0) / 1e9, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._turn()

    def run_off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Work of the engine on a thread; the result comes back on the loop."""

        def guarded() -> Any:
            try:
                return work()
            except Exception as error:
                return error

        def back(result: Any) -> None:
            done(result)
            self.schedule()

        task = self.loop.run_in_executor(self._workers, guarded)
        task.add_done_callback(lambda finished: back(finished.result()))

    # The sockets of plain clients

    def _ready(self) -> None:
        """Something came. Serve it, and look for more as long as that pays."""
        assert self.sockets is not None
        sockets, spin = self.sockets, self._spin
        shared = any(each.has_transports for each in self._front_ends)
        ends = time.monotonic_ns() + (SHARED_SLICE_NS if shared else SLICE_NS)
        self._leaving = False
        self._serve(*sockets.pump(time.time_ns()))
        # Somebody who left must be off the front end before the next message is routed.
        while not self._leaving and self.plain_clients and spin.pays(ends):
            found = sockets.seek(SYNC_LOOK_NS if self.engine.commit_runs else LOOK_NS)
            if found is None:
                spin.miss()
                return
            self._serve(*found)
            spin.hit()

    def _serve(self, woken: bool, notices: Notices | None) -> None:
        if notices is not None:
            self.handle_notices(notices)
        if woken:
            self.committer.take()
        self._turn()

    def handle_notices(self, notices: Notices) -> None:
        """What the sockets have to say beyond bytes."""
        for front_end, slot, notice in notices:
            self._front_ends[front_end].on_notice(slot, notice)

    def left(self, client: SocketClient) -> None:
        """The socket is closed; the loop takes the client off its front end, before it looks at sockets again."""
        self._leaving = True
        self.loop.call_soon(client.connection_lost, None)

    # The end

    async def close(self) -> None:
        """Finish what was handed over, and stop. The front ends have closed their clients already."""
        await self.loop.run_in_executor(None, self._workers.shutdown)
        await self.loop.run_in_executor(None, self.committer.wait)
        self.committer.close()
        if self.sockets is not None:
            self.loop.remove_reader(self.sockets.fileno())
        if self._timer is not None:
            self._timer.cancel()
