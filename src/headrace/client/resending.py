"""Messages that go back to a server after their consumers gave up on them (`dlq`): each into the stream that is meant.

stream it came from                    without further words
the stream that takes the new subject  with `subject`
`stream`                               where it is named
"""

from __future__ import annotations

from headrace.client._kernels import Batch
from headrace.client.connection import Connection
from headrace.client.destination import OWN_SUBJECT, Destination, named_stream, stream_of
from headrace.client.publisher import FIRST_TIME_ONLY, Publisher
from headrace.errors import BadInput


class Resender:
    """Checks and publishes batches whose keys are their message ids."""

    def __init__(
        self, connection: Connection, *, stream: str | None = None, subject: str | None = None
    ) -> None:
        if stream is None and subject is not None and OWN_SUBJECT in subject:
            raise BadInput(f"subject {subject!r}: name the stream that takes them")
        self._connection, self._stream, self._subject = connection, stream, subject
        self._known: dict[str, Destination] = {}

    def destination(self, origin: str) -> Destination:
        """Where messages of that stream go. NotFound or BadInput when there is no such place."""
        if origin not in self._known:
            self._known[origin] = (
                stream_of(self._connection, self._subject)
                if self._stream is None and self._subject is not None
                else named_stream(self._connection, self._stream or origin)
            )
        return self._known[origin]

    def check(self, origin: str, batch: Batch) -> None:
        """BadInput when the stream would not take a message."""
        self.destination(origin).check(batch)

    def publish(self, origin: str, batch: Batch) -> tuple[int, int]:
        """How many were stored, and how many were there already."""
        sender = Publisher(self._connection, into=self.destination(origin), without=FIRST_TIME_ONLY)
        sender.publish(batch)
        done = sender.flush()
        return done.stored, done.duplicates
