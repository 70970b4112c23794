"""`.snapshot` and `.txnindex`: what producers left, as files.

.snapshot   int16 version 1 | uint32 CRC-32C of the rest | int32 count | count times
            int64 producer, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta, int64 time,
            int32 coordinator epoch, int64 first offset of the open transaction (−1: none)
.txnindex   int16 version 0, int64 producer, int64 first offset, int64 marker's offset, int64 last stable offset   each
"""

from __future__ import annotations

import struct

from headrace.errors import Damaged, HeadraceError
from headrace.layouts.kafka._kernels import Disk, kafka_crc32c
from headrace.layouts.shortcuts import read_or_damaged

ProducerState = tuple[int, int, int, int, int, int, int, int]
Aborted = tuple[int, int, int, int]
_HEAD = struct.Struct(">hIi")
_PRODUCER = struct.Struct(">qhiqiqiq")
_ABORTED = struct.Struct(">hqqqq")
FILE_BYTES_MAX = 512 << 20
_REMEDY = "delete the file: the state is made again from the log"


def encode_snapshot(producers: list[ProducerState]) -> bytes:
    """A `.snapshot` file."""
    body = struct.pack(">i", len(producers)) + b"".join(_PRODUCER.pack(*producer) for producer in producers)
    return struct.pack(">hI", 1, kafka_crc32c(body)) + body


def decode_snapshot(path: str, data: bytes) -> list[ProducerState]:
    """The producers in a `.snapshot` file; Damaged when version, checksum or length differ."""
    if len(data) < _HEAD.size:
        raise Damaged(path, 0, f"{len(data)} bytes", f"at least {_HEAD.size}", _REMEDY)
    version, crc, count = _HEAD.unpack_from(data)
    if version != 1:
        raise Damaged(path, 0, f"version {version}", "version 1", _REMEDY)
    if crc != kafka_crc32c(data[6:]):
        raise Damaged(path, 2, f"checksum {crc:08x}", f"{kafka_crc32c(data[6:]):08x}", _REMEDY)
    if count < 0 or len(data) != _HEAD.size + count * _PRODUCER.size:
        raise Damaged(path, 6, f"{count} producers in {len(data)} bytes", "a count that fits", _REMEDY)
    return [_PRODUCER.unpack_from(data, _HEAD.size + n * _PRODUCER.size) for n in range(count)]


def read_snapshot(disk: Disk, path: str) -> list[ProducerState] | None:
    """The producers of a snapshot, None when it cannot be used: it is only a shortcut."""
    try:
        return decode_snapshot(path, disk.read(path, FILE_BYTES_MAX))
    except HeadraceError:
        return None


def encode_aborted(found: list[Aborted]) -> bytes:
    """Entries of a `.txnindex`."""
    return b"".join(_ABORTED.pack(0, *entry) for entry in found)


def decode_aborted(path: str, data: bytes) -> list[Aborted]:
    """The aborted transactions in a `.txnindex`; Damaged for another version or half an entry."""
    if len(data) % _ABORTED.size:
        raise Damaged(path, len(data), f"{len(data)} bytes", f"entries of {_ABORTED.size}", _REMEDY)
    found: list[Aborted] = []
    for at in range(0, len(data), _ABORTED.size):
        version, producer, first, last, stable = _ABORTED.unpack_from(data, at)
        if version != 0 or first > last:
            raise Damaged(path, at, f"version {version}, {first} to {last}", "version 0, ascending", _REMEDY)
        found.append((producer, first, last, stable))
    return found


def read_aborted(disk: Disk, path: str) -> list[Aborted]:
    """The aborted transactions of a segment; none without a file."""
    data = read_or_damaged(disk, path, FILE_BYTES_MAX, _REMEDY)
    return [] if data is None else decode_aborted(path, data)
