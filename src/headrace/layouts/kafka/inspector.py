"""Looking at a log directory and checking it, without changing anything and without a lock.

    quick     names and sizes
    inspect   every batch header and checksum: counts, times, formats, codecs
    verify    every message decoded too; indexes, transaction index, snapshots, checkpoints compared with the log

What a running broker has under way (an unfinished batch at the end of the newest segment, room that is not used yet)
is not called damage.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.errors import Damaged, HeadraceError
from headrace.layouts.base import Damage, LogState
from headrace.layouts.kafka import checkpoints, offsets
from headrace.layouts.kafka._kernels import Disk, KafkaProducers, KafkaSurvey
from headrace.layouts.kafka.index_check import check_indexes
from headrace.layouts.kafka.names import DAMAGED, LOG_NAMES, SNAPSHOT, TXN, split_name
from headrace.layouts.kafka.opening import damage_of, snapshots
from headrace.layouts.kafka.producer_files import decode_snapshot, read_aborted
from headrace.layouts.kafka.segments import (
    Segment,
    ceiling_of,
    durable_bytes,
    list_segments,
    misplaced,
    summary_of,
)
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.layout import Progress
from headrace.layouts.marks import Mark
from headrace.layouts.report import FileRow, LogView, ReaderRow, VolumeView, floor_below
from headrace.layouts.shortcuts import read_or_damaged
from headrace.units import format_time_ns

NS_PER_MS = 1_000_000
TIME_MS_MAX = 2**63 // NS_PER_MS
LEAVING = ("-delete", "-stray", "-future")
SNAPSHOT_BYTES_MAX = 512 << 20


@dataclass(slots=True)
class _Findings:
    """What one log showed, on its way into a LogView."""

    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    formats: set[int] = field(default_factory=lambda: set())
    codecs: set[str] = field(default_factory=lambda: set())
    aborted: int = 0
    durable: Mark | None = None
    """Beside a writer of ours: what it is writing now is not looked at."""


def inspect(
    path: str,
    *,
    log: str | None,
    disk: Disk | None,
    progress: Progress | None,
    quick: bool = False,
    deep: bool = False,
    threads: int = 1,
) -> VolumeView:
    """The whole directory, or one log of it."""
    with KafkaVolume(path, disk=disk) as volume:
        names = volume.logs()
        if log is not None:
            names = LOG_NAMES.choose(names, (log,), path=path)
        damage: list[Damage] = []
        try:
            properties = checkpoints.read_properties(volume.disk, f"{volume.path}/{checkpoints.PROPERTIES}")
        except Damaged as problem:
            properties, damage = {}, [Damage(problem.file, 0, 0, "metadata", str(problem))]
        view = VolumeView(
            path=volume.path,
            layout="kafka",
            product="Apache Kafka",
            version=_era(properties),
            log_views=[],
            details=dict(properties),
            own_damage=damage,
        )
        live = volume.writer_pid()
        view.writer = f"process {live}" if live is not None else None
        _checkpoint_files(volume, view)
        _look_at_logs(volume, names, view, quick=quick, deep=deep, threads=threads, progress=progress)
        if not quick:
            _groups(volume, view, whole=log is None)
        return view


def _groups(volume: KafkaVolume, view: VolumeView, *, whole: bool) -> None:
    """Offsets that consumer groups committed, shown with the log they are for."""
    committed, damage = offsets.read_committed(volume)
    view.own_damage += [finding for finding in damage if finding.kind == "metadata"]
    logs = {log.name: log for log in view.log_views}
    absent: set[str] = set()
    for (group, name), what in sorted(committed.items()):
        if name not in logs:
            absent.add(name)
            continue
        time_ms = max(min(what.commit_time_ms, TIME_MS_MAX), -TIME_MS_MAX)
        details = {"committed": format_time_ns(time_ms * NS_PER_MS)}
        if what.leader_epoch >= 0:
            details["leader epoch"] = str(what.leader_epoch)
        if what.metadata:
            details["metadata"] = what.metadata
        state = logs[name].state
        if state is not None:
            details["behind"] = str(max(state.last_seq + 1 - what.next, 0))
        logs[name].cursors.append(
            ReaderRow(group, "group", what.next, floor_below(what.next), details=details)
        )
    if absent and whole:
        view.own_notes.append(
            f"groups committed offsets for logs that are not here: {', '.join(sorted(absent)[:20])}"
        )


def _era(properties: dict[str, str]) -> str:
    if properties.get("version") == "1":
        return "3.3 or later (KRaft)"
    return "0.8 to 3.9 (ZooKeeper)" if properties.get("version") == "0" else "0.8 or later"


def _look_at_logs(
    volume: KafkaVolume,
    names: list[str],
    view: VolumeView,
    *,
    quick: bool,
    deep: bool,
    threads: int,
    progress: Progress | None,
) -> None:
    total = sum(s.size for name in names for s in list_segments(volume.disk, f"{volume.path}/{name}"))
    done = 0
    live = view.writer is not None

    def look(name: str) -> LogView:
        return _quick(volume, name) if quick else _thorough(volume, name, live=live, deep=deep)

    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for found in pool.map(look, names):
            view.log_views.append(found)
            done += sum(row.file_bytes for row in found.files)
            if progress is not None:
                progress(min(done, total), total)


def _checkpoint_files(volume: KafkaVolume, view: VolumeView) -> None:
    disk, root = volume.disk, volume.path
    for name, is_dir, size in disk.list(root):
        if is_dir and name.endswith(LEAVING):
            view.own_notes.append(f"{name}: not a log any more (being deleted, stray, or moved)")
        if name in checkpoints.CHECKPOINTS:
            row = FileRow(f"{root}/{name}", "checkpoint", size)
            try:
                row.messages = len(checkpoints.read_offsets(disk, row.file))
            except Damaged as problem:
                row.damage.append(Damage(problem.file, problem.offset, 0, "metadata", str(problem)))
            view.files.append(row)
    clean = disk.entry(f"{root}/{checkpoints.CLEAN}") is not None
    view.details["last stop"] = "clean" if clean else "not clean, or running now"


def _quick(volume: KafkaVolume, name: str) -> LogView:
    directory = f"{volume.path}/{name}"
    segments = list_segments(volume.disk, directory)
    view = LogView(name, directory)
    for at, segment in enumerate(segments):
        ceiling, newest = ceiling_of(segments, at), at == len(segments) - 1
        row = FileRow(
            segment.log_path, "segment", segment.size, first=segment.base, next=ceiling, newest=newest
        )
        view.files.append(row)
    _metadata(volume.disk, directory, view)
    if volume.writer_pid() is None:
        view.damage += volume.known(name).lost(directory, segments, None)
    return view


def _thorough(volume: KafkaVolume, name: str, *, live: bool, deep: bool) -> LogView:
    disk, directory = volume.disk, f"{volume.path}/{name}"
    view = LogView(name, directory)
    try:
        segments = list_segments(disk, directory)
        view.damage += misplaced(disk, directory)
        found, producers = _Findings(durable=volume.durable_mark(name)), KafkaProducers([])
        for at in range(len(segments)):
            view.files.append(_segment(disk, segments, at, found, producers, live=live, deep=deep))
        _metadata(disk, directory, view)
        _producers(disk, directory, view, producers)
        view.damage += found.damage
        view.notes += found.notes
        view.details["formats"] = ", ".join(str(magic) for magic in sorted(found.formats)) or "none"
        view.details["codecs"] = ", ".join(sorted(found.codecs)) or "none"
        if found.aborted:
            view.details["aborted transactions"] = str(found.aborted)
        if not live:
            ends = [segments[-1].base, *(row.next or 0 for row in view.files)] if segments else [0]
            known = [each for row in view.files for each in row.damage]
            view.damage += volume.known(name).lost(directory, segments, max(ends), known)
        if segments:
            view.state = _state(volume, name, segments, view)
    except HeadraceError as problem:
        view.problems.append(str(problem))
    return view


def _segment(
    disk: Disk,
    segments: list[Segment],
    at: int,
    found: _Findings,
    producers: KafkaProducers,
    *,
    live: bool,
    deep: bool,
) -> FileRow:
    segment, newest = segments[at], at == len(segments) - 1
    limit = durable_bytes(found.durable, segment.base)
    seen = segment.survey(disk, ceiling_of(segments, at), 4096, producers, deep=deep, limit=limit)
    summary = segment.summary = summary_of(seen)
    formats, codecs = seen.kinds()
    found.formats |= set(formats)
    found.codecs |= set(codecs)
    row = FileRow(
        segment.log_path,
        "segment",
        seen.file_bytes,
        messages=summary.messages,
        first=segment.base,
        next=summary.last + 1,
        first_time_ns=summary.first_time_ns,
        last_time_ns=summary.max_time_ms * NS_PER_MS if summary.max_time_ms >= 0 else None,
        live_bytes=seen.sound_bytes,
        newest=newest,
        details={"batches": str(summary.batches), "markers": str(summary.control)},
    )
    under_way = live and newest
    row.damage += [f for f in damage_of(segment, seen) if not (under_way and f.kind == "unsound-tail")]
    if any(zeros for *_, zeros in seen.bad()):
        found.notes.append(f"{segment.log_path}: ends with zeros (preallocated, or lost in a power cut)")
    if deep and not under_way:
        row.damage += check_indexes(disk, segment, seen, newest=newest)
        row.damage += _check_aborted(disk, segment, seen, found)
    return row


def _check_aborted(disk: Disk, segment: Segment, seen: KafkaSurvey, found: _Findings) -> list[Damage]:
    path = segment.path(TXN)
    try:
        listed = read_aborted(disk, path)
    except Damaged as problem:
        return [Damage(path, problem.offset, 0, "index", str(problem))]
    found.aborted += len(listed)
    # A transaction that began before the first segment we have is listed, but cannot be seen.
    known = {one[:3] for one in listed}
    missing = [
        producer for producer, first, marker, _ in seen.aborted() if (producer, first, marker) not in known
    ]
    if missing:
        return [Damage(path, 0, 0, "index", f"{len(missing)} aborted transactions of the log are not in it")]
    return []


def _metadata(disk: Disk, directory: str, view: LogView) -> None:
    topic, partition = split_name(view.name)
    view.details |= {"topic": topic, "partition": str(partition)}
    topic_id = checkpoints.read_topic_id(disk, directory)
    if topic_id:
        view.details["topic id"] = topic_id
    try:
        epochs = checkpoints.read_epochs(disk, f"{directory}/{checkpoints.EPOCHS}")
        if epochs:
            view.details["leader epoch"] = f"{epochs[-1][0]} from offset {epochs[-1][1]}"
        if epochs != sorted(epochs):
            view.notes.append(f"{checkpoints.EPOCHS}: epochs do not ascend")
    except Damaged as problem:
        view.damage.append(Damage(problem.file, problem.offset, 0, "metadata", str(problem)))
    side = f"{directory}/{DAMAGED}"
    if disk.entry(side) is not None:
        kept = [size for _, is_dir, size in disk.list(side) if not is_dir]
        view.notes.append(f"{len(kept)} damaged pieces ({sum(kept)} bytes) were taken out and kept in {side}")


def _producers(disk: Disk, directory: str, view: LogView, producers: KafkaProducers) -> None:
    for offset, path in snapshots(disk, directory).items():
        try:
            decode_snapshot(path, read_or_damaged(disk, path, SNAPSHOT_BYTES_MAX, "delete the file") or b"")
        except Damaged as problem:
            view.damage.append(
                Damage(problem.file, problem.offset, 0, "metadata", f"{SNAPSHOT} {offset}: {problem}")
            )
    for producer, epoch, sequence, last, _, _, _, open_first in producers.states():
        details = {"epoch": str(epoch), "last sequence": str(sequence)}
        if open_first >= 0:
            details["open transaction"] = f"from offset {open_first}"
        view.cursors.append(
            ReaderRow(f"producer {producer}", "producer", last + 1, floor_below(last + 1), details=details)
        )


def _state(volume: KafkaVolume, name: str, segments: list[Segment], view: LogView) -> LogState:
    log = volume.open(name)
    surveyed = {segment.base: segment.summary for segment in segments}
    for segment in log.segments:
        segment.summary = surveyed.get(segment.base)
    state = log.state()
    lost = [f for row in view.files for f in row.damage if f.kind in ("bad-record", "unsound-tail")]
    view.details["log start offset"] = str(log.start)
    view.details["log end offset"] = str(log.next)
    return LogState(
        messages=state.messages,
        bytes=state.bytes,
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        first_time_ns=state.first_time_ns,
        last_time_ns=state.last_time_ns,
        num_subjects=state.num_subjects,
        num_deleted=state.num_deleted,
        lost_messages=sum((f.next_seq or 0) - (f.first_seq or 0) for f in lost),
        lost_bytes=sum(f.length for f in lost),
    )
