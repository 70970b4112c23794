"""What a clean stop of RabbitMQ left in `recovery.dets`: per queue, how far it had counted.

The file is a DETS table. Its rows lie in it as plain Erlang terms, `{"<QUEUEHASH>", [{next_seq_id, 20}, …]}`, so they
are found by their first bytes, without the table's own indexes. Nothing here is needed to open a queue: it is one
more witness of the highest sequence that was given out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ROW = b"\x83h\x02k"
_BYTES_MAX = 64 << 20
_DEPTH_MAX = 8
_ELEMENTS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Stopped:
    """One queue at its clean stop."""

    next_seq: int
    next_deliver: int
    messages: int
    segments: dict[int, int]
    """Segment → unacked."""


def rows(data: bytes) -> dict[str, Stopped]:
    """Directory name → where it stood. What cannot be read is left out."""
    found: dict[str, Stopped] = {}
    at = data.find(_ROW) if len(data) <= _BYTES_MAX else -1
    while at >= 0:
        try:
            key, terms = _Reader(data, at + 1).value(0)
            known: dict[str, Any] = dict(terms)
            found[bytes(key).decode("ascii")] = Stopped(
                int(known["next_seq_id"]),
                int(known.get("next_deliver_seq_id", 0)),
                int(known.get("persistent_count", 0)),
                {int(number): int(unacked) for number, unacked in known.get("segments", [])},
            )
        except (ValueError, TypeError, KeyError, IndexError):
            pass
        at = data.find(_ROW, at + 1)
    return found


class _Reader:
    """The few tags that occur in such rows."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def _take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            raise ValueError("ends early")
        self.at += count
        return piece

    def _number(self, count: int) -> int:
        return int.from_bytes(self._take(count))

    def value(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise ValueError("too deep")
        tag = self._number(1)
        if tag in _FLAT:
            return _FLAT[tag](self)
        if tag == _SMALL_TUPLE:
            return tuple(self.value(depth + 1) for _ in range(self._number(1)))
        if tag == _LIST:
            return self._list(depth + 1)
        raise ValueError(f"tag {tag}")

    def _list(self, depth: int) -> list[Any]:
        count = self._number(4)
        if count > min(_ELEMENTS_MAX, len(self.data) - self.at):
            raise ValueError("more elements than bytes")
        elements = [self.value(depth) for _ in range(count)]
        self.value(depth)  # the tail, which is empty
        return elements

    def small_integer(self) -> int:
        return self._number(1)

    def integer(self) -> int:
        return int.from_bytes(self._take(4), signed=True)

    def small_big(self) -> int:
        count, sign = self._number(1), self._number(1)
        magnitude = int.from_bytes(self._take(count), "little")
        return -magnitude if sign else magnitude

    def atom(self) -> str:
        return self._take(self._number(2)).decode("latin-1")

    def small_atom(self) -> str:
        return self._take(self._number(1)).decode("latin-1")

    def string(self) -> list[int]:
        return list(self._take(self._number(2)))

    def binary(self) -> bytes:
        return self._take(self._number(4))

    def nil(self) -> list[Any]:
        return []


# Tags of Erlang's external term format.
_SMALL_TUPLE, _LIST = 104, 108
_FLAT: dict[int, Callable[[_Reader], Any]] = {
    97: _Reader.small_integer,
    98: _Reader.integer,
    100: _Reader.atom,
    106: _Reader.nil,
    107: _Reader.string,
    109: _Reader.binary,
    110: _Reader.small_big,
    115: _Reader.small_atom,
    118: _Reader.atom,
    119: _Reader.small_atom,
}
