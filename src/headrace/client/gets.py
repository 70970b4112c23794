"""A range of a stream, message by message: for work queues and interest streams, where a consumer of ours would count.

Questions are sent in groups, answers come back in any order. One Python step per message: what needs speed has a
consumer (`pulling`), or reads the files.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.client._kernels import Batch
from headrace.client.connection import Connection
from headrace.client.retrying import RetryDeadline, passing
from headrace.errors import ConnectionLost, ServerRefused
from headrace.units import parse_time_ns

GROUP = 512
ANSWER_S = 10.0
NO_MESSAGE = 10037


def get_range(
    connection: Connection,
    stream: str,
    first: int,
    following: int,
    *,
    subjects: Sequence[str] = (),
    bodies: bool = True,
) -> Iterator[Batch]:
    """Messages of `[first, following)` on the subjects, in order; what is no longer there is passed over."""
    for start in range(first, following, GROUP):
        batch = _group(connection, stream, start, min(start + GROUP, following))
        kept = batch.filter(None, None, None, None, list(subjects))
        if len(kept):
            yield kept


def _group(connection: Connection, stream: str, first: int, following: int) -> Batch:
    retry = RetryDeadline()
    while True:
        try:
            return _ask(connection, stream, first, following)
        except ServerRefused as refusal:
            if not passing(refusal):
                raise
            problem = ConnectionLost(str(refusal))
        except ConnectionLost as lost:
            problem = lost
        retry.pause(problem, f"stream {stream}: reading at {first}")
        try:
            connection.reconnect()
        except ConnectionLost:
            pass  # the next question says so again


def _ask(connection: Connection, stream: str, first: int, following: int) -> Batch:
    inbox = connection.new_inbox()
    sid = connection.subscribe(f"{inbox}.*")
    subject = f"{connection.access.api}.STREAM.MSG.GET.{stream}"
    questions: list[bytes] = []
    for sequence in range(first, following):
        body = b'{"seq":%d}' % sequence
        questions.append(f"PUB {subject} {inbox}.{sequence} {len(body)}\r\n".encode() + body + b"\r\n")
    connection.send(b"".join(questions))
    answers: dict[int, dict[str, Any]] = {}
    until = time.monotonic() + ANSWER_S
    while len(answers) < following - first:
        left = until - time.monotonic()
        if left <= 0:
            raise ConnectionLost(
                f"stream {stream}: {following - first - len(answers)} messages were not answered"
            )
        for message in connection.receive(left):
            if message.sid == sid:
                if message.status:
                    raise ConnectionLost(f"stream {stream}: {message.status} {message.status_text}")
                answers[int(message.subject.rpartition(".")[2])] = msgspec.json.decode(message.payload)
    connection.send(f"UNSUB {sid}\r\n".encode())
    found: list[dict[str, Any]] = []
    for sequence in range(first, following):
        answer = answers[sequence]
        if "error" in answer:
            error = answer["error"]
            if error.get("err_code") != NO_MESSAGE:
                raise ServerRefused(
                    f"stream {stream}: {error.get('description')}", int(error.get("err_code", 0))
                )
        else:
            found.append(answer["message"])
    return Batch.build(
        subjects=[each["subject"] for each in found],
        data=[base64.b64decode(each.get("data") or "") for each in found],
        headers=[base64.b64decode(each["hdrs"]) if each.get("hdrs") else None for each in found],
        times=[parse_time_ns(each["time"]) for each in found],
        positions=[int(each["seq"]) for each in found],
    )
