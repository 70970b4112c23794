"""A server's stream as the target of a replay: messages with ids that say where they come from.

    Nats-Msg-Id   <application>:<log>:<sequence>

Sent again, they are known: by a Headrace server for ever (it keeps a mark of each producer), by any other inside the
stream's dedupe window. With a named stream no other one takes a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.client._kernels import Batch
from headrace.client.access import Access
from headrace.client.connection import Connection
from headrace.client.destination import named_stream
from headrace.client.publisher import FIRST_TIME_ONLY, Publisher


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Publishes to `stream`, or, without one, to whatever stream takes the subjects."""

    access: Access
    stream: str | None = None
    application: str = "replay"
    layout: str = "jetstream"
    spread: bool = True
    positions: bool = False

    def checker(self) -> Callable[[Batch], None] | None:
        """Refuses a batch with a subject that is not the named stream's; None where no stream is named."""
        if self.stream is None:
            return None
        with Connection(self.access, "headrace-replay") as connection:
            return named_stream(connection, self.stream).check

    def open(self, log: str) -> StreamTargetLog:
        """A connection of its own for each log."""
        return StreamTargetLog(self, log)


class StreamTargetLog:
    """One log on its way into a stream."""

    def __init__(self, target: StreamTarget, log: str) -> None:
        self._connection = Connection(target.access, "headrace-replay")
        try:
            into = None if target.stream is None else named_stream(self._connection, target.stream)
            self._publisher = Publisher(self._connection, into=into, without=FIRST_TIME_ONLY)
        except BaseException:
            self._connection.close()
            raise
        self._prefix = f"{target.application}:{log}:"
        self._producer = f"{target.application}/{log}" if self._connection.is_headrace else None
        self._before = (0, 0)

    def reached(self) -> int | None:
        """Nobody needs to know: what is there already is answered as a duplicate."""
        return None

    def write(self, batch: Batch) -> None:
        self._publisher.publish(batch, id_prefix=self._prefix, producer=self._producer)

    def flush(self) -> tuple[int, int]:
        done = self._publisher.flush()
        before, self._before = self._before, (done.stored, done.duplicates)
        return done.stored - before[0], done.duplicates - before[1]

    def close(self) -> None:
        self._connection.close()
