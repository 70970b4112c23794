"""`Record`: one message as a person sees it. Hot paths never make one; they stay in `Batch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace._core import amqp_header_texts
from headrace.units import format_time_ns

FLAG_CONTROL = 1
FLAG_PLACEHOLDER = 2
FLAG_TRANSACTIONAL = 4
SHOWN_BYTES = 60
"""How much of a body `repr` shows."""


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """A message and its place in a log. `headers` is the raw block; `header_map` reads it."""

    position: int
    time_ns: int
    subject: str
    data: bytes | None
    headers: bytes | None = None
    key: bytes | None = None
    flags: int = 0
    header_codec: str = "nats"

    def __repr__(self) -> str:
        """For people: the time readable, a long body cut."""
        parts = [f"seq={self.position}", f"subject={self.subject!r}", f"data={_shortened(self.data)}"]
        parts += [f"key={_shortened(self.key)}"] if self.key is not None else []
        parts += [f"headers={_shortened(self.headers)}"] if self.headers is not None else []
        parts += [f"time={format_time_ns(self.time_ns)}"] if self.time_ns else []
        return f"Record({', '.join(parts)})"

    @property
    def seq(self) -> int:
        """The position, under the name that NATS users know."""
        return self.position

    @property
    def time(self) -> datetime | None:
        """UTC, with microseconds (the nanoseconds are in `time_ns`). None where the message has none (`time_ns` is 0)."""
        if not self.time_ns:
            return None
        return datetime.fromtimestamp(self.time_ns // 1_000_000_000, UTC).replace(
            microsecond=self.time_ns % 1_000_000_000 // 1000
        )

    @property
    def header_map(self) -> dict[str, list[str]]:
        """The headers by name, order and repetitions kept; empty without headers. A null value is an empty text."""
        if self.headers is None:
            return {}
        if self.header_codec == "kafka":
            return parse_kafka_headers(self.headers)
        if self.header_codec == "rocketmq":
            return parse_rocketmq_properties(self.headers)
        if self.header_codec == "amqp":
            return parse_amqp_properties(self.headers)
        return parse_nats_headers(self.headers)


def _shortened(value: bytes | None) -> str:
    if value is None or len(value) <= SHOWN_BYTES:
        return repr(value)
    return f"{value[:SHOWN_BYTES]!r}… ({len(value)} bytes)"


def parse_nats_headers(block: bytes) -> dict[str, list[str]]:
    """Read a `NATS/1.0` block. Lines without a colon are skipped, as clients do."""
    found: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            text = value.strip().decode("utf-8", "replace")
            found.setdefault(name.decode("utf-8", "replace"), []).append(text)
    return found


def kafka_header_pairs(block: bytes) -> list[tuple[str, bytes | None]]:
    """Name and value of each header in a Kafka block: a count, then lengths (zig-zag varints) and bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = block[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def field() -> bytes | None:
        nonlocal at
        length = number()
        if length < 0:
            return None
        at += length
        return block[at - length : at]

    return [((field() or b"").decode("utf-8", "replace"), field()) for _ in range(number())]


def format_kafka_headers(pairs: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The inverse of `kafka_header_pairs`."""

    def number(value: int) -> bytes:
        rest = (value << 1) ^ (value >> 63)
        out = bytearray()
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        return bytes([*out, rest])

    def field(value: bytes | None) -> bytes:
        return number(-1) if value is None else number(len(value)) + value

    return number(len(pairs)) + b"".join(field(name.encode()) + field(value) for name, value in pairs)


def parse_kafka_headers(block: bytes) -> dict[str, list[str]]:
    """Headers of a Kafka message as texts; what is not UTF-8 is replaced."""
    found: dict[str, list[str]] = {}
    for name, value in kafka_header_pairs(block):
        found.setdefault(name, []).append((value or b"").decode("utf-8", "replace"))
    return found


def parse_amqp_properties(block: bytes) -> dict[str, list[str]]:
    """AMQP properties and headers as texts: `delivery-mode`, `content-type` …, then the publisher's headers by name,
    then `amqp-exchange`, `amqp-cc` and `amqp-expiry` where the message has them."""
    found: dict[str, list[str]] = {}
    for name, value in amqp_header_texts(block):
        found.setdefault(name, []).append(value)
    return found


def parse_rocketmq_properties(block: bytes) -> dict[str, list[str]]:
    """Properties of a RocketMQ message: name, byte 1, value, byte 2, again and again."""
    found: dict[str, list[str]] = {}
    for pair in block.decode("utf-8", "replace").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and name != "__CRC32#":
            found.setdefault(name, []).append(value)
    return found


def format_nats_headers(headers: dict[str, list[str]]) -> bytes:
    """The inverse of `parse_nats_headers`."""
    lines = [f"{name}: {value}\r\n" for name, values in headers.items() for value in values]
    return ("NATS/1.0\r\n" + "".join(lines) + "\r\n").encode()
