"""A server's stream as the target of a replay: messages with ids that say where they come from.

    Nats-Msg-Id   <application>:<log>:<sequence>

Sent again, they are known: by a Headrace server for ever (it keeps a mark of each producer), by any other inside the
stream's dedupe window.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client._kernels import Batch
from headrace.client.access import Access
from headrace.client.connection import Connection
from headrace.client.publisher import Publisher


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Publishes to whatever stream takes the subjects; `stream`, if given, must be there."""

    access: Access
    stream: str | None = None
    application: str = "replay"
    layout: str = "jetstream"
    spread: bool = True
    positions: bool = False

    def open(self, log: str) -> StreamTargetLog:
        """A connection of its own for each log."""
        return StreamTargetLog(self, log)


class StreamTargetLog:
    """One log on its way into a stream."""

    def __init__(self, target: StreamTarget, log: str) -> None:
        self._connection = Connection(target.access, "headrace-replay")
        try:
            if target.stream is not None:
                self._connection.ask(f"STREAM.INFO.{target.stream}")
            self._publisher = Publisher(self._connection)
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

    def settle(self) -> tuple[int, int]:
        done = self._publisher.flush()
        before, self._before = self._before, (done.stored, done.duplicates)
        return done.stored - before[0], done.duplicates - before[1]

    def close(self) -> None:
        self._connection.close()
