"""Where the streams' work arrives from: runs per stream, consumer and call, out of the exchange and into the turn.

    drain ─ runs per stream, consumer, call ─→ ingest · acks · pulls · API

No I/O: bytes come and go through the exchange. The turn itself is `headrace.engine`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headrace.engine.engine import Engine
from headrace.streams._kernels import (
    ACKS,
    CALL,
    INGEST,
    INTEREST,
    PULLS,
    AckRun,
    Exchange,
    PublishRun,
    PullRun,
)
from headrace.streams.stream.loads import BlockLoads

if TYPE_CHECKING:
    from headrace.layouts.stream_store import StreamVolume

LOG = logging.getLogger("headrace.streams")

CallHandler = Callable[[int | None, str, bytes | None, bytes | None, bytes, int], None]
"""Gets (connection, None for the server itself; subject, reply, headers, data, account) of a message that is a call."""


class StreamHandler(Protocol):
    """Who takes the publishes of a stream."""

    name: str
    nobody_interested: bool

    def ingest(self, run: PublishRun) -> None:
        """A run of publishes, in order."""
        ...


class ConsumerHandler(Protocol):
    """Who takes the acknowledgements and requests of a consumer."""

    def on_acks(self, run: AckRun) -> None:
        """A run of acknowledgements, in order."""
        ...

    def on_pulls(self, run: PullRun) -> None:
        """Requests for messages."""
        ...

    def on_interest(self, some: bool) -> None:
        """Somebody listens on the deliver subject, or nobody any more."""
        ...


class Connections(Protocol):
    """The clients of the exchange."""

    def backlog(self, conn: int) -> int:
        """Bytes that the client of a connection has not taken yet."""
        ...


class NoConnections:
    """Nobody is slow: for tests, and for whoever drives the turns by hand."""

    def backlog(self, conn: int) -> int:
        """Everything is taken."""
        return 0


class StreamEngine(Engine):
    """The engine with everything that listens on the exchange; the exchange is its first source."""

    def __init__(
        self,
        exchange: Exchange,
        volume: StreamVolume | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(sync_needed=volume is not None and volume.durability == "sync", clock=clock, now=now)
        self.exchange, self.volume = exchange, volume
        self.connections: Connections = NoConnections()
        self.sources.append(self)
        self.accounts: dict[str, Any] = {}
        self.streams: dict[int, StreamHandler] = {}
        self.consumers: dict[int, ConsumerHandler] = {}
        self._calls: dict[int, CallHandler] = {}
        self.loads = BlockLoads(self)

    # Who gets what

    def register_stream(self, handler: StreamHandler) -> int:
        """An id under which the exchange hands publishes to `handler`."""
        number = self.new_id()
        self.streams[number] = handler
        return number

    def register_consumer(self, handler: ConsumerHandler) -> int:
        """The same for acknowledgements and requests of a consumer."""
        number = self.new_id()
        self.consumers[number] = handler
        return number

    def register_call(self, handler: CallHandler) -> int:
        """The same for messages that are calls."""
        number = self.new_id()
        self._calls[number] = handler
        return number

    def unregister(self, number: int) -> None:
        """Nothing more is handed to it."""
        self.streams.pop(number, None)
        self.consumers.pop(number, None)
        self._calls.pop(number, None)

    def handler(self, number: int) -> StreamHandler | ConsumerHandler | CallHandler | None:
        """Who has an id."""
        return self.streams.get(number) or self.consumers.get(number) or self._calls.get(number)

    # The turn

    def serve(self, now: int) -> bool:
        """Serve everything that arrived at the exchange."""
        self.exchange.set_now(now)
        arrived = self.exchange.drain()
        self.alone = len(arrived) == 1
        for kind, number, payload in arrived:
            try:
                if kind == INGEST:
                    if (stream := self.streams.get(number)) is not None:
                        stream.ingest(payload)
                elif kind == CALL:
                    if (call := self._calls.get(number)) is not None:
                        call(*payload)
                elif (consumer := self.consumers.get(number)) is not None:
                    if kind == ACKS:
                        self.alone |= len(arrived) == 2  # what is behind it is one request
                        consumer.on_acks(payload)
                    elif kind == PULLS:
                        consumer.on_pulls(payload)
                    elif kind == INTEREST:
                        consumer.on_interest(payload)
            except Exception:
                LOG.exception("serving %r failed", self.handler(number))
        return False
