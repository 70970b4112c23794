"""`inspect` and `verify` of a RabbitMQ directory: what is in it, and what is not sound. Reads only, takes no lock.

The files have no checksums. `verify` reads every byte and compares what the format repeats: a message's own id, length
and size against its index record, the end marks of the store, deliver and ack against their publish, every reference
into the store. A flipped bit inside a body, a time or an id of a stored message's index record cannot be noticed.
"""

from __future__ import annotations

from headrace.errors import DiskFault, HeadraceError
from headrace.layouts.layout import Progress
from headrace.layouts.log_names import LogNames
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import (
    Disk,
    rabbit_check_journal,
    rabbit_check_segment,
    rabbit_check_store,
)
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.vhost import Vhost
from headrace.layouts.rabbitmq.volume import RabbitVolume
from headrace.layouts.report import FileRow, LogView, ReaderRow, VolumeView, floor_below
from headrace.layouts.shortcuts import unreadable

PRODUCT = "RabbitMQ"


class _Done:
    """Counts bytes for the progress bar."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.bytes, self._progress = total, 0, progress

    def add(self, count: int) -> None:
        self.bytes += count
        if self._progress is not None:
            self._progress(self.bytes, self.total)


def view(
    path: str, *, log: str | None, quick: bool, thorough: bool, disk: Disk | None, progress: Progress | None
) -> VolumeView:
    """The whole directory, or one queue of it. `thorough` reads every file byte by byte."""
    with RabbitVolume(path, disk=disk, read_all=True) as volume:
        names = volume.logs()
        if log is not None:
            names = LogNames().choose(names, (log,), path=path, kind="queue")
        wanted = [volume.open(name) for name in names]
        total = sum(_bytes_of(one) for one in wanted)
        total += sum(sum(_store_sizes(vhost).values()) for vhost in volume.vhosts.values()) if thorough else 0
        done = _Done(total, progress)
        logs = [_log_view(one, quick, thorough, done) for one in wanted]
        found = VolumeView(
            path=volume.path, layout="rabbitmq", product=PRODUCT, version=_version(volume), log_views=logs
        )
        for vhost in volume.vhosts.values():
            _add_vhost(found, vhost, quick, thorough, done)
        holder = volume.disk.lock_holder(f"{volume.root}/{files.LOCK}")
        found.writer = None if holder is None else f"process {holder.pid} ({holder.note})"
        return found


def _version(volume: RabbitVolume) -> str:
    old = any(vhost.entry_count == files.OLD_ENTRY_COUNT for vhost in volume.vhosts.values())
    return "3.7 to 3.13, classic queues version 1" if old else "3.8.17 to 3.13, classic queues version 1"


def _store_sizes(vhost: Vhost) -> dict[str, int]:
    store = vhost.store
    sizes: dict[str, int] = {}
    for directory, suffix in ((store.directory, "rdq"), (store.directory, "rdt"), (store.transient, "rdq")):
        for number, size in files.numbered(vhost.disk, directory, suffix).items():
            sizes[f"{directory}/{number}.{suffix}"] = size
    return sizes


def _bytes_of(log: RabbitLog) -> int:
    journal = log.disk.entry(log.journal_path)
    segments = files.numbered(log.disk, log.directory, "idx")
    return sum(segments.values()) + (journal.size if journal is not None else 0)


def _log_view(log: RabbitLog, quick: bool, thorough: bool, done: _Done) -> LogView:
    shown = LogView(name=log.name, directory=log.directory)
    stopped = log.vhost.stopped.get(log.directory.rsplit("/", 1)[-1])
    shown.details = {"vhost": log.vhost.name, "queue": log.queue.queue}
    if log.queue.priority is not None:
        shown.details["priority"] = str(log.queue.priority)
    shown.details |= {
        "entries per segment": str(log.vhost.entry_count),
        "stop": "clean" if stopped is not None else "unclean, or not by RabbitMQ",
    }
    count = log.vhost.entry_count
    segments = files.numbered(log.disk, log.directory, "idx")
    for number, size in segments.items():
        row = FileRow(
            f"{log.directory}/{number}.idx", "segment", size, first=number * count, next=(number + 1) * count
        )
        row.newest = number == max(segments)
        shown.files.append(row)
    journal = log.disk.entry(log.journal_path)
    if journal is not None:
        shown.files.append(FileRow(log.journal_path, "journal", journal.size))
    if quick:
        return shown
    try:
        shown.state = log.state()
        unacked = {number: left for number, left, _, _ in log.kernel.segments()}
    except HeadraceError as problem:
        shown.problems.append(str(problem))
        return shown
    following = log.next_seq if stopped is None else max(log.next_seq, stopped.next_seq)
    shown.details["next sequence"] = str(following)
    shown.cursors.append(
        ReaderRow(
            "queue",
            "classic queue",
            next=shown.state.first_seq if stopped is None else stopped.next_deliver,
            floor=floor_below(shown.state.first_seq),
            pending=shown.state.messages,
            details={
                "unacked per segment": ", ".join(f"{n}: {left}" for n, left in unacked.items()) or "none"
            },
        )
    )
    for row in shown.files:
        _check_index_file(log, row, unacked, thorough, done)
    shown.damage = log.damage()
    if thorough:
        for _ in log.batches():
            pass
        shown.damage = log.damage()
        if stopped is not None and stopped.messages != shown.state.messages:
            shown.notes.append(
                f"recovery.dets counts {stopped.messages} messages, the index has {shown.state.messages}"
            )
    return shown


def _check_index_file(
    log: RabbitLog, row: FileRow, unacked: dict[int, int], thorough: bool, done: _Done
) -> None:
    if row.kind == "segment" and row.first is not None:
        row.messages = unacked.get(row.first // log.vhost.entry_count, 0)
    if not thorough:
        return
    try:
        data = log.disk.read(row.file, files.JOURNAL_BYTES_MAX)
    except DiskFault as problem:
        row.damage = [unreadable(row.file, problem, "missing")]
        return
    if row.kind == "segment":
        findings, publishes, delivers, acks = rabbit_check_segment(data, log.vhost.entry_count)
    else:
        findings, publishes, delivers, acks = rabbit_check_journal(data)
    row.details = {"publish": str(publishes), "deliver": str(delivers), "ack": str(acks)}
    row.damage = files.damage_of(row.file, findings)
    done.add(len(data))


def _add_vhost(found: VolumeView, vhost: Vhost, quick: bool, thorough: bool, done: _Done) -> None:
    found.own_damage += vhost.damage
    found.own_problems += vhost.problems
    found.details[f"vhost {vhost.name}"] = (
        f"{len(vhost.logs)} queue directories, {vhost.entry_count} entries per segment"
    )
    if not quick:
        vhost.store.scan()
        for log in vhost.logs.values():
            try:
                log.kernel.reference(vhost.store.kernel, True)
            except HeadraceError as problem:
                found.own_problems.append(str(problem))
    states = {
        (file.kind, file.number): (file.referenced_bytes, file.records) for file in vhost.store.kernel.files()
    }
    for path, size in _store_sizes(vhost).items():
        name = path.rsplit("/", 1)[-1]
        kind = "transient" if path.startswith(vhost.store.transient) else name.rsplit(".", 1)[-1]
        valid, records = states.get((kind, int(name.split(".")[0])), (None, 0))
        row = FileRow(
            path, "message store" if kind == "rdq" else kind, size, messages=records, live_bytes=valid
        )
        if thorough:
            try:
                data = vhost.disk.read(path)
            except DiskFault as problem:
                found.own_problems.append(str(problem))
            else:
                findings, row.messages = rabbit_check_store(data)
                row.damage = files.damage_of(path, findings)
                done.add(len(data))
        found.files.append(row)
        if kind == "rdt":
            found.own_notes.append(
                f"{path}: left by an interrupted merge; RabbitMQ may lose what is only in there, opening for writing here keeps it"
            )
    found.own_damage += vhost.store.damage if not quick else []
    leftover = files.numbered(vhost.disk, f"{vhost.path}/{files.DAMAGED}", "idx")
    if leftover or vhost.disk.entry(f"{vhost.path}/{files.DAMAGED}") is not None:
        found.own_notes.append(f"{vhost.path}/{files.DAMAGED} holds copies of files that were repaired")
