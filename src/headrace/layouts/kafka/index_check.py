"""Whether `.index` and `.timeindex` say what the log says. Wrong ones are never followed, but they slow a search down."""

from __future__ import annotations

import struct

from headrace._core import DiskFile
from headrace.layouts.base import Damage
from headrace.layouts.kafka._kernels import Disk, KafkaReader, KafkaSurvey
from headrace.layouts.kafka.names import INDEX, TIMES
from headrace.layouts.kafka.segments import INDEX_BYTES_MAX, INDEX_ENTRY, TIME_ENTRY, Segment
from headrace.layouts.shortcuts import read_shortcut

_ENTRY = struct.Struct(">ii")
_TIME = struct.Struct(">qi")
_HEAD = struct.Struct(">qiib")
HEADER_BYTES = 61
DELTA_AT = 23
INFLATED_MAX = 128 << 20


def check_indexes(disk: Disk, segment: Segment, seen: KafkaSurvey, *, newest: bool) -> list[Damage]:
    """Both indexes of a segment against its log; a missing one is made again by whoever opens for writing."""
    found: list[Damage] = []
    for ending, width, check in ((INDEX, INDEX_ENTRY, _offsets), (TIMES, TIME_ENTRY, _times)):
        path = segment.path(ending)
        entry = disk.entry(path)
        if entry is None:
            if segment.size:
                found.append(
                    Damage(
                        path, 0, 0, "index", "missing; it is made again when the log is opened for writing"
                    )
                )
            continue
        data = read_shortcut(disk, path, INDEX_BYTES_MAX, found)
        if data is None:
            continue
        if len(data) % width:
            found.append(
                Damage(path, len(data), 0, "index", f"{len(data)} bytes are not whole entries of {width}")
            )
        wrong = check(disk, segment, data[: len(data) // width * width], seen, newest)
        if wrong is not None:
            found.append(Damage(path, wrong[0], width, "index", wrong[1]))
    return found


def _offsets(
    disk: Disk, segment: Segment, data: bytes, seen: KafkaSurvey, newest: bool
) -> tuple[int, str] | None:
    """Every entry leads to a batch with its last offset."""
    log = disk.open(segment.log_path)
    before = (-1, -1)
    for number, (offset, position) in enumerate(_ENTRY.iter_unpack(data)):
        at = number * INDEX_ENTRY
        if offset == 0 and position == 0 and number:
            return None if newest else (at, "zeros: the index was not trimmed")
        if (offset, position) <= before or position <= before[1]:
            return at, f"entry ({offset}, {position}) does not ascend"
        before = (offset, position)
        last = _last_offset(log.read_at(position, HEADER_BYTES)) if position >= 0 else None
        if last != segment.base + offset:
            return (
                at,
                f"entry ({offset}, {position}) leads to no batch that ends at offset {segment.base + offset}",
            )
    return None


def _last_offset(head: bytes) -> int | None:
    if len(head) < _HEAD.size:
        return None
    base, _, _, magic = _HEAD.unpack_from(head)
    if magic < 2:
        return base
    return base + int.from_bytes(head[DELTA_AT : DELTA_AT + 4], "big") if len(head) == HEADER_BYTES else None


def _time_of(log: DiskFile, reader: KafkaReader, offset: int) -> int | None:
    """The largest time of the batch that ends at an offset."""
    position, last, _ = reader.locate(offset)
    found = reader.find(offset, position, last)
    if found is None or found.last != offset:
        return None
    head = log.read_at(found.position, HEADER_BYTES)
    at = 35 if head[16] == 2 else 18
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def _times(
    disk: Disk, segment: Segment, data: bytes, seen: KafkaSurvey, newest: bool
) -> tuple[int, str] | None:
    """Times ascend and are those of their batches; the last entry of a closed segment is its largest time."""
    before = (-1, -1)
    log = disk.open(segment.log_path)
    index, times = seen.index_data()
    reader = KafkaReader(
        disk, segment.log_path, segment.base, None, "", INFLATED_MAX, index=index, times=times
    )
    for number, (time, offset) in enumerate(_TIME.iter_unpack(data)):
        at = number * TIME_ENTRY
        if time == 0 and offset == 0 and number:
            return None if newest else (at, "zeros: the index was not trimmed")
        if time <= before[0] or offset < before[1]:
            return at, f"entry ({time}, {offset}) does not ascend"
        if _time_of(log, reader, segment.base + offset) != time:
            return (
                at,
                f"entry ({time}, {offset}): no batch that ends at offset {segment.base + offset} has that time",
            )
        before = (time, offset)
    largest = seen.max_time_ms
    if not newest and before[0] != largest:
        return max(
            len(data) - TIME_ENTRY, 0
        ), f"the last time is {before[0]}, the largest of the log {largest}"
    return None
