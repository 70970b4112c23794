"""`Record`: one message as a person sees it. Hot paths never make one; they stay in `Batch`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

FLAG_CONTROL = 1
FLAG_PLACEHOLDER = 2
FLAG_TRANSACTIONAL = 4


@dataclass(frozen=True, slots=True)
class Record:
    """A message and its place in a log. `headers` is the raw block; `header_map` reads it."""

    position: int
    time_ns: int
    subject: str
    data: bytes | None
    headers: bytes | None = None
    key: bytes | None = None
    flags: int = 0

    @property
    def seq(self) -> int:
        """The position, under the name that NATS users know."""
        return self.position

    @property
    def time(self) -> datetime:
        """UTC, with microseconds (the nanoseconds are in `time_ns`)."""
        return datetime.fromtimestamp(self.time_ns // 1_000_000_000, UTC).replace(
            microsecond=self.time_ns % 1_000_000_000 // 1000
        )

    @property
    def header_map(self) -> dict[str, list[str]]:
        """NATS headers by name, order and repetitions kept; empty without headers."""
        return parse_nats_headers(self.headers or b"")


def parse_nats_headers(block: bytes) -> dict[str, list[str]]:
    """Read a `NATS/1.0` block. Lines without a colon are skipped, as clients do."""
    found: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            text = value.strip().decode("utf-8", "replace")
            found.setdefault(name.decode("utf-8", "replace"), []).append(text)
    return found


def format_nats_headers(headers: dict[str, list[str]]) -> bytes:
    """The inverse of `parse_nats_headers`."""
    lines = [f"{name}: {value}\r\n" for name, values in headers.items() for value in values]
    return ("NATS/1.0\r\n" + "".join(lines) + "\r\n").encode()
