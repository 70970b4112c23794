"""Batches into streams: many publishes under way, every one answered, each once.

    publish(batch) → encoded by the core, sent, kept until its answers are there
    flush()        → returns when every message is acknowledged

A connection that breaks is replaced and everything without an answer is sent again: with ids (or producer numbers)
the server stores each once. An error of the server ends the publishing and names the message.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import msgspec

from headrace.client._kernels import Batch, encode_publishes
from headrace.client.connection import Connection, Message
from headrace.client.patience import PASSING, Patience
from headrace.errors import BadInput, ConnectionLost, ServerRefused

SLICE_MESSAGES = 4096
SLICE_BYTES = 4 << 20
WINDOW = 16_384
ANSWER_S = 30.0
NO_RESPONDERS = "503"


@dataclass(frozen=True, slots=True)
class Published:
    """What became of everything that was published."""

    stored: int
    duplicates: int
    last_sequence: int


class Publisher:
    """For one thread; the connection is its own while it works."""

    def __init__(self, connection: Connection, *, window: int = WINDOW) -> None:
        self._connection, self._window = connection, max(window, 1)
        self._inbox = connection.new_inbox().encode()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._before = connection.intake.acks()
        self._patience = Patience()
        self._listen()

    def _listen(self) -> None:
        sid = self._connection.subscribe(f"{self._inbox.decode()}.*")
        self._connection.intake.expect_acks(sid)

    def publish(self, batch: Batch, *, id_prefix: str | None = None, producer: str | None = None) -> None:
        """Send; returns when few enough are under way. Ids: the batch's keys, or the prefix and the position."""
        start = 0
        while start < len(batch):
            part = batch.slice(start, start + SLICE_MESSAGES)
            while len(part) > 1 and part.payload_bytes > SLICE_BYTES:
                part = part.slice(0, len(part) // 2)
            self._send(part, id_prefix, producer)
            start += len(part)

    def _send(self, batch: Batch, id_prefix: str | None, producer: str | None) -> None:
        connection = self._connection
        first = connection.intake.acks()[1]
        data = encode_publishes(
            batch,
            self._inbox,
            None if id_prefix is None else id_prefix.encode(),
            None if producer is None else producer.encode(),
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
        self._await(self._connection.intake.acks()[1])
        _, _, stored, duplicates, last = self._connection.intake.acks()
        return Published(stored - self._before[2], duplicates - self._before[3], last)

    def _await(self, floor: int) -> None:
        intake = self._connection.intake
        moved = time.monotonic()
        while (before := intake.acks()[0]) < floor:
            try:
                self._look(self._connection.receive(ANSWER_S, floor=floor))
                if intake.acks()[0] > before:
                    moved = time.monotonic()
                    self._patience.moved()
                elif time.monotonic() - moved > ANSWER_S:
                    raise ConnectionLost(f"no answer to a publish for {ANSWER_S:g} s")
            except ConnectionLost as problem:
                self._again(problem)
                moved = time.monotonic()
        floor = intake.acks()[0]
        while self._waiting and self._waiting[0][0] <= floor:
            self._waiting.popleft()

    def _look(self, messages: list[Message]) -> None:
        """Answers that are no plain acks."""
        for message in messages:
            if not message.subject.encode().startswith(self._inbox):
                continue
            if message.status == NO_RESPONDERS:
                raise ConnectionLost("no stream takes that subject, or it has no leader")
            try:
                error = msgspec.json.decode(message.payload)["error"]
                code, text = (
                    int(error.get("err_code") or error.get("code") or 0),
                    str(error.get("description")),
                )
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError):
                raise BadInput(f"an answer to a publish that is none: {message.payload[:200]!r}") from None
            if code in PASSING:
                raise ConnectionLost(text)
            raise ServerRefused(f"a publish was refused: {text} (error {code})", code)

    def _again(self, problem: ConnectionLost) -> None:
        """Reconnect and send what has no answer; not for ever."""
        while True:
            self._patience.pause(problem, "publishing")
            try:
                self._connection.reconnect()
                self._listen()
                floor = self._connection.intake.acks()[0]
                for end, data in self._waiting:
                    if end > floor:
                        self._connection.send(data, ANSWER_S)
                return
            except ConnectionLost as another:
                problem = another
