"""Batches into streams: many publishes under way, every one answered, each once.

    publish(batch) → encoded by the core, sent, kept until its answers are there
    flush()        → returns when every message is acknowledged

A connection that breaks is replaced and everything without an answer is sent again: with ids (or producer numbers)
the server stores each once. An error of the server ends the publishing and names the message.

With `into` one stream is meant and no other: subjects are compared before a batch is sent, every message names the
stream, and so must every answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.client._kernels import Batch, encode_publishes
from headrace.client.connection import Connection, Message
from headrace.client.destination import Destination, stream_of
from headrace.client.retrying import PASSING, RetryDeadline
from headrace.errors import BadInput, ConnectionLost, ServerRefused

SLICE_MESSAGES = 4096
SLICE_BYTES = 4 << 20
WINDOW = 16_384
ANSWER_S = 30.0
NO_RESPONDERS = "503"
SUBJECTS_CHECKED_MAX = 20
"""So many subjects are asked about when nobody answers a publish."""
FIRST_TIME_ONLY = tuple(
    f"Nats-{name}"
    for name in (
        "Expected-Stream",
        "Expected-Last-Sequence",
        "Expected-Last-Subject-Sequence",
        "Expected-Last-Subject-Sequence-Subject",
        "Expected-Last-Msg-Id",
        "Batch-Id",
        "Batch-Sequence",
        "Batch-Commit",
    )
)
"""Headers that were a condition of the first publish, and are stored with the message: of no meaning when it comes again."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of everything that was published."""

    stored: int
    duplicates: int
    last_sequence: int


class NobodyAnswers(ConnectionLost):
    """No stream takes the subject of a publish, or the one that does has no leader now."""


class Publisher:
    """For one thread; the connection is its own while it works."""

    def __init__(
        self,
        connection: Connection,
        *,
        window: int = WINDOW,
        into: Destination | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """`without`: headers of the messages that are not sent."""
        self._connection, self._window, self._into = connection, max(window, 1), into
        self._without = [name.encode() for name in without]
        self._inbox = connection.new_inbox().encode()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._before = connection.intake.acks()
        self._retry = RetryDeadline()
        self._subjects: list[bytes] = []
        """Of the batch that is being sent, where no stream is named."""
        self._listen()

    def _listen(self) -> None:
        sid = self._connection.subscribe(f"{self._inbox.decode()}.*")
        self._connection.intake.expect_acks(sid)
        self._connection.intake.expect_stream([] if self._into is None else self._into.spellings())

    def publish(self, batch: Batch, *, id_prefix: str | None = None, producer: str | None = None) -> None:
        """Send; returns when few enough are under way. Ids: the batch's keys, or the prefix and the position."""
        if self._into is not None:
            self._into.check(batch)
        else:
            self._subjects = batch.subjects()[:SUBJECTS_CHECKED_MAX]
        start = 0
        while start < len(batch):
            part = batch.slice(start, start + SLICE_MESSAGES)
            while len(part) > 1 and part.payload_bytes > SLICE_BYTES:
                part = part.slice(0, len(part) // 2)
            self._send(part, id_prefix, producer)
            start += len(part)

    def _send(self, batch: Batch, id_prefix: str | None, producer: str | None) -> None:
        connection = self._connection
        first = connection.intake.acks().next
        data = encode_publishes(
            batch,
            self._inbox,
            None if id_prefix is None else id_prefix.encode(),
            None if producer is None else producer.encode(),
            None if self._into is None else self._into.stream.encode(),
            self._without,
            first,
            connection.max_payload,
        )
        connection.intake.open(len(batch))
        self._waiting.append((first + len(batch), data))
        try:
            connection.send(data, ANSWER_S)
        except ConnectionLost as problem:
            self._again(problem)
        self._await(first + len(batch) - self._window)

    def flush(self) -> Published:
        """Wait for every answer."""
        self._await(self._connection.intake.acks().next)
        acks, before = self._connection.intake.acks(), self._before
        return Published(acks.stored - before.stored, acks.duplicates - before.duplicates, acks.last_seq)

    def _await(self, floor: int) -> None:
        intake = self._connection.intake
        moved = time.monotonic()
        while (before := intake.acks().floor) < floor:
            try:
                self._look(self._connection.receive(ANSWER_S, floor=floor))
                if intake.acks().floor > before:
                    moved = time.monotonic()
                    self._retry.moved()
                elif time.monotonic() - moved > ANSWER_S:
                    raise ConnectionLost(f"no answer to a publish for {ANSWER_S:g} s")
            except ConnectionLost as problem:
                self._again(problem)
                moved = time.monotonic()
        floor = intake.acks().floor
        while self._waiting and self._waiting[0][0] <= floor:
            self._waiting.popleft()

    def _look(self, messages: list[Message]) -> None:
        """Answers that are no plain acks."""
        for message in messages:
            if not message.subject.encode().startswith(self._inbox):
                continue
            if message.status == NO_RESPONDERS:
                raise NobodyAnswers("no stream takes that subject, or it has no leader")
            try:
                answer = msgspec.json.decode(message.payload)
                self._refuse_other_stream(answer)
                error = answer["error"]
                code, text = (
                    int(error.get("err_code") or error.get("code") or 0),
                    str(error.get("description")),
                )
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError):
                raise BadInput(f"an answer to a publish that is none: {message.payload[:200]!r}") from None
            if code in PASSING:
                raise ConnectionLost(text)
            raise ServerRefused(f"a publish was refused: {text} (error {code})", code)

    def _refuse_other_stream(self, answer: dict[str, Any]) -> None:
        """An ack of another stream than the one that was named: no server should, and it would be a loss if one did."""
        if self._into is not None and "error" not in answer and "stream" in answer:
            raise ServerRefused(
                f"a message for stream {self._into.stream} was stored in {answer['stream']} (sequence {answer.get('seq')}): "
                "the server did not heed Nats-Expected-Stream; remove it there"
            )

    def _refuse_without_stream(self) -> None:
        """NotFound for a subject that no stream takes: to wait for a leader would be in vain."""
        for subject in self._subjects:
            stream_of(self._connection, subject.decode("utf-8", "replace"))
        self._subjects = []

    def _again(self, problem: ConnectionLost) -> None:
        """Reconnect and send what has no answer; not for ever."""
        while True:
            self._retry.pause(problem, "publishing")
            try:
                self._connection.reconnect()
                if isinstance(problem, NobodyAnswers):
                    self._refuse_without_stream()
                self._listen()
                floor = self._connection.intake.acks().floor
                for end, data in self._waiting:
                    if end > floor:
                        self._connection.send(data, ANSWER_S)
                return
            except ConnectionLost as another:
                problem = another
