"""Sends the answers of one direct get, a step of them at a time, no faster than the client takes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from headrace.errors import HeadraceError
from headrace.streams.engine import StreamEngine
from headrace.streams.stream.direct import Steps

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
        answers: Steps,
    ) -> None:
        self._engine, self._account, self._conn, self._reply = engine, account, conn, reply
        self._answers = answers
        self._result: Any = None
        """Of what was looked for on a thread."""

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
            while True:
                result, self._result = self._result, None
                answer = self._answers.send(result)
                if callable(answer):
                    engine.off_loop(answer, self._looked_up)
                    return
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
        except StopIteration:
            return
        except HeadraceError as problem:  # the stream is gone, or cannot be read
            LOG.warning("a direct get ends early: %s", problem)

    def _looked_up(self, result: Any) -> None:
        self._result = result
        self._go_on()

    def _go_on(self) -> None:
        self._engine.do_in_steps(("direct", self._conn), self._steps())
