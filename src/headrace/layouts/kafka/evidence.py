"""Which offsets a partition has given out, by everything beside its segments that says so.

    recovery-point-offset-checkpoint   synced up to there          replication-offset-checkpoint   acknowledged up to there
    log-start-offset-checkpoint        deleted up to there
    headrace.marks                     what a writer of ours synced last: segment, bytes of it, next offset

A log that ends before one of the first two, or before its mark, has lost messages. Marks count until a broker has run:
it rewrites the checkpoints, and may delete a topic and make another of that name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.kafka._kernels import Disk, KafkaSurvey
from headrace.layouts.kafka.checkpoints import FILE_BYTES_MAX, HIGH_WATERMARK, RECOVERY_POINT
from headrace.layouts.kafka.names import LOG, segment_file
from headrace.layouts.kafka.segments import Segment
from headrace.layouts.marks import NOTHING, Mark, MarksBefore

RECORD_BYTES_MIN = 7
CHECKPOINT_SLOT = "\0recovery point"
"""The slot with the checksums of the checkpoint file: as we found or left it, as we are about to write it."""


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """What is said of one partition."""

    recovery_point: int = 0
    high_watermark: int = 0
    start: int = 0
    synced: Mark | None = None
    """(base of the segment, bytes of it, next offset)"""

    @property
    def next(self) -> int:
        """The first offset that surely was not given out."""
        return max(self.acknowledged, self.start)

    @property
    def acknowledged(self) -> int:
        return max(self.recovery_point, self.high_watermark, 0 if self.synced is None else self.synced[2])

    def lost(
        self, directory: str, segments: list[Segment], following: int | None, known: Iterable[Damage] = ()
    ) -> list[Damage]:
        """What should be there and is not. `following` is the offset behind the last sound batch, None if that is not
        known; `known` are findings that name their offsets."""
        for base, size, offset in [] if self.synced is None else [self.synced]:
            there = next((segment.size for segment in segments if segment.base == base), None)
            if (there is None or there < size) and (following is None or following < offset):
                path = f"{directory}/{segment_file(base, LOG)}"
                what = "the segment is not there" if there is None else "cut short"
                detail = f"{what}; {size} bytes of it were synced, up to offset {offset - 1}"
                at, length = (0, 0) if there is None else (there, size - there)
                return [Damage(path, at, length, "missing", detail, following, self._end(following))]
        first = following
        if first is None or self.acknowledged <= max(first, self.start):
            return []
        for finding in sorted(known, key=lambda each: each.offset):
            if finding.kind == "unsound-tail" and finding.next_seq is None:
                return []
            if finding.first_seq is not None and finding.next_seq is not None and finding.first_seq <= first:
                first = max(first, finding.next_seq)
        if first >= self.acknowledged:
            return []
        source = next(name for name, offset in self._sources() if offset == self.acknowledged)
        detail = f"offsets {first} to {self.acknowledged - 1} are not there; {source} knows them"
        path = segments[-1].log_path if segments else directory
        return [Damage(path, 0, 0, "missing", detail, first, self.acknowledged)]

    def _end(self, following: int | None) -> int | None:
        return None if following is None else self.acknowledged

    def _sources(self) -> list[tuple[str, int]]:
        synced = 0 if self.synced is None else self.synced[2]
        return [
            (RECOVERY_POINT, self.recovery_point),
            (HIGH_WATERMARK, self.high_watermark),
            ("the mark of the last sync", synced),
        ]


class OffsetEvidence:
    """The offsets that may have been given out, as recovery finds more of it."""

    def __init__(self, least: int) -> None:
        self.next = least

    def take(self, found: KafkaSurvey) -> None:
        """What bad batches claim; for a tail that claims nothing, as many messages as it could hold."""
        for at, to, _, _, following, tail, zeros in found.bad():
            if following is not None:
                self.next = max(self.next, following)
            elif tail and not zeros:
                self.next = max(self.next, found.last + 1 + (to - at) // RECORD_BYTES_MIN)

    def above(self, following: int) -> int:
        """The first offset that surely was not given out."""
        return max(self.next, following)


def checkpoint_sum(data: bytes) -> int:
    """Never 0."""
    return 1 << 32 | zlib.crc32(data)


def read_sum(disk: Disk, root: str) -> int:
    """Of the recovery points that are there."""
    path = f"{root}/{RECOVERY_POINT}"
    try:
        return checkpoint_sum(disk.read(path, FILE_BYTES_MAX) if disk.entry(path) is not None else b"")
    except HeadraceError:
        return 0


def marks_before(disk: Disk, root: str) -> MarksBefore:
    """What a writer of ours left, unless a broker has written since."""
    found = MarksBefore.read(disk, root)
    total = read_sum(disk, root)
    same = total != 0 and total in (found.of(CHECKPOINT_SLOT) or NOTHING)[:2]
    return found if same else MarksBefore()
