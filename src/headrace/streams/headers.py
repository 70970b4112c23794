"""Header blocks of NATS messages as the model needs them: one value, a new block, durations in them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.streams.errors import api_error

FIRST_LINE = b"NATS/1.0\r\n"
TTL = b"Nats-TTL"
NEVER = -1
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}


def header_value(block: bytes, name: bytes) -> bytes | None:
    """The first header of that name (byte by byte, as nats-server compares), or None."""
    at = block.find(b"\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 2
    end = block.find(b"\r\n", start)
    return block[start : end if end >= 0 else len(block)].strip()


def make_headers(pairs: Iterable[tuple[str, str]], status: str = "") -> bytes:
    """A block with these headers; `status` stands in its first line."""
    lines = [f"NATS/1.0 {status}".rstrip(), *(f"{name}: {value}" for name, value in pairs), "", ""]
    return "\r\n".join(lines).encode()


def add_headers(block: bytes | None, pairs: Iterable[tuple[str, str]]) -> bytes:
    """The block with more headers behind its own."""
    head = (block or FIRST_LINE + b"\r\n").removesuffix(b"\r\n")
    return head + "".join(f"{name}: {value}\r\n" for name, value in pairs).encode() + b"\r\n"


def parse_duration_ns(text: str) -> int | None:
    """A duration as Go writes it ("1h30m", "400ms"), or None."""
    at, total = 0, 0.0
    while at < len(text):
        part = _DURATION.match(text, at)
        if part is None:
            return None
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return int(total) if text else None


def parse_ttl_ns(value: bytes | None) -> int:
    """`Nats-TTL`: whole seconds, a duration of a second or more, or `never` (NEVER); 0 for none."""
    if not value:
        return 0
    text = value.decode(errors="replace")
    if text.lower() == "never":
        return NEVER
    ttl = int(text) * 10**9 if text.isdecimal() else parse_duration_ns(text)
    if ttl is None or ttl < 10**9:
        raise api_error("JSMessageTTLInvalidErr")
    return ttl
