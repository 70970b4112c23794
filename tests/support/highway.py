"""HighwayHash-64 in plain Python, written from the published algorithm: an oracle for the core's.

State: four lanes each of v0, v1, mul0, mul1. A packet is 32 bytes, four little-endian words.
"""

from __future__ import annotations

import struct

_M64 = (1 << 64) - 1
_M32 = (1 << 32) - 1
_INIT0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
# Which byte of the (v1, v0) pair lands where when two lanes are shuffled into each other.
_LOW = (3, 12, 2, 5, 14, 1, 15, 0)
_HIGH = (11, 4, 10, 13, 9, 6, 8, 7)


def _rot32(x: int) -> int:
    return (x >> 32 | x << 32) & _M64


class _State:
    def __init__(self, key: bytes) -> None:
        words = struct.unpack("<4Q", key)
        self.mul0, self.mul1 = list(_INIT0), list(_INIT1)
        self.v0 = [m ^ k for m, k in zip(_INIT0, words, strict=True)]
        self.v1 = [m ^ _rot32(k) for m, k in zip(_INIT1, words, strict=True)]

    def update(self, lanes: tuple[int, ...] | list[int]) -> None:
        v0, v1, mul0, mul1 = self.v0, self.v1, self.mul0, self.mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + lanes[i]) & _M64
            mul0[i] ^= (v1[i] & _M32) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _M64
            mul1[i] ^= (v0[i] & _M32) * (v1[i] >> 32)
        self._zipper(v1, v0)
        self._zipper(v0, v1)

    @staticmethod
    def _zipper(source: list[int], target: list[int]) -> None:
        for i in (0, 2):
            pair = struct.pack("<2Q", source[i], source[i + 1])
            target[i] = (target[i] + int.from_bytes(bytes(pair[b] for b in _LOW), "little")) & _M64
            target[i + 1] = (target[i + 1] + int.from_bytes(bytes(pair[b] for b in _HIGH), "little")) & _M64

    def remainder(self, tail: bytes) -> None:
        size = len(tail)
        for i in range(4):
            self.v0[i] = (self.v0[i] + (size << 32) + size) & _M64
            low, high = self.v1[i] & _M32, self.v1[i] >> 32
            turn = [(half << size | half >> (32 - size)) & _M32 for half in (low, high)]
            self.v1[i] = turn[1] << 32 | turn[0]
        packet, rest = bytearray(32), size & 3
        packet[: size - rest] = tail[: size - rest]
        if size & 16:
            packet[28:32] = tail[size - 4 :]
        elif rest:
            packet[16:19] = bytes((tail[size - rest], tail[size - rest + (rest >> 1)], tail[-1]))
        self.update(struct.unpack("<4Q", packet))


def highway_hash(key: bytes, data: bytes) -> bytes:
    """The 64-bit hash as its 8 little-endian bytes."""
    state, whole = _State(key), len(data) & ~31
    for offset in range(0, whole, 32):
        state.update(struct.unpack_from("<4Q", data, offset))
    if len(data) > whole:
        state.remainder(data[whole:])
    for _ in range(4):
        v0 = state.v0
        state.update([_rot32(v0[2]), _rot32(v0[3]), _rot32(v0[0]), _rot32(v0[1])])
    total = state.v0[0] + state.v1[0] + state.mul0[0] + state.mul1[0]
    return (total & _M64).to_bytes(8, "little")
