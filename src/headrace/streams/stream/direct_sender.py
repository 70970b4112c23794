"""Sends the answers of one direct get, a step of them at a time, no faster than the client takes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from headrace.errors import HeadraceError
from headrace.streams.engine import StreamEngine
from headrace.streams.stream.direct import Answer

LOG = logging.getLogger("headrace.streams")
STEP_BYTES = 1 << 20
BEHIND_BYTES = 4 << 20
"""A client that has this much unread gets the next step when it has read."""
WAIT_NS = 5_000_000
_END = object()


class DirectSender:
    """One request on its way."""

    def __init__(
        self,
        engine: StreamEngine,
        account: int,
        conn: int | None,
        reply: bytes,
        answers: Iterator[Answer | None],
    ) -> None:
        self._engine, self._account, self._conn, self._reply = engine, account, conn, reply
        self._answers = answers

    def start(self) -> None:
        """Send the first step at once; the others follow when it is their turn."""
        steps = self._steps()
        if next(steps, _END) is not _END:
            self._engine.do_in_steps(("direct", self._conn), steps)

    def _steps(self) -> Iterator[None]:
        """Send everything, a bit per step; a client that is behind is left alone for a while."""
        engine, publish, account, reply = (
            self._engine,
            self._engine.exchange.publish,
            self._account,
            self._reply,
        )
        size = 0
        try:
            for answer in self._answers:
                if answer is not None:
                    publish(account, reply, None, *answer)
                    size += len(answer[1])
                    if size < STEP_BYTES:
                        continue
                if self._conn is not None and engine.connections.backlog(self._conn) > BEHIND_BYTES:
                    engine.timers.at(engine.now() + WAIT_NS, self._go_on)
                    return
                if size and not engine.exchange.interest(account, reply.decode(), None):
                    return
                size = 0
                yield
        except HeadraceError as problem:  # the stream is gone, or cannot be read
            LOG.warning("a direct get ends early: %s", problem)

    def _go_on(self) -> None:
        self._engine.do_in_steps(("direct", self._conn), self._steps())
