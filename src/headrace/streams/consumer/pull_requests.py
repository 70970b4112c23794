"""Pull requests as clients write them, and the status messages that answer them.

    (nothing)  5  {"batch": 5, "expires": 1000000000, "max_bytes": …, "no_wait": …, "idle_heartbeat": …, "group": …}

Many clients send the same text over and over: what it means is remembered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec

from headrace.streams._kernels import LedgerPosition
from headrace.streams.api.json_reader import read
from headrace.streams.errors import ApiError

_REMEMBERED, _SHORT_BYTES = 4096, 512
_DIGITS_MAX = 19
EXPIRES_NS_MAX = 1 << 62
HEARTBEAT_NS_MIN = 100_000_000
"""More often nobody needs to hear that all is well."""
_JSON_ERROR = "invalid JSON: "

SERVER_SHUTDOWN = "409 Server Shutdown"
NO_MESSAGES = b"NATS/1.0 404 No Messages\r\n\r\n"
REQUESTS_PENDING = b"NATS/1.0 408 Requests Pending\r\n\r\n"
EXCEEDED_WAITING = b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
PUSH_BASED = b"NATS/1.0 409 Consumer is push based\r\n\r\n"
CONSUMER_DELETED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
PIN_MISMATCH = b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"


class ConsumerGetNextRequest(msgspec.Struct, frozen=True):
    """The JSON form."""

    expires: int = 0
    batch: int = 0
    max_bytes: int = 0
    no_wait: bool = False
    idle_heartbeat: int = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    priority: int = 0


class Pull(NamedTuple):
    """What a request asks for. Times are durations in ns; 0 is "none"."""

    msgs: int = 1
    bytes: int = 0
    expires: int = 0
    heartbeat: int = 0
    no_wait: bool = False
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    pin_id: str = ""
    priority: int = 0
    problem: str = ""
    """Why it cannot be served; then nothing else counts."""


def parse_pull(payload: bytes) -> Pull:
    """A request, whatever its form. Text that means nothing asks for one message, as does a batch below 1."""
    return _remembered(payload) if len(payload) <= _SHORT_BYTES else _parse(payload)


def _parse(payload: bytes) -> Pull:
    text = payload.strip()
    if text.startswith(b"{"):
        return _from_json(text)
    known = text.isdigit() and len(text) < _DIGITS_MAX
    return Pull(msgs=max(int(text), 1)) if known else Pull()


_remembered = lru_cache(maxsize=_REMEMBERED)(_parse)


def _from_json(text: bytes) -> Pull:
    try:
        request = read(text, ConsumerGetNextRequest, strict=False, plain=True)
    except ApiError as error:
        return Pull(problem=error.description.removeprefix(_JSON_ERROR))
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        return Pull(problem="heartbeat value too large")
    return Pull(
        msgs=max(request.batch, 1),
        bytes=max(request.max_bytes, 0),
        expires=min(request.expires, EXPIRES_NS_MAX),
        heartbeat=max(request.idle_heartbeat, HEARTBEAT_NS_MIN) if request.idle_heartbeat > 0 else 0,
        no_wait=request.no_wait,
        group=request.group,
        min_pending=request.min_pending,
        min_ack_pending=request.min_ack_pending,
        pin_id=request.id,
        priority=request.priority,
    )


def bad_request(problem: str) -> bytes:
    """400, with the reason."""
    return f"NATS/1.0 400 Bad Request - {problem}\r\n\r\n".encode()


def exceeded(limit: str, value: object) -> bytes:
    """409: the consumer's own limit on requests, e.g. `MaxRequestBatch`."""
    return f"NATS/1.0 409 Exceeded {limit} of {value}\r\n\r\n".encode()


def with_pending(status: str, msgs: int, size: int) -> bytes:
    """A status with what the request did not get."""
    counts = f"Nats-Pending-Messages: {msgs}\r\nNats-Pending-Bytes: {size}"
    return f"NATS/1.0 {status}\r\n{counts}\r\n\r\n".encode()


def heartbeat(reached: LedgerPosition, stalled: str = "") -> bytes:
    """Nothing happened, all is well: the last delivery, and the flow control request that is waited for."""
    more = f"\r\nNats-Consumer-Stalled: {stalled}" if stalled else ""
    last = f"Nats-Last-Consumer: {reached.consumer}\r\nNats-Last-Stream: {reached.stream}"
    return f"NATS/1.0 100 Idle Heartbeat\r\n{last}{more}\r\n\r\n".encode()
