"""`ROOM`: stores of RocketMQ, as the commands and Spark see them."""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import HeadraceError, NotFound
from headrace.layouts.base import Damage
from headrace.layouts.rocketmq._kernels import Disk, rocketmq_scan
from headrace.layouts.rocketmq.names import ABORT, COMMIT_LOG, DAMAGED, INDEX, numbered
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.queue_files import ENTRY
from headrace.layouts.rocketmq.volume import RocketVolume
from headrace.layouts.room import ClearRoom, FileRow, LogView, Options, Progress, Room, VolumeView

NS_PER_MS = 1_000_000


class RocketRoom(ClearRoom):
    """A store root."""

    layout: ClassVar[str] = "rocketmq"
    product: ClassVar[str] = "Apache RocketMQ"
    options: ClassVar[type[Options]] = RocketOptions
    volume = RocketVolume

    def recognises(self, disk: Disk, path: str) -> bool:
        """A `commitlog` directory with files named by twenty digits, or an empty one beside `consumequeue`."""
        try:
            entry = disk.entry(path)
            if entry is None or not entry[0]:
                return False
            names = {name for name, is_dir, _ in disk.list(path) if is_dir}
            return COMMIT_LOG in names and (
                "consumequeue" in names or bool(numbered(disk, f"{path}/{COMMIT_LOG}"))
            )
        except HeadraceError:
            return False

    def look(
        self,
        path: str,
        *,
        log: str | None,
        disk: Disk | None,
        progress: Progress | None,
        quick: bool,
        full: bool,
        threads: int,
    ) -> VolumeView:
        """Names and sizes; with the commit log scanned; or with every entry of the queues followed."""
        return _look(path, log, disk, progress, scan=not quick, read=full)


def _look(
    path: str, log: str | None, disk: Disk | None, progress: Progress | None, *, scan: bool, read: bool
) -> VolumeView:
    with RocketVolume(path, disk=disk) as volume:
        names = [name for name in volume.logs() if log is None or name == log]
        if log is not None and not names:
            raise NotFound(f"{path}: no log {log!r}; there are: {', '.join(volume.logs()[:20]) or 'none'}")
        view = VolumeView(volume.path, "rocketmq", "Apache RocketMQ", "4.x and 5.x", [])
        pid = volume.writer_pid()
        view.writer = f"process {pid}" if pid is not None else None
        clean = volume.disk.entry(f"{volume.path}/{ABORT}") is None
        view.details["last stop"] = "clean" if clean else "not clean, or running now"
        missing = _commit_log(volume, view, progress, scan=scan)
        for name, header in volume.index.names().items():
            view.files.append(
                FileRow(f"{volume.path}/{INDEX}/{name}", "index", volume.index.size, header[5] - 1)
            )
        view.notes += [
            f"{INDEX}/{name}: of another shape than the options say" for name in volume.index.ignored
        ]
        kept = f"{volume.path}/{DAMAGED}"
        if volume.disk.entry(kept) is not None:
            view.notes.append(
                f"{len(volume.disk.list(kept))} damaged pieces were replaced and kept in {kept}"
            )
        for name in names:
            view.logs.append(_queue(volume, name, missing, read=read))
        return view


def _commit_log(
    volume: RocketVolume, view: VolumeView, progress: Progress | None, *, scan: bool
) -> dict[str, list[tuple[int, bytes]]]:
    """A row per file; returns what the log says each queue must hold."""
    queues: dict[str, list[tuple[int, bytes]]] = {}
    files = volume.commit_log.files
    done, total = 0, sum(files.values())
    for start, size in files.items():
        newest = start == max(files)
        row = FileRow(volume.commit_log.path(start), "commit log", size, newest=newest)
        if scan:
            seen = rocketmq_scan(volume.disk, row.file, start, 0, False)
            first_ms, last_ms = seen.times()
            row.messages, row.live_bytes = seen.counts()[0], seen.counts()[2]
            row.first_time_ns = first_ms * NS_PER_MS if first_ms is not None else None
            row.last_time_ns = last_ms * NS_PER_MS if row.messages else None
            for at, to, why, tail in seen.bad():
                if not (tail and newest and view.writer is not None):
                    row.damage.append(
                        Damage(row.file, at, to - at, "unsound-tail" if tail else "bad-record", why)
                    )
            for topic, queue, first, entries in seen.queues():
                queues.setdefault(f"{topic}-{queue}", []).append((first, entries))
        view.files.append(row)
        done += size
        if progress is not None:
            progress(done, total)
    return queues


def _queue(
    volume: RocketVolume, name: str, expected: dict[str, list[tuple[int, bytes]]], *, read: bool
) -> LogView:
    log = volume.open(name)
    view = LogView(name, log.files.directory, details={"topic": log.topic, "queue": str(log.queue)})
    for start, size in log.files.files.items():
        first = start // ENTRY
        following = min(first + size // ENTRY, log.next)
        view.files.append(
            FileRow(
                f"{log.files.directory}/{start:020d}",
                "queue",
                size,
                max(following - first, 0),
                first,
                following,
            )
        )
    for first, entries in expected.get(name, []):
        if log.files.read(first, len(entries) // ENTRY) != entries:
            detail = "entries differ from the commit log; they are made again when it is opened for writing"
            view.damage.append(
                Damage(log.files.directory, first * ENTRY, len(entries), "index", detail, first)
            )
    if read:
        for _ in log.batches():
            pass
        view.damage += log.damage()
    view.state = log.state()
    return view


ROOM: Room = RocketRoom()
