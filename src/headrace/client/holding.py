"""A durable consumer that stands where a reader is: the server shows its lag and keeps what it has not passed.

    Hold(connection, "ORDERS", "lake", start=1).advance(5001)     everything below 5001 is done and may go

Readers of Headrace keep their own positions, so this is advice for the server: a work queue or an interest stream keeps a
message until the hold has passed it. Messages travel without their bodies and are acknowledged in whole batches.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headrace.client._kernels import Batch, encode_acks
from headrace.client.connection import Connection, Message
from headrace.errors import BadInput, ConnectionLost, ServerRefused

PULL_MESSAGES = 8192
QUIET_S = 5.0
ACK_WAIT_NS = 30_000_000_000
TRIES = 5
NOT_FOUND = (10014, 404)
ACK, NAK = b"+ACK", b"-NAK"
_OVER = ("404", "408", "409")


class Hold:
    """One durable; made if it is not there."""

    def __init__(self, connection: Connection, stream: str, name: str, start: int = 1) -> None:
        self._connection, self._stream, self.name = connection, stream, name
        try:
            config = self.info()["config"]
        except ServerRefused as refusal:
            if refusal.code not in NOT_FOUND:
                raise
            config = self._create(start)
        if config.get("deliver_subject"):
            raise BadInput(
                f"stream {stream}: the consumer {name} is pushed to somebody; give another name for durable"
            )
        self._all = config["ack_policy"] == "all"

    def _create(self, start: int) -> dict[str, Any]:
        retention = self._connection.api(f"STREAM.INFO.{self._stream}")["config"].get("retention", "limits")
        config: dict[str, Any] = {
            "durable_name": self.name,
            "description": "holds what a reader has not passed",
            # A work queue takes explicit acks only.
            "ack_policy": "explicit" if retention == "workqueue" else "all",
            "ack_wait": ACK_WAIT_NS,
            "max_ack_pending": -1,
            "headers_only": True,
            "deliver_policy": "all",
        }
        if start > 1 and retention != "workqueue":
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        body = {"stream_name": self._stream, "config": config}
        return self._connection.api(f"CONSUMER.DURABLE.CREATE.{self._stream}.{self.name}", body)["config"]

    def info(self) -> dict[str, Any]:
        """As the server gives it."""
        return self._connection.api(f"CONSUMER.INFO.{self._stream}.{self.name}")

    @property
    def passed(self) -> int:
        """Everything up to here was acknowledged."""
        return int(self.info()["ack_floor"]["stream_seq"])

    def advance(self, following: int) -> int:
        """Acknowledge everything below; returns how many messages that were. Safe on the server when this returns."""
        for attempt in range(1, TRIES + 1):
            try:
                return self._advance(following)
            except ConnectionLost:
                if attempt == TRIES:
                    raise
                time.sleep(0.2 * attempt)
                self._connection.reconnect()
        raise AssertionError("the loop returns or raises")

    def _advance(self, following: int) -> int:
        info = self.info()
        if info["ack_floor"]["stream_seq"] >= following - 1:
            return 0
        connection, intake = self._connection, self._connection.intake
        inbox, answers = connection.new_inbox(), connection.new_inbox()
        data, acks = connection.subscribe(f"{inbox}.*"), connection.subscribe(f"{answers}.*")
        intake.expect_data(data, keep_replies=True)
        before = intake.expect_acks(acks)
        acked = 0
        try:
            while info["num_pending"] or info["num_ack_pending"]:
                at = int(info["delivered"]["stream_seq"])
                batch = self._pull(inbox, max(following - 1 - at, 1))
                done = batch.filter(None, following, None, None, [])
                early = batch.filter(following, None, None, None, [])
                if len(done):
                    acked += len(done)
                    self._acknowledge(
                        done.slice(len(done) - 1, len(done)) if self._all else done, ACK, answers
                    )
                if len(early) and not self._all:
                    self._acknowledge(early, NAK, answers)
                if len(early) or not len(done) or done.last_position == following - 1:
                    break
                info = self.info()
        finally:
            intake.expect_data(None)
            intake.expect_acks(before)
            connection.send(f"UNSUB {data}\r\nUNSUB {acks}\r\n".encode())
        return acked

    def _pull(self, inbox: str, most: int) -> Batch:
        """Up to so many. Behind a gap of the stream fewer lie below the mark: the caller gives back what came too early."""
        connection, intake, count = self._connection, self._connection.intake, min(most, PULL_MESSAGES)
        body = msgspec.json.encode({"batch": count, "no_wait": True})
        subject = f"{connection.access.api}.CONSUMER.MSG.NEXT.{self._stream}.{self.name}"
        connection.send(f"PUB {subject} {inbox}.1 {len(body)}\r\n".encode() + body + b"\r\n")
        until = time.monotonic() + QUIET_S
        while intake.messages < count:
            left = until - time.monotonic()
            if left <= 0:
                raise ConnectionLost(f"stream {self._stream}: the consumer {self.name} did not answer")
            if any(self._is_over(message, inbox) for message in connection.receive(left, count)):
                break
        return intake.batch()

    def _is_over(self, message: Message, inbox: str) -> bool:
        if not message.subject.startswith(inbox):
            return False
        if message.status not in _OVER:
            raise ConnectionLost(f"stream {self._stream}: {message.status} {message.status_text}")
        return True

    def _acknowledge(self, batch: Batch, word: bytes, answers: str) -> None:
        connection, intake = self._connection, self._connection.intake
        first = intake.open(len(batch))
        connection.send(encode_acks(batch, word, answers.encode(), first))
        until = time.monotonic() + QUIET_S
        while intake.acks().floor < first + len(batch):
            left = until - time.monotonic()
            if left <= 0:
                raise ConnectionLost(
                    f"stream {self._stream}: acks of the consumer {self.name} were not answered"
                )
            for message in connection.receive(left, floor=first + len(batch)):
                if message.subject.startswith(answers):
                    raise ConnectionLost(f"stream {self._stream}: {message.status} {message.status_text}")
