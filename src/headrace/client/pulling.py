"""A range of a stream, pulled through a consumer of its own that leaves no trace.

    consumer (nothing acknowledged, in memory, gone with us) ← two requests under way, each for some thousand messages
    → batches of the core, until the range is over: its end was seen, nothing is pending, or nothing is there

A connection or consumer that breaks is replaced and reading goes on behind the last message that was handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.client._kernels import Batch
from headrace.client.connection import NO_RESPONDERS, Connection, Message
from headrace.client.retrying import RetryDeadline, passing
from headrace.errors import BadInput, ConnectionLost, ServerRefused

REQUEST_MESSAGES = 16_384
REQUEST_BYTES = 8 << 20
UNDER_WAY = 2
QUIET_S = 5.0
NO_MESSAGE = 10037
NO_MESSAGES, TIMED_OUT, CONFLICT = "404", "408", "409"
_GONE = ("deleted", "leadership", "shutdown", "not found", "no responders")


def pull_range(
    connection: Connection,
    stream: str,
    first: int,
    following: int,
    *,
    subjects: Sequence[str] = (),
    bodies: bool = True,
) -> Iterator[Batch]:
    """Messages of `[first, following)` on the subjects, in order. Without `bodies` neither headers nor data are sent."""
    position, retry = first, RetryDeadline()
    while position < following:
        try:
            for batch in _Pull(connection, stream, position, following, subjects, bodies):
                position = batch.last_position + 1
                retry.moved()
                # Without bodies the server adds a header with the size: nobody asked for that.
                kept = batch.filter(None, following, None, None, list(subjects))
                if len(kept):
                    yield kept
            if position >= following or not _holds_more(connection, stream, position, following, subjects):
                return
            raise ConnectionLost(f"a replica that lags behind gave nothing from {position} on")
        except ConnectionLost as problem:
            _again(connection, retry, problem, f"stream {stream}: reading at {position}")


def _holds_more(
    connection: Connection, stream: str, position: int, following: int, subjects: Sequence[str]
) -> bool:
    """Asked of the stream's leader: a consumer in a cluster may live on a replica that does not have everything yet."""
    for subject in subjects or (">",):
        try:
            body = {"seq": max(position, 1), "next_by_subj": subject}
            found = connection.ask(f"STREAM.MSG.GET.{stream}", body)["message"]
        except ServerRefused as refusal:
            if refusal.code != NO_MESSAGE:
                raise
        else:
            if int(found["seq"]) < following:
                return True
    return False


def _again(connection: Connection, retry: RetryDeadline, problem: ConnectionLost, doing: str) -> None:
    """Connect anew, however often it takes."""
    while True:
        retry.pause(problem, doing)
        try:
            connection.reconnect()
            return
        except ConnectionLost as another:
            problem = another


class _Pull:
    """One consumer on one connection."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        first: int,
        following: int,
        subjects: Sequence[str],
        bodies: bool,
    ) -> None:
        self._connection, self._stream, self._following = connection, stream, following
        self._at = first
        self._inbox = connection.new_inbox()
        self._requests: deque[list[int]] = deque()
        self._number = 0
        self._size = REQUEST_BYTES
        self._pending, self._consumer = self._create(first, subjects, bodies)

    def _create(self, first: int, subjects: Sequence[str], bodies: bool) -> tuple[int, str]:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(first, 1),
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60_000_000_000,
        }
        if len(subjects) == 1:
            config["filter_subject"] = subjects[0]
        elif subjects and self._connection.version >= (2, 10):
            config["filter_subjects"] = list(subjects)
        if not bodies:
            config["headers_only"] = True
        body = {"stream_name": self._stream, "config": config}
        try:
            made = self._connection.api(f"CONSUMER.CREATE.{self._stream}", body)
        except ServerRefused as refusal:
            if passing(refusal):  # no leader yet: somebody is being elected
                raise ConnectionLost(str(refusal)) from None
            raise
        return int(made["num_pending"]), str(made["name"])

    def __iter__(self) -> Iterator[Batch]:
        connection, intake = self._connection, self._connection.intake
        sid = connection.subscribe(f"{self._inbox}.*")
        intake.expect_data(sid)
        try:
            while self._pending and self._at < self._following:
                self._ask()
                self._look(connection.receive(QUIET_S, self._requests[0][1], self._size))
                batch = intake.batch()
                if len(batch):
                    self._pending = intake.pending
                    self._took(len(batch))
                    self._at = batch.last_position + 1
                    yield batch
        finally:
            intake.expect_data(None)
            self._drop(sid)

    def _ask(self) -> None:
        while len(self._requests) < UNDER_WAY:
            ahead = sum(left for _, left in self._requests)
            count = min(REQUEST_MESSAGES, self._following - self._at - ahead)
            if count <= 0:
                return
            self._number += 1
            body = msgspec.json.encode({"batch": count, "max_bytes": self._size, "no_wait": True})
            subject = f"{self._connection.access.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            head = f"PUB {subject} {self._inbox}.{self._number} {len(body)}\r\n"
            self._connection.send(head.encode() + body + b"\r\n")
            self._requests.append([self._number, count])

    def _took(self, count: int) -> None:
        while count and self._requests:
            front = self._requests[0]
            used = min(front[1], count)
            front[1] -= used
            count -= used
            if not front[1]:
                self._requests.popleft()

    def _look(self, messages: list[Message]) -> None:
        """Statuses end requests, or say that there is nothing (more)."""
        if not messages and not self._connection.intake.messages:
            raise ConnectionLost(f"stream {self._stream}: no message for {QUIET_S:g} s")
        for message in messages:
            if not message.subject.startswith(self._inbox):
                continue
            text = message.status_text.lower()
            # 503: the consumer's node is gone, or the others do not know yet that it listens.
            if message.status == NO_RESPONDERS or any(word in text for word in _GONE):
                raise ConnectionLost(f"stream {self._stream}: {message.status} {message.status_text}")
            if message.status == NO_MESSAGES and not self._connection.intake.messages:
                self._pending = 0
            elif message.status == CONFLICT and "maxbytes" in text.replace(" ", ""):
                if not self._connection.intake.messages and len(self._requests) <= 1:
                    self._grow()
            elif message.status not in (NO_MESSAGES, TIMED_OUT, CONFLICT):
                raise ServerRefused(f"stream {self._stream}: {message.status} {message.status_text}")
            number = message.subject.rpartition(".")[2]
            self._requests = deque(request for request in self._requests if str(request[0]) != number)

    def _grow(self) -> None:
        """One message alone is larger than a request."""
        self._size *= 4
        if self._size > 1 << 30:
            raise BadInput(f"stream {self._stream}: a message at {self._at} larger than 1 GiB")

    def _drop(self, sid: int) -> None:
        """Leave nothing behind; a broken connection leaves it to the consumer's own threshold."""
        try:
            self._connection.send(f"UNSUB {sid}\r\n".encode())
            self._connection.api(f"CONSUMER.DELETE.{self._stream}.{self._consumer}")
        except (ConnectionLost, ServerRefused):
            pass
