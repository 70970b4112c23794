"""`salvage` for the layouts that are rooms: every sound message into a new directory of the same product.

Messages keep position, time, key and headers; holes stay holes. What the room knows of readers is carried over by it.
Built beside as OUT.incomplete, verified, then renamed: a directory called OUT is whole.
"""

from __future__ import annotations

from headrace._core import Disk
from headrace.errors import AlreadyExists, HeadraceError
from headrace.layouts.base import Log, Volume
from headrace.layouts.room import Progress, Room
from headrace.ops.plan import THREADS
from headrace.ops.salvage import SUFFIX, SalvageReport, SavedStream, check_target, take_name

COMMIT_EVERY_BYTES = 64 << 20


def salvage_volume(
    room: Room,
    path: str,
    out: str,
    *,
    log: str | None = None,
    key: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> SalvageReport:
    """Copy what is sound at `path` into a new directory at `out`. The source is only read."""
    on = disk or Disk.real()
    target = check_target(on, path, out)
    building = f"{target}{SUFFIX}"
    if on.entry(building) is not None:
        raise AlreadyExists(
            f"{building} is there: an earlier salvage was interrupted; remove it and try again"
        )
    checked = room.verify(path, log=log, disk=disk, key=key, threads=max(threads, 1))
    report = SalvageReport(checked.path, target, [])
    shared = SavedStream("(shared files)", damage=checked.damage, problems=checked.problems)
    shared.damage += [each for row in checked.files for each in row.damage]
    total, done = max(checked.file_bytes, 1), 0
    try:
        with (
            room.open(path, disk=disk, key=key) as source,
            room.open(building, "rw", create=True, options=room.for_copies(), disk=disk) as copy,
        ):
            for seen in checked.logs:
                saved = SavedStream(
                    seen.name, damage=seen.all_damage, notes=list(seen.notes), problems=list(seen.problems)
                )
                report.streams.append(saved)
                try:
                    _copy(room, source, copy, saved)
                except HeadraceError as problem:
                    saved.problems.append(str(problem))
                done += sum(row.file_bytes for row in seen.files)
                if progress is not None:
                    progress(min(done, total), total)
        if shared.damage or shared.problems:
            report.streams.append(shared)
        report.copy_sound = room.verify(building, disk=disk, threads=max(threads, 1)).sound
        take_name(on, building, target)
    except BaseException:
        if on.entry(building) is not None:
            on.remove_dir_all(building)
        raise
    return report


def _copy(room: Room, source: Volume, copy: Volume, saved: SavedStream) -> None:
    old, new = source.open(saved.name), copy.create(saved.name)
    saved.messages = copy_messages(old, copy, new)
    state = new.state()
    saved.first_seq, saved.last_seq = state.first_seq, state.last_seq
    saved.consumers = room.carry_over(source, copy, saved.name)


def copy_messages(source: Log, volume: Volume, target: Log) -> int:
    """Every message with its position; durable when this returns."""
    copied = waiting = 0
    last = None
    for batch in source.batches():
        last = target.append(batch, keep_positions=True)
        copied += len(batch)
        waiting += batch.payload_bytes
        if waiting >= COMMIT_EVERY_BYTES:
            volume.commit([last])
            waiting = 0
    if last is not None:
        volume.commit([last])
    return copied
