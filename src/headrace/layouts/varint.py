"""Base-128 integers for the small files: low group first, top bit of a byte = "more follows".

`uvarint` is unsigned 64 bit, `varint` zig-zag signed 64 bit. At most ten bytes each. What is large is read by the core; this
serves the state of consumers, journals, the heads of archive entries and the fields of small protobufs.
"""

from __future__ import annotations

MASK64 = (1 << 64) - 1
BYTES_MAX = 10


class Truncated(ValueError):
    """The bytes end inside a number; more of them may come."""

    def __str__(self) -> str:
        return "a number is cut short"


class Overlong(ValueError):
    """More than ten bytes, or more than 64 bits."""

    def __str__(self) -> str:
        return "a number is too long"


def put_uvarint(out: bytearray, value: int) -> None:
    """Append `value`, 0 ≤ value < 2^64."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_varint(out: bytearray, value: int) -> None:
    """Append `value`, -2^63 ≤ value < 2^63."""
    put_uvarint(out, (value << 1) ^ (value >> 63))


def get_uvarint(data: bytes, offset: int) -> tuple[int, int]:
    """(value, offset behind it)."""
    value = shift = 0
    for at in range(offset, min(offset + BYTES_MAX, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MASK64:
                raise Overlong
            return value, at + 1
        shift += 7
    if offset + BYTES_MAX <= len(data):
        raise Overlong
    raise Truncated


def get_varint(data: bytes, offset: int) -> tuple[int, int]:
    """(value, offset behind it)."""
    raw, offset = get_uvarint(data, offset)
    return (raw >> 1) ^ -(raw & 1), offset
