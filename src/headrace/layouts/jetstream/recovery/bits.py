"""Inverting single bits: what one flipped bit on the medium took, this finds again.

Used for small hashed things only (metadata, consumer states, journal records): the cost grows with the
square of the size. A 64-bit hash makes a false match all but impossible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

REPAIR_BYTES_MAX = 16 << 10


class Repair(NamedTuple):
    """The sound bytes, and which bit of which byte was wrong."""

    data: bytes
    offset: int
    bit: int


def single_bit_repair(data: bytes, is_sound: Callable[[bytes], bool]) -> Repair | None:
    """The one change of a single bit that makes `data` sound, or None."""
    if len(data) > REPAIR_BYTES_MAX:
        return None
    trial = bytearray(data)
    for offset in range(len(trial)):
        for bit in range(8):
            trial[offset] ^= 1 << bit
            if is_sound(bytes(trial)):
                return Repair(bytes(trial), offset, bit)
            trial[offset] ^= 1 << bit
    return None
