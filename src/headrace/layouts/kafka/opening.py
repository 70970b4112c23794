"""Opening a partition. For reading nothing is changed; for writing it is recovered first (see recovery.py).

After a clean stop only the tail of the last segment is looked at. Otherwise every segment from the recovery point on
is scanned, as the broker does, but nothing sound is given up: bad batches are taken out, what follows them stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import Damaged
from headrace.layouts.base import Damage
from headrace.layouts.kafka import checkpoints
from headrace.layouts.kafka._kernels import Disk, KafkaProducers, KafkaSurvey, KafkaWriter
from headrace.layouts.kafka.evidence import KnownPartition, OffsetEvidence
from headrace.layouts.kafka.names import INDEX, SNAPSHOT, TIMES, TXN, parse_file
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.producer_files import encode_aborted, read_snapshot
from headrace.layouts.kafka.recovery import finish_cleaning, mend
from headrace.layouts.kafka.segments import (
    INDEX_BYTES_MAX,
    INDEX_ENTRY,
    TIME_ENTRY,
    Segment,
    Summary,
    ceiling_of,
    floor_of,
    list_segments,
    misplaced,
    summary_of,
)
from headrace.layouts.marks import Mark
from headrace.layouts.shortcuts import read_shortcut

FAR = 2**62


@dataclass(slots=True)
class OpenedPartition:
    """A partition as it was found (and, for writing, put in order)."""

    segments: list[Segment]
    producers: KafkaProducers
    start: int
    next: int
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [])
    writer: KafkaWriter | None = None
    recovery_point: int = 0
    damage: list[Damage] = field(default_factory=lambda: [])
    live_writer: bool = False
    durable: Mark | None = None
    names_unsynced: bool = False


def open_for_reading(
    disk: Disk,
    directory: str,
    options: KafkaOptions,
    known: KnownPartition,
    *,
    live: bool,
    durable: Mark | None = None,
) -> OpenedPartition:
    """Look, change nothing. `live`: a broker is writing to it now, or (then `durable` says how far) we are."""
    segments = list_segments(disk, directory)
    damage: list[Damage] = []
    start = max(known.start, segments[0].base if segments else 0)
    opened = OpenedPartition(segments, KafkaProducers([]), start, start, live_writer=live, damage=damage)
    opened.epochs = _epochs(disk, directory, damage)
    damage += misplaced(disk, directory)
    if not segments:
        damage += [] if live else known.lost(directory, segments, start)
        return opened
    if options.isolation_level == "read_committed":
        opened.producers = _producers_by_scan(disk, directory, segments, options)
    if durable is not None:
        opened.durable, opened.next = durable, durable[2]
        return opened
    found = _tail(disk, segments, options)
    opened.next = max(found.last + 1, segments[-1].base, start)
    if not live:
        damage += [finding for finding in damage_of(segments[-1], found) if finding.kind == "unsound-tail"]
        damage += known.lost(directory, segments, opened.next, damage)
    return opened


def _tail(disk: Disk, segments: list[Segment], options: KafkaOptions) -> KafkaSurvey:
    """The last segment from its last index entry on."""
    segment = segments[-1]
    reader = segment.open(disk, "", None, options.decompressed_bytes_max, active=not segment.has_index(disk))
    position, _, _ = reader.locate(FAR)
    segment.reader = None
    found = segment.survey(disk, None, options.index_interval_bytes, start=position)
    if position and (found.bad() or found.first is None):
        # Where the end is not what the index says, only the whole segment says how far it goes.
        found = segment.survey(disk, None, options.index_interval_bytes)
    return found


def damage_of(segment: Segment, found: KafkaSurvey) -> list[Damage]:
    """A survey's findings as `Damage`."""
    damage = [
        Damage(segment.log_path, at, to - at, "unsound-tail" if tail else "bad-record", why, first, following)
        for at, to, why, first, following, tail, zeros in found.bad()
        if not zeros
    ]
    damage += [
        Damage(segment.log_path, at, len(data), "repaired", what) for at, data, what in found.repairs()
    ]
    damage += [
        Damage(segment.log_path, at, size, "bad-record", why, first, following)
        for at, size, first, following, why in found.malformed()
    ]
    return damage


def _epochs(disk: Disk, directory: str, damage: list[Damage]) -> list[tuple[int, int]]:
    path = f"{directory}/{checkpoints.EPOCHS}"
    try:
        return checkpoints.read_epochs(disk, path)
    except Damaged as problem:
        damage.append(Damage(path, problem.offset, 0, "metadata", str(problem)))
        return []


def snapshots(disk: Disk, directory: str) -> dict[int, str]:
    """Offset → path of every producer snapshot, newest first."""
    found: dict[int, str] = {}
    for name, is_dir, _ in disk.list(directory):
        parsed = parse_file(name)
        if not is_dir and parsed is not None and parsed[1] == SNAPSHOT and not parsed[2]:
            found[parsed[0]] = f"{directory}/{name}"
    return dict(sorted(found.items(), reverse=True))


def _producers_by_scan(
    disk: Disk, directory: str, segments: list[Segment], options: KafkaOptions
) -> KafkaProducers:
    """From the newest snapshot at a segment's base, then the log."""
    bases = {segment.base for segment in segments}
    producers, first = KafkaProducers([]), 0
    for offset, path in snapshots(disk, directory).items():
        states = read_snapshot(disk, path) if offset in bases else None
        if states is not None:
            producers, first = KafkaProducers(states), floor_of(segments, offset)
            break
    for at in range(first, len(segments)):
        segments[at].survey(disk, ceiling_of(segments, at), options.index_interval_bytes, producers)
    return producers


class Opener:
    """Opening for writing, step by step."""

    def __init__(self, disk: Disk, directory: str, options: KafkaOptions, known: KnownPartition) -> None:
        self.disk, self.directory, self.options, self.known = disk, directory, options, known
        self.clean = self.fresh = False
        self.damage: list[Damage] = []
        self.evidence = OffsetEvidence(known.next)
        self.epochs = _epochs(disk, directory, self.damage)
        self.producers = KafkaProducers([])

    def open(self) -> OpenedPartition:
        """Recover, and leave the last segment open for appending."""
        finish_cleaning(self.disk, self.directory)
        found = self.segments = list_segments(self.disk, self.directory)
        if not found:
            self.damage += self.known.lost(self.directory, found, self.known.start)
            self.segments = [Segment(self.evidence.next, self.directory, 0)]
            self.disk.open(self.segments[0].log_path, "write")
        last = self._scan()
        following = max(last + 1, self.segments[-1].base)
        if found:
            self.damage += self.known.lost(self.directory, self.segments, following, self.damage)
        writer = self._writer()
        opened = OpenedPartition(
            self.segments, self.producers, 0, following, writer=writer, damage=self.damage
        )
        opened.start = max(self.known.start, self.segments[0].base)
        wanted = self.evidence.above(following)
        if wanted > following:
            self._leave_hole(opened, wanted)
        self.epochs = [(epoch, first) for epoch, first in self.epochs if first <= opened.next]
        opened.epochs = self.epochs or [(0, opened.start)]
        path = f"{self.directory}/{checkpoints.EPOCHS}"
        # A new log gets the file at its first clean stop; both we and the broker make it again from the batches.
        if not self.fresh and self.disk.entry(path) is None:
            checkpoints.write_epochs(self.disk, path, opened.epochs)
        opened.recovery_point = opened.next
        opened.names_unsynced = not self.fresh
        return opened

    def _scan(self) -> int:
        """Look at whatever is not known to be whole; returns the last sound offset."""
        segments = self.segments
        first = len(segments)
        if not self.clean:
            first = floor_of(segments, self.known.recovery_point)
        elif not self._clean_end():
            first = len(segments) - 1
        begin = self._load_producers(first) if first < len(segments) else first
        for at, segment in enumerate(segments):
            lacks_index = segment.size > 0 and not segment.has_index(self.disk)
            if at >= begin or lacks_index:
                self._recover(at, with_producers=at >= begin)
        if self._end is None:
            return segments[-1].summary.last if segments[-1].summary else segments[-1].base - 1
        return self._end

    _end: int | None = None

    def _clean_end(self) -> bool:
        """After a clean stop: the end by the last index entry, and the snapshot there. False: scan after all."""
        segment = self.segments[-1]
        if segment.size and not segment.has_index(self.disk):
            return False
        if not segment.size:
            segment.summary = Summary(last=segment.base - 1)
            self._end = segment.base - 1
        else:
            found = _tail(self.disk, self.segments, self.options)
            if found.bad() or found.repairs() or found.last < segment.base:
                return False
            self._end = found.last
        following = max(self._end + 1, segment.base)
        states = read_snapshot(self.disk, f"{self.directory}/{following:020d}{SNAPSHOT}")
        if states is None:
            self._end = None
            return False
        self.producers = KafkaProducers(states)
        return True

    def _load_producers(self, first: int) -> int:
        """The newest snapshot at or below the first segment to scan; returns from where on to scan for producers."""
        bases = {segment.base: at for at, segment in enumerate(self.segments)}
        for offset, path in snapshots(self.disk, self.directory).items():
            at = bases.get(offset)
            states = read_snapshot(self.disk, path) if at is not None and at <= first else None
            if at is not None and states is not None:
                self.producers = KafkaProducers(states)
                return at
        return 0

    def _recover(self, at: int, *, with_producers: bool) -> None:
        segment, ceiling = self.segments[at], ceiling_of(self.segments, at)
        before = self.producers.states()
        found = self._survey(segment, ceiling, with_producers)
        if found.bad() or found.repairs():
            self.damage += mend(self.disk, segment, found)
            self.evidence.take(found)
            if with_producers:
                self.producers = KafkaProducers(before)
            found = self._survey(segment, ceiling, with_producers)
        segment.size, segment.summary, segment.reader = found.file_bytes, summary_of(found), None
        newest = at == len(self.segments) - 1
        if not newest:
            self._write_indexes(segment, found)
        else:
            self._indexes = found.index_data()
        self._write_aborted(segment, found)
        for epoch, first in found.epochs():
            if not self.epochs or epoch > self.epochs[-1][0]:
                self.epochs.append((epoch, first))
        # What was found is served from now on, so it must not vanish with the power.
        if segment.size:
            self.disk.open(segment.log_path, "write").sync_data()

    _indexes: tuple[bytes, bytes] | None = None

    def _survey(self, segment: Segment, ceiling: int | None, with_producers: bool) -> KafkaSurvey:
        return segment.survey(
            self.disk,
            ceiling,
            self.options.index_interval_bytes,
            self.producers if with_producers else None,
            inflated_max=self.options.decompressed_bytes_max,
        )

    def _write_indexes(self, segment: Segment, found: KafkaSurvey) -> None:
        for ending, right in zip((INDEX, TIMES), found.index_data(), strict=True):
            path = segment.path(ending)
            entry = self.disk.entry(path)
            if entry is None or entry.size != len(right) or self.disk.read(path) != right:
                self.disk.replace_file(path, right)

    def _write_aborted(self, segment: Segment, found: KafkaSurvey) -> None:
        path, right = segment.path(TXN), encode_aborted(found.aborted())
        entry = self.disk.entry(path)
        if right and (entry is None or self.disk.read(path) != right):
            self.disk.replace_file(path, right)
        elif not right and entry is not None and entry.size:
            self.disk.replace_file(path, b"")

    def _writer(self) -> KafkaWriter:
        segment = self.segments[-1]
        indexes = self._indexes
        if indexes is None:
            indexes = (
                self._used(segment.path(INDEX), INDEX_ENTRY),
                self._used(segment.path(TIMES), TIME_ENTRY),
            )
        first_time = self._first_batch_time(segment)
        interval = self.options.index_interval_bytes
        return KafkaWriter(
            self.disk, segment.stem, segment.base, interval, segment.size, first_time, *indexes
        )

    def _used(self, path: str, width: int) -> bytes:
        """The entries of an index; the broker leaves zeros behind them when it is killed."""
        if self.disk.entry(path) is None:
            return b""
        data = read_shortcut(self.disk, path, INDEX_BYTES_MAX, []) or b""
        data = data[: len(data) // width * width]
        while data and not any(data[-width:]):
            data = data[:-width]
        return data

    def _first_batch_time(self, segment: Segment) -> int:
        if segment.summary is not None:
            return segment.summary.first_batch_time_ms
        if not segment.size:
            return -1
        head = self.disk.open(segment.log_path).read_at(0, 43)
        if len(head) < 43 or head[16] not in (1, 2):
            return -1
        at = 35 if head[16] == 2 else 18
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def _leave_hole(self, opened: OpenedPartition, base: int) -> None:
        """Offsets up to `base` may have been given out: an empty segment makes everybody go on there."""
        assert opened.writer is not None
        opened.writer.close()
        segment = Segment(base, self.directory, 0, summary=Summary(last=base - 1))
        interval = self.options.index_interval_bytes
        opened.writer = KafkaWriter(self.disk, segment.stem, base, interval, 0, -1, b"", b"")
        opened.segments = [*opened.segments, segment]
        opened.next = base


def open_for_writing(
    disk: Disk,
    directory: str,
    options: KafkaOptions,
    known: KnownPartition,
    *,
    clean: bool,
    fresh: bool = False,
) -> OpenedPartition:
    """Recover a partition and open it. The caller holds the volume's lock. `fresh`: it was made just now."""
    opener = Opener(disk, directory, options, known)
    opener.clean, opener.fresh = clean, fresh
    return opener.open()
