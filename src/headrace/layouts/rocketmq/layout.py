"""`LAYOUT`: stores of RocketMQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.layout import Layout, LayoutOptions, Look, Progress
from headrace.layouts.log_names import LogNames
from headrace.layouts.report import FileRow, LogView, Report, VolumeView
from headrace.layouts.rocketmq import unread
from headrace.layouts.rocketmq._kernels import Disk, rocketmq_scan
from headrace.layouts.rocketmq.names import (
    ABORT,
    COMMIT_LOG,
    DAMAGED,
    DLEDGER,
    INDEX,
    QUEUES,
    numbered,
    split_name,
)
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.queue_files import ENTRY
from headrace.layouts.rocketmq.volume import RocketVolume
from headrace.layouts.unread import Unread

NS_PER_MS = 1_000_000


LOG_NAMES = LogNames(
    topics=True, internal=("RMQ_SYS_", "rmq_sys_", "TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")
)


class RocketLayout(Layout):
    """A store root."""

    name: ClassVar[str] = "rocketmq"
    product: ClassVar[str] = "Apache RocketMQ"
    label: ClassVar[str] = "RocketMQ"
    shares_files = True
    columns: ClassVar[Mapping[str, str]] = {
        "topic": "string",
        "queue_id": "int32",
        "commit_log_offset": "int64",
        "tags": "string",
    }
    log_names = LOG_NAMES
    capabilities = Capabilities(
        layout="rocketmq",
        codec="rocketmq",
        origin=0,
        tick_ns=0,
        keys=True,
        holes=False,
        position="offset",
        log="queue",
    )
    options: ClassVar[type[LayoutOptions]] = RocketOptions
    volume = RocketVolume

    def recognise(self, path: str, disk: Disk) -> bool:
        """A `commitlog` directory with files named by twenty digits, or an empty one (or DLedger's) beside `consumequeue`."""
        try:
            entry = disk.entry(path)
            if entry is None or not entry.is_dir:
                return False
            names = {name for name, is_dir, _ in disk.list(path) if is_dir}
            if COMMIT_LOG in names:
                return QUEUES in names or bool(numbered(disk, f"{path}/{COMMIT_LOG}"))
            return QUEUES in names and any(name.startswith(DLEDGER) for name in names)
        except HeadraceError:
            return False

    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """DLedger's log, queues in RocksDB, the timer log, tiered storage, unknown folders."""
        return unread.unread(disk, path.rstrip("/") or "/")

    def look(self, request: Look) -> Report:
        """Names and sizes; with the commit log scanned; or with every entry of the queues followed."""
        return _look(
            request.path,
            request.log,
            request.disk,
            request.progress,
            scan=not request.quick,
            read=request.full,
        )


def _look(
    path: str, log: str | None, disk: Disk | None, progress: Progress | None, *, scan: bool, read: bool
) -> VolumeView:
    with RocketVolume(path, disk=disk) as volume:
        names = volume.logs()
        if log is not None:
            names = LOG_NAMES.choose(names, (log,), path=path)
        view = VolumeView(volume.path, "rocketmq", "Apache RocketMQ", "4.x and 5.x", [])
        pid = volume.writer_pid()
        view.writer = f"process {pid}" if pid is not None else None
        clean = volume.disk.entry(f"{volume.path}/{ABORT}") is None
        view.details["last stop"] = "clean" if clean else "not clean, or running now"
        missing = _commit_log(volume, view, progress, scan=scan)
        for name, header in volume.index.names().items():
            view.files.append(
                FileRow(f"{volume.path}/{INDEX}/{name}", "index", volume.index.size, header.count - 1)
            )
        view.own_notes += [
            f"{INDEX}/{name}: of another shape than the options say" for name in volume.index.ignored
        ]
        kept = f"{volume.path}/{DAMAGED}"
        if volume.disk.entry(kept) is not None:
            view.own_notes.append(
                f"{len(volume.disk.list(kept))} damaged pieces were replaced and kept in {kept}"
            )
        for name in names:
            view.log_views.append(_queue(volume, name, missing, read=read))
        view.own_damage += [each for each in volume.own_damage() if each.kind in ("missing", "metadata")]
        if log is None:
            view.own_damage += [
                _lost_queue(volume, name, missing[name]) for name in sorted(set(missing) - set(names))
            ]
        return view


def _lost_queue(volume: RocketVolume, name: str, runs: list[tuple[int, bytes]]) -> Damage:
    """The commit log has messages of a queue whose folder is gone: no reader finds them."""
    topic, queue = split_name(name)
    count = sum(len(entries) // ENTRY for _, entries in runs)
    first, following = runs[0][0], runs[-1][0] + len(runs[-1][1]) // ENTRY
    detail = f"the commit log holds {count:,} messages of {name}, and the queue's files are gone: they are not read"
    return Damage(f"{volume.path}/{QUEUES}/{topic}/{queue}", 0, 0, "missing", detail, first, following)


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
            first_ms, last_ms = seen.first_store_ms, seen.last_store_ms
            row.messages, row.live_bytes = seen.messages, seen.end
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


LAYOUT = RocketLayout()
