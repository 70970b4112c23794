"""The work on one group of blocks: read, check, write Parquet. Runs anywhere: in a thread, in a Spark worker.

    Piece    a ScanTask, cut to positions [first, next)
    FileGroup    neighbouring pieces of one log that become one file in each directory
    write_group(group) → Written: the files, finished, synced, under `staging`

The same group always gives the same files, byte for byte, under the same names: a retry replaces what was there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet

from headrace.arrow import COLUMNS, NO_TIME, RAW_HEADERS, to_record_batch
from headrace.errors import BadInput, DiskFault
from headrace.layouts.archives import ArchivedFile, WriteOptions, WrittenGroup
from headrace.layouts.base import Predicate, ScanTask
from headrace.layouts.parquet.check import file_hash
from headrace.layouts.parquet.division import DIRECTORIES_MAX, RowDivision, Values, read_division
from headrace.randomness import random_hex

ROW_GROUP_BYTES = 16 << 20  # stays in the processor's cache while it is encoded
ROW_GROUP_ROWS = 1 << 17
NAME_BYTES_MAX = 120
SAMPLE_BYTES = 128 << 10
SHRINKS_BELOW = 0.9
WRITE_BATCH_ROWS = 1 << 14
WRITTEN_COLUMNS = (*COLUMNS[:-1], RAW_HEADERS, COLUMNS[-1])
BARE_COLUMNS = tuple(name for name in WRITTEN_COLUMNS if name != "log")
LEAVES = (
    "seq",
    "time",
    "time_ns",
    "log",
    "subject",
    "key",
    "headers.key_value.key",
    "headers.key_value.value.list.element",
    RAW_HEADERS,
    "data",
)
"""The columns of the file, as Parquet names them: nested ones by their innermost."""

pc: Any = compute
_LOG = pa.field("log", pa.dictionary(pa.int32(), pa.string()))
_PLAIN = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a log, cut to `[first, next)`."""

    task: ScanTask
    first: int
    next: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileGroup:
    """What one worker turns into files. `[first, next)` also covers positions that nothing is at."""

    log: str
    first: int
    next: int
    pieces: tuple[Piece, ...]
    place: str
    """The directory that takes the finished files."""
    division: RowDivision
    compression: str = "auto"

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    def write(self) -> WrittenGroup:
        """Read the pieces, write a file for each directory, and say what they are."""
        return write_group(self)


def file_name(log: str, first: int, following: int) -> str:
    """Unique for a log and range. Neither `_` nor `.` begins it: Spark would not see the file."""
    text = _PLAIN.sub(lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), log)
    if text[:1] in ("_", "."):
        text = f"~{ord(text[0]):02X}{text[1:]}"
    if len(text) > NAME_BYTES_MAX:
        text = f"{text[: NAME_BYTES_MAX - 17]}~{hashlib.sha256(log.encode()).hexdigest()[:16]}"
    return f"{text}-{first:020d}-{following:020d}.parquet"


def write_group(group: FileGroup) -> WrittenGroup:
    """Read the pieces, write a file for each directory, and say what they are."""
    writers: dict[Values, _Writer] = {}
    try:
        for codec, batch in _batches(group):
            for values, part in group.division.split(batch):
                writer = writers.get(values)
                if writer is None:
                    if len(writers) == DIRECTORIES_MAX:
                        raise BadInput(
                            f"log {group.log}, {group.first} to {group.next - 1}: more than {DIRECTORIES_MAX} directories; "
                            "divide by something coarser"
                        )
                    writer = writers[values] = _Writer(group, values, codec)
                writer.add(part)
        files = [writers[values].finish() for values in sorted(writers, key=_in_order)]
    except OSError as problem:
        raise DiskFault(f"{problem.filename or group.place}: {problem.strerror or problem}") from problem
    finally:
        for writer in writers.values():
            writer.abandon()
    rows = sum(file.rows for file in files)
    return WrittenGroup(group.log, group.first, group.next, rows, group.size_bytes, files)


def _in_order(values: Values) -> tuple[tuple[bool, str], ...]:
    return tuple((value is not None, value or "") for value in values)


def _batches(group: FileGroup) -> Iterator[tuple[str, pa.RecordBatch]]:
    for piece in group.pieces:
        want = Predicate(first=piece.first, next=piece.next)
        codec = piece.task.header_codec()
        if codec is not None:
            for rows in piece.task.scan(BARE_COLUMNS, want):
                yield codec, _named_rows(rows, group.log)
            continue
        for batch in piece.task.batches(want):
            if len(batch):
                yield (
                    batch.header_codec,
                    _named_rows(to_record_batch(batch, group.log, BARE_COLUMNS), group.log),
                )


def _named_rows(rows: pa.RecordBatch, log: str) -> pa.RecordBatch:
    """What is written. The log's name, the same for all, is a dictionary of one: hashing it for each row is not free."""
    made: Any = rows
    return made.add_column(WRITTEN_COLUMNS.index("log"), _LOG, _named(log, len(rows)))


def _named(log: str, count: int) -> Any:
    zeros = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])
    arrays: Any = pa.DictionaryArray
    return arrays.from_arrays(zeros, pa.array([log], pa.string()))


class _Writer:
    """One Parquet file. Rows are gathered into row groups of a fixed size, so that equal rows give equal files."""

    def __init__(self, group: FileGroup, values: Values, codec: str) -> None:
        self._group, self._values, self._codec = group, values, codec
        directory = group.division.directory(values)
        name = file_name(group.log, group.first, group.next)
        self._path = f"{directory}/{name}" if directory else name
        self._final = Path(group.place) / self._path
        self._final.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self._final.with_name(f".{name}.{random_hex()}")
        about = {
            "headrace.log": group.log,
            "headrace.range": f"{group.first} {group.next}",
            "headrace.headers": codec,
        }
        self._about = about
        self._file: parquet.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._rows, self._low, self._high = 0, 1 << 63, -(1 << 63)

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        if self._file is None:
            self._file = self._opened(table)
        ends = pc.min_max(pc.fill_null(table.column("time_ns"), NO_TIME)).as_py()
        self._low, self._high = min(self._low, ends["min"]), max(self._high, ends["max"])
        self._file.write_table(table, row_group_size=self._held_rows)
        self._rows += self._held_rows
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _opened(self, table: pa.Table) -> parquet.ParquetWriter:
        compression: Any = self._group.compression
        if compression == "auto":
            compression = dict.fromkeys(LEAVES, "zstd") | {"data": data_codec(table.column("data"))}
        made = parquet.ParquetWriter(
            str(self._temporary),
            table.schema,
            compression=compression,
            use_dictionary=["subject", "log"],  # type: ignore[arg-type]
            write_statistics=["seq", "time", "time_ns", "subject", "log"],  # type: ignore[arg-type]
            column_encoding=dict.fromkeys(("seq", "time", "time_ns"), "DELTA_BINARY_PACKED"),
            store_schema=False,
            write_page_index=True,
            write_batch_size=WRITE_BATCH_ROWS,
        )
        made.add_key_value_metadata(self._about)
        return made

    def finish(self) -> ArchivedFile:
        """On disk, hashed, under its name."""
        self._flush()
        assert self._file is not None
        self._file.close()
        self._file = None
        digest, size = file_hash(self._temporary, sync=True)
        self._temporary.replace(self._final)
        group = self._group
        return ArchivedFile(
            path=self._path,
            log=group.log,
            first=group.first,
            next=group.next,
            rows=self._rows,
            bytes=size,
            hash=digest,
            codec=self._codec,
            min_time_ns=self._low,
            max_time_ns=self._high,
            partition=group.division.named(self._values),
        )

    def abandon(self) -> None:
        """After an error: no half file stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._temporary.unlink(missing_ok=True)


def data_codec(data: Any) -> str:
    """zstd where it makes the first messages smaller, else snappy, which passes over such bytes at a third of the cost.

    The same rows give the same answer: a file that is written again is the same file.
    """
    first = data.chunk(0)
    _, offsets, content = first.buffers()
    if content is None:
        return "zstd"
    view: Any = memoryview(offsets).cast("B")
    start, whole = int(view.cast("i")[first.offset]), int(content.size)
    sample = content.slice(start, min(SAMPLE_BYTES, whole - start))
    return (
        "zstd" if len(pa.compress(sample, "zstd", asbytes=True)) < SHRINKS_BELOW * sample.size else "snappy"
    )


def make_groups(log: str, tasks: Sequence[ScanTask], start: int, how: WriteOptions) -> list[FileGroup]:
    """Tasks in order, from `start` on: big ones cut, small neighbours together, no position twice or left out."""
    division = read_division(how.by)
    pieces: list[Piece] = []
    at = start
    for task in sorted(tasks, key=lambda each: (each.first, each.next)):
        first, following = max(task.first, at), task.next if how.end is None else min(task.next, how.end)
        if first >= following:
            continue
        pieces += _cut(task, first, following, how.target_bytes)
        at = following
    groups: list[FileGroup] = []
    held: list[Piece] = []
    left = how.target_bytes
    begin = start
    for piece in pieces:
        if held and piece.size_bytes > left:
            groups.append(_group(log, begin, held, how, division))
            begin, held, left = held[-1].next, [], how.target_bytes
        held.append(piece)
        left -= piece.size_bytes
    if held:
        groups.append(_group(log, begin, held, how, division))
    return groups


def _group(log: str, begin: int, held: list[Piece], how: WriteOptions, division: RowDivision) -> FileGroup:
    return FileGroup(log, begin, held[-1].next, tuple(held), how.place, division, how.compression)


def _cut(task: ScanTask, first: int, following: int, target_bytes: int) -> list[Piece]:
    size = task.size_bytes * (following - first) // max(task.next - task.first, 1)
    parts = max(1, min(-(-size // (2 * target_bytes)), following - first))
    ends = [first + (following - first) * number // parts for number in range(parts + 1)]
    return [Piece(task, a, b, size // parts) for a, b in pairwise(ends)]
