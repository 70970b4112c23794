"""Republishing: after a message is durable it goes out again on another subject, with where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.model import StreamConfig
from headrace.streams._kernels import Batch
from headrace.streams.headers import add_headers
from headrace.streams.subject_map import SubjectMap, compile_map
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream


class Republisher:
    """What a stream's `republish` asks for."""

    def __init__(self, transform: SubjectMap, headers_only: bool) -> None:
        self._transform, self._headers_only = transform, headers_only
        self._waiting: list[tuple[int, int, Batch]] = []
        self._last_on: dict[str, int] = {}

    @classmethod
    def of(cls, config: StreamConfig) -> Republisher | None:
        """None if the stream republishes nothing."""
        wanted = config.republish
        if wanted is None:
            return None
        return cls(compile_map(wanted.src, wanted.dest), wanted.headers_only)

    def note(self, stream: Stream, first: int, batch: Batch) -> None:
        """Messages were written; they go out when they are durable."""
        time_ns = stream.store.last_time_ns
        self._waiting.append((first, time_ns, batch))

    def send(self, stream: Stream) -> None:
        """Everything noted so far."""
        waiting, self._waiting = self._waiting, []
        for first, time_ns, batch in waiting:
            for sequence, record in enumerate(batch, first):
                target = self._transform.apply(record.subject)
                if target is not None:
                    self._send_one(
                        stream, target, sequence, time_ns, record.subject, record.headers, record.data or b""
                    )

    def _send_one(
        self,
        stream: Stream,
        target: str,
        sequence: int,
        time_ns: int,
        subject: str,
        headers: bytes | None,
        data: bytes,
    ) -> None:
        last = self._previous(stream, subject, sequence)
        added = [
            ("Nats-Stream", stream.name),
            ("Nats-Subject", subject),
            ("Nats-Sequence", str(sequence)),
            ("Nats-Time-Stamp", format_time_ns(time_ns)),
            ("Nats-Last-Sequence", str(last)),
        ]
        if self._headers_only:
            added.append(("Nats-Msg-Size", str(len(data))))
            data = b""
        stream.engine.exchange.publish(
            stream.account.id, target.encode(), None, add_headers(headers, added), data
        )

    def _previous(self, stream: Stream, subject: str, sequence: int) -> int:
        """The sequence before this one on the subject, 0 if none."""
        known = self._last_on.get(subject)
        self._last_on[subject] = sequence
        if len(self._last_on) > 100_000:
            self._last_on.clear()
        if known is not None:
            return known
        return stream.store.last_before(subject, sequence)
