"""An archive as a Volume: read-only, its logs read like any other's. One ScanTask per file.

A log's files of one range lie in several directories when the archive is divided; `read` and `batches` put their rows back
into the order of positions, a task gives its own file's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet

from headrace._core import Batch, Disk
from headrace.arrow import COLUMNS, NO_TIME, RAW_HEADERS, from_archive, schema
from headrace.errors import Damaged, NotFound, ReadOnly, StoreClosed
from headrace.layouts.archives import ArchivedFile, ArchivedLog
from headrace.layouts.base import Damage, Log, LogState, Predicate, ScanTask, Ticket, Volume
from headrace.layouts.parquet.manifest import Manifest, read_manifest
from headrace.layouts.places import disk_at, is_remote, opened

PUBLISHING_S = 1.0
"""So long a reader waits for a run beside it; an interrupted one is reported after that."""
PUBLISHING_LOOK_S = 0.02

NAME = "parquet"
ROWS_AT_ONCE = 65_536
READ_COLUMNS = ("seq", "time_ns", "subject", "key", RAW_HEADERS, "data")
pc: Any = compute  # the stubs know these but in part
files: Any = parquet


@dataclass(frozen=True, slots=True)
class FileTask(ScanTask):
    """One Parquet file."""

    log: str
    path: str
    codec: str
    first: int
    next: int
    size_bytes: int
    rows: int

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The messages of the file that match."""
        yield from _messages(self.rows_of(READ_COLUMNS, predicate), self.codec, predicate)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        damage: list[Damage] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches; without subjects to match nothing goes through the core."""
        if predicate is not None and predicate.subjects:
            yield from ScanTask.scan(self, columns, predicate, damage)
            return
        yield from self.rows_of(tuple(columns or COLUMNS), predicate)

    def rows_of(self, columns: Sequence[str], predicate: Predicate | None) -> Iterator[pa.RecordBatch]:
        """Columns as they are in the file; subjects are not looked at."""
        want = predicate or Predicate()
        needed = list(dict.fromkeys([*columns, *_needed(want)]))
        try:
            with files.ParquetFile(opened(self.path), pre_buffer=is_remote(self.path)) as file:
                groups = [at for at in range(file.num_row_groups) if _may_match(file, at, want)]
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=needed):
                    kept = _filtered(batch, want)
                    if kept.num_rows:
                        yield kept.select(list(columns)).cast(schema(columns))
        except (OSError, pa.ArrowException) as problem:
            raise Damaged(self.path, 0, str(problem), "a file of the archive", "archive it again") from None


def _messages(rows: Iterable[pa.RecordBatch], codec: str, predicate: Predicate | None) -> Iterator[Batch]:
    for batch in rows:
        made = from_archive(batch, codec)
        if predicate is not None and predicate.subjects:
            made = made.filter(None, None, None, None, list(predicate.subjects))
        if len(made):
            yield made


def _needed(want: Predicate) -> list[str]:
    by_seq = want.first is not None or want.next is not None
    by_time = want.since_ns is not None or want.until_ns is not None
    return ["seq"] * by_seq + ["time_ns"] * by_time


def _may_match(file: Any, at: int, want: Predicate) -> bool:
    """By the statistics of a row group. Columns seq and time_ns are the first and the third."""
    about = file.metadata.row_group(at)
    for column, low, below in ((0, want.first, want.next), (2, want.since_ns, want.until_ns)):
        ends = about.column(column).statistics
        if ends is None or not ends.has_min_max or ends.null_count:
            continue
        if (low is not None and ends.max < low) or (below is not None and ends.min >= below):
            return False
    return True


def _filtered(batch: Any, want: Predicate) -> Any:
    for column, low, below in (("seq", want.first, want.next), ("time_ns", want.since_ns, want.until_ns)):
        # A message without a time counts as the oldest, as in every other layout.
        if low is not None:
            batch = batch.filter(pc.greater_equal(pc.fill_null(batch.column(column), NO_TIME), low))
        if below is not None:
            batch = batch.filter(pc.less(pc.fill_null(batch.column(column), NO_TIME), below))
    return batch


class ArchiveLog(Log):
    """One log of an archive."""

    def __init__(self, root: str, name: str, entry: ArchivedLog, files: list[ArchivedFile]) -> None:
        self.name, self.entry = name, entry
        self._files = sorted(files, key=lambda file: (file.first, file.path))
        self._root, self._closed = root, False

    @property
    def incarnation(self) -> str:
        """Of the log that was archived."""
        return self.entry.id

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """A task for every file that may hold a match."""
        return list(self._tasks(predicate))

    def _tasks(self, predicate: Predicate | None) -> list[FileTask]:
        self._check_open()
        want = predicate or Predicate()
        return [
            FileTask(
                log=self.name,
                path=f"{self._root}/{file.path}",
                codec=file.codec,
                first=file.first,
                next=file.next,
                size_bytes=file.bytes,
                rows=file.rows,
            )
            for file in self._files
            if (want.first is None or file.next > want.first)
            and (want.next is None or file.first < want.next)
            and (want.since_ns is None or file.max_time_ns >= want.since_ns)
            and (want.until_ns is None or file.min_time_ns < want.until_ns)
        ]

    def batches(self, predicate: Predicate | None = None) -> Iterator[Batch]:
        """In the order of positions, also where a range was divided among several files."""
        for _, found in groupby(self._tasks(predicate), key=lambda task: task.first):
            tasks = list(found)
            if len(tasks) == 1:
                yield from tasks[0].batches(predicate)
                continue
            parts = [part for task in tasks for part in task.rows_of(READ_COLUMNS, predicate)]
            table: Any = pa.Table.from_batches(parts, schema(READ_COLUMNS))
            in_order = table.sort_by("seq").combine_chunks()
            yield from _messages(in_order.to_batches(ROWS_AT_ONCE), tasks[0].codec, predicate)

    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        """From `first` on; may give fewer than asked."""
        want = Predicate(first=first, subjects=() if filter is None else (filter,))
        for batch in self.batches(want):
            taken = batch.slice(0, min(max_msgs, len(batch)))
            while len(taken) > 1 and taken.payload_bytes > max_bytes:
                taken = taken.slice(0, len(taken) // 2)
            return taken
        return Batch.build("", [])

    def seq_from_time(self, time_ns: int) -> int:
        """The first position whose time is not before `time_ns`."""
        want = Predicate(since_ns=time_ns)
        for _, tasks in groupby(self._tasks(want), key=lambda task: task.first):
            firsts = (next(task.rows_of(["seq"], want), None) for task in tasks)
            found: list[int] = [pc.min(batch.column(0)).as_py() for batch in firsts if batch is not None]
            if found:
                return min(found)
        return self.entry.next or 0

    def state(self) -> LogState:
        """By the manifest."""
        self._check_open()
        first = self.entry.ranges[0][0] if self.entry.ranges else 1
        following = self.entry.next if self.entry.next is not None else first
        return LogState(
            messages=self.entry.rows,
            bytes=sum(file.bytes for file in self._files),
            first_seq=first,
            last_seq=following - 1,
            first_time_ns=min((file.min_time_ns for file in self._files), default=None),
            last_time_ns=max((file.max_time_ns for file in self._files), default=None),
            lost_messages=sum(b - a for a, b in self.entry.lost),
        )

    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        raise _refused()

    def remove(self, positions: Sequence[int]) -> Ticket:
        raise _refused()

    def drop_front(self, seq: int) -> int:
        raise _refused()

    def damage(self) -> list[Damage]:
        """Nothing is found by opening; `headrace verify` compares hashes."""
        return []

    def close(self) -> None:
        """Nothing is held open; reading ends all the same."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"log {self.name} was closed; open it again")


class ArchiveVolume(Volume):
    """An archive, opened for reading."""

    layout = NAME

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path, self.manifest = path, _published_manifest(disk or disk_at(path), path)
        self._opened: dict[str, ArchiveLog] = {}
        self._closed = False

    @property
    def origin(self) -> str:
        """What was archived."""
        return self.manifest.layout

    def logs(self) -> list[str]:
        self._check_open()
        return sorted(self.manifest.logs)

    def open(self, name: str) -> ArchiveLog:
        self._check_open()
        if name in self._opened:
            return self._opened[name]
        entry = self.manifest.logs.get(name)
        if entry is None:
            known = ", ".join(self.logs()[:20]) or "none"
            raise NotFound(f"{self.path}: no log {name!r}; there are: {known}")
        files = [file for file in self.manifest.files if file.log == name]
        self._opened[name] = ArchiveLog(self.path, name, entry, files)
        return self._opened[name]

    def create(self, name: str, **options: Any) -> Log:
        raise _refused()

    def delete(self, name: str) -> None:
        raise _refused()

    def commit(self, tickets: Iterable[Ticket]) -> None:
        raise _refused()

    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        raise _refused()

    def damage(self) -> list[Damage]:
        self._check_open()
        return []

    def close(self) -> None:
        """Nothing is held open; reading ends all the same."""
        self._closed = True
        for log in self._opened.values():
            log.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed; open it again")


def _published_manifest(disk: Disk, path: str) -> Manifest:
    """The manifest, once every file that it names is there: a run that archives beside us names them first and renames
    them a moment later. Damaged if that does not come."""
    until = time.monotonic() + PUBLISHING_S
    while True:
        manifest = read_manifest(path, disk)
        if manifest is None:
            raise NotFound(f"{path}: no archive there (no manifest)")
        missing = [name for name in manifest.publishing if disk.entry(f"{path}/{name}") is None]
        if not missing:
            return manifest
        if time.monotonic() >= until:
            remedy = "the run that archived it was interrupted: repeat it"
            raise Damaged(f"{path}/{missing[0]}", 0, "no file", "a file that the manifest names", remedy)
        time.sleep(PUBLISHING_LOOK_S)


def _refused() -> ReadOnly:
    return ReadOnly("an archive is written by `headrace pipeline archive` only")
