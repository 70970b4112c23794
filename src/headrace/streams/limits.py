"""What the server says of itself and what accounts may take; handed in by whoever starts the model."""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = -1
SECOND_NS = 1_000_000_000
DURATION_NS_MAX = (1 << 63) - 1
FIRST_SEQ_MAX = 1 << 61
"""A stream may begin here at most. The file format keeps marks in the two highest bits of a sequence: from 2^62 on there
are none, and what a client may ask for leaves as many as were passed over."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server as answers show it, and its own limits (-1: none)."""

    name: str = "headrace"
    version: str = "2.15.2"
    """The nats-server whose features are fully served: clients compare it."""
    level: int = 5
    """The API level that is served: a configuration that needs a higher one is refused, not half served."""
    domain: str = ""
    strict: bool = True
    """Unknown fields of requests are refused."""
    origins: bool = False
    """Whether messages are taken over from other streams: mirrors and sources."""
    far_origins: bool = False
    """Whether origins may be in other accounts or domains, or be read through a consumer made beforehand."""
    max_memory: int = UNLIMITED
    max_storage: int = UNLIMITED
    max_ack_pending: int = UNLIMITED
    max_request_batch: int = UNLIMITED
    duplicate_window_ns: int = UNLIMITED
    max_pending: int = 64 << 20


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """An account's share; -1: no limit of its own."""

    max_memory: int = UNLIMITED
    max_storage: int = UNLIMITED
    max_streams: int = UNLIMITED
    max_consumers: int = UNLIMITED
    max_ack_pending: int = UNLIMITED
    memory_max_stream_bytes: int = UNLIMITED
    storage_max_stream_bytes: int = UNLIMITED
    max_bytes_required: bool = False

    def as_json(self) -> dict[str, int | bool]:
        """The member `limits` of the account's info."""
        return {
            "max_memory": self.max_memory,
            "max_storage": self.max_storage,
            "max_streams": self.max_streams,
            "max_consumers": self.max_consumers,
            "max_ack_pending": self.max_ack_pending,
            "memory_max_stream_bytes": self.memory_max_stream_bytes or UNLIMITED,
            "storage_max_stream_bytes": self.storage_max_stream_bytes or UNLIMITED,
            "max_bytes_required": self.max_bytes_required,
        }


def smallest(*limits: int) -> int:
    """The tightest of some limits; -1 if none of them limits."""
    return min((each for each in limits if each > 0), default=UNLIMITED)


def go_duration(ns: int) -> str:
    """`1h0m5s`, `1.5s`, `250ms`: a duration as Go prints it."""
    if ns < SECOND_NS:
        for unit, size in (("ms", 1_000_000), ("µs", 1000)):
            if ns >= size:
                return f"{_decimal(ns, size)}{unit}"
        return f"{ns}ns" if ns else "0s"
    minutes, rest = divmod(ns, 60 * SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, SECOND_NS)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
