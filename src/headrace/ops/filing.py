"""Rows into directories of a product, batch by batch, each batch once.

    DST.staging/<run>/<batch>-<part>-<attempt>.arrow   rows as workers left them, synced
    DST.staging/<run>.json                             which batch is done; which one was begun, and where each log ended then

Only one process may write a product's directory, so workers leave rows and the caller files them. A batch that was begun
and not finished is finished from the rows that were left: a log that has grown by n since then holds the first n of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrow import from_record_batch
from headrace.errors import BadInput, NotFound
from headrace.layouts.base import Log, Ticket
from headrace.layouts.copies import Copies
from headrace.layouts.places import absolute
from headrace.layouts.registry import layout_named
from headrace.ops._kernels import Batch, Disk, recast
from headrace.ops.conversion.mapping import subject_text
from headrace.ops.conversion.target import open_copies

STAGING = ".staging"


class Begun(msgspec.Struct, frozen=True):
    """A batch on its way into the directory."""

    batch: int
    files: tuple[str, ...]
    ends: dict[str, int]


class FilingProgress(msgspec.Struct, frozen=True):
    """What a run has filed."""

    done: int = -1
    begun: Begun | None = None


class Filing(msgspec.Struct, frozen=True):
    """Where rows go: a directory of a layout, and the log for rows that do not name one."""

    path: str
    layout: str
    log: str | None
    subject: str | None
    run: str

    @property
    def staging(self) -> str:
        return f"{absolute(self.path)}{STAGING}/{self.run}"

    @property
    def note(self) -> str:
        return f"{self.staging}.json"


def stage(
    filing: Filing, batch: int, part: int, attempt: str, rows: Iterable[pa.RecordBatch]
) -> tuple[str, int]:
    """In a worker: the rows of one part, on disk when this returns. The file's name and how many rows."""
    disk, count = Disk.real(), 0
    Path(filing.staging).mkdir(parents=True, exist_ok=True)
    name = f"{batch}-{part:06d}-{attempt}.arrow"
    place = f"{filing.staging}/{name}"
    writer: Any = None
    ipc: Any = pa.ipc
    with Path(place).open("wb") as file:
        for each in rows:
            if writer is None:
                writer = ipc.new_file(file, each.schema)
            writer.write_batch(each)
            count += len(each)
        if writer is not None:
            writer.close()
        file.flush()
        os.fsync(file.fileno())
    disk.sync_dir(filing.staging)
    return (name, count) if count else ("", 0)


def file_batch(filing: Filing, batch: int, files: Sequence[str]) -> int:
    """File a batch; nothing if that was done before. Everything is on disk when this returns; how many rows."""
    disk, progress = Disk.real(), _read(filing)
    Path(filing.staging).mkdir(parents=True, exist_ok=True)
    # A fresh directory needs its product's files before anything can be begun.
    there = Path(filing.path).exists() and any(Path(filing.path).iterdir())
    copies = open_copies(filing.layout, absolute(filing.path), create=not there)
    filed = 0
    try:
        if progress.begun is not None:
            filed += _finish(filing, copies, progress.begun)
            progress = _save(disk, filing, FilingProgress(done=progress.begun.batch))
        if batch > progress.done:
            names = [name for name in files if name]
            logs = sorted({log for log, _ in _rows(filing, names)})
            begun = Begun(batch, tuple(names), {name: _end(_log(copies, name)) for name in logs})
            _save(disk, filing, FilingProgress(progress.done, begun))
            filed += _finish(filing, copies, begun)
            _save(disk, filing, FilingProgress(done=batch))
    finally:
        copies.close()
    for name in os.listdir(filing.staging):  # noqa: PTH208  (names, not paths)
        if int(name.partition("-")[0]) <= batch:
            Path(f"{filing.staging}/{name}").unlink()
    return filed


def forget(filing: Filing) -> None:
    """The run is over: nothing of it is needed any more."""
    for path in (Path(filing.note), *Path(filing.staging).glob("*.arrow")):
        path.unlink(missing_ok=True)
    for place in (Path(filing.staging), Path(filing.staging).parent):
        try:
            place.rmdir()
        except OSError:
            return  # another run is under way


def _read(filing: Filing) -> FilingProgress:
    try:
        return msgspec.json.decode(Path(filing.note).read_bytes(), type=FilingProgress)
    except FileNotFoundError:
        return FilingProgress()
    except msgspec.DecodeError as problem:
        raise BadInput(
            f"{filing.note}: not readable ({problem}); restore it, or remove it if no batch was under way"
        ) from None


def _save(disk: Disk, filing: Filing, progress: FilingProgress) -> FilingProgress:
    disk.replace_file(filing.note, msgspec.json.encode(progress))
    return progress


def _rows(filing: Filing, files: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows in their order, each run with the log it goes to."""
    kernels: Any = pc
    ipc: Any = pa.ipc
    for name in files:
        place = f"{filing.staging}/{name}"
        try:
            source: Any = pa.memory_map(place)
        except FileNotFoundError:
            raise NotFound(f"{place}: rows of a batch that was begun are gone; restore the file") from None
        with source, ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                rows = reader.get_batch(number)
                if "log" not in rows.schema.names:
                    yield filing.log or "", rows
                    continue
                names = rows.column("log")
                for log in kernels.unique(names).to_pylist():
                    if log is None:
                        raise BadInput(
                            "headrace sink: a row without log; give every row one, or drop the column"
                        )
                    yield log, rows.filter(kernels.equal(names, log))


def _finish(filing: Filing, copies: Copies, begun: Begun) -> int:
    """Append what the logs do not hold yet of a batch."""
    skip = {name: _end(_log(copies, name)) - end for name, end in begun.ends.items()}
    tickets: list[Ticket] = []
    filed = 0
    for name, rows in _rows(filing, begun.files):
        passed = min(skip[name], len(rows))
        skip[name] -= passed
        if passed < len(rows):
            log = _log(copies, name)
            left = rows.slice(passed)
            batch = _recast(filing, name, left)
            tickets.append(log.append_copy(batch))
            filed += len(left)
    copies.volume.commit(tickets)
    for name in begun.ends:
        copies.adopt_subjects(_log(copies, name))
    return filed


def _recast(filing: Filing, log: str, rows: pa.RecordBatch) -> Batch:
    to, names = layout_named(filing.layout).capabilities, rows.schema.names
    table: Any = rows
    kernels: Any = pc
    times: Any = None
    if "time_ns" in names:
        times = table.column("time_ns")
    elif "time" in names:
        times = kernels.multiply(table.column("time").cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)
    subject = filing.subject if "subject" not in names else None
    batch = from_record_batch(rows, subject=subject, times=times)
    carry = "no" if filing.layout == "rabbitmq" else "header"
    usual = subject_text(log).encode()
    now = time.time_ns()
    return recast(batch, to.codec, to.keys, to.nulls, None, False, carry, usual, to.subject_max, 0, now)


def _log(copies: Copies, name: str) -> Log:
    if not name:
        raise BadInput("headrace sink: which log? Give the option log, or a column log")
    return copies.take(name)


def _end(log: Log) -> int:
    return log.state().last_seq + 1
