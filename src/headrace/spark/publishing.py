"""In a worker: rows of one task into a server's stream, each once however often the task runs.

    ids=source   application:log:seq      the row's origin; the producer is application/log, its number the sequence
    ids=rows     producer:number          batch << 32 | rank of the row's content; the producer is application/query/task,
                                          of a single write application/task/hash of the task's rows
    ids=column   the column msg_id        inside the dedupe window only: nobody knows an order of such ids

Behind a shuffle a task that runs again sees the same rows in another order, so a row's place is no id: one row would be
taken for another, which is then lost. The rank is its place when all rows of the task are sorted by a 64-bit hash of what
is published (subject, headers, data):

    first attempt    b  a  c  a    ranks 2 0 3 1        second attempt    a  c  b  a    ranks 0 3 2 1

Rows of equal content are interchangeable, so any order among them is right. A task holds all its rows until it has seen
the last one. Two different rows of a task with one hash (one in 10^7 for a million rows) may be taken for each other.

A Headrace server keeps for each producer what is done, so that a repetition after days is still one. Any other server
knows the ids of its dedupe window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from headrace.arrow import from_record_batch
from headrace.client import Connection, Destination, Publisher, named_stream
from headrace.errors import BadInput
from headrace.spark.sink_options import SinkOptions

ROW_BITS = 32


@dataclass
class TaskResult(WriterCommitMessage):
    """What one task did."""

    rows: int
    stored: int
    duplicates: int
    last_sequence: int
    producer: str | None = None
    subject: str = ""
    """Of the task's first row, if it has a producer: names the stream."""
    producers: tuple[str, ...] = ()
    """All that the task's rows were numbered by."""


@dataclass(frozen=True, slots=True)
class Task:
    """Which part of which batch this is."""

    application: str
    partition: int
    batch: int
    query: str = ""
    """The query whose batch it is: batches are numbered anew with another checkpoint. Empty for a single write."""

    def rows_name(self, hashes: Sequence[bytes]) -> str:
        """Who numbers rows: other rows under the same application are never taken for these."""
        if self.query:
            return f"{self.application}/{self.query}/{self.partition}"
        content = np.sort(np.frombuffer(b"".join(hashes), "<u8")).tobytes()
        return f"{self.application}/{self.partition}/{hashlib.blake2b(content, digest_size=8).hexdigest()}"


def publish_rows(target: SinkOptions, task: Task, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    """All rows of a task; returns when every one is acknowledged."""
    assert target.access is not None
    with Connection(target.access, "headrace-sink", patient=True) as connection:
        into = None if target.stream is None else named_stream(connection, target.stream)
        publisher = Publisher(connection, window=target.window, into=into)
        sender = _Sender(target, task, publisher, into, marks=connection.is_headrace)
        if target.ids == "rows":
            sender.send_ranked(batches)
        else:
            for batch in batches:
                sender.send(batch)
        done = publisher.flush()
    return TaskResult(
        sender.rows,
        done.stored,
        done.duplicates,
        done.last_sequence,
        sender.row_producer,
        sender.first_subject,
        tuple(sender.producers),
    )


def rank(hashes: Sequence[bytes]) -> Any:
    """The place of each row when all are sorted by their hash (u64, little-endian)."""
    order = np.argsort(np.frombuffer(b"".join(hashes), "<u8"), kind="stable")
    ranks = np.empty(len(order), "<u8")
    ranks[order] = np.arange(len(order), dtype="<u8")
    return ranks


class _Sender:
    def __init__(
        self, target: SinkOptions, task: Task, publisher: Publisher, into: Destination | None, marks: bool
    ) -> None:
        self._target, self._task, self._publisher, self._marks = target, task, publisher, marks
        self._into = into
        self.rows = 0
        self.first_subject = ""
        self._seen: tuple[str, int] | None = None
        self.row_producer: str | None = None
        self.producers: dict[str, None] = {}

    def send(self, rows: pa.RecordBatch) -> None:
        if not len(rows):
            return
        if self._target.ids == "source":
            for log, part in _by_log(rows):
                self._from_source(log, part)
        else:
            self._publish(rows, None, None, None)
        self.rows += len(rows)

    def send_ranked(self, batches: Iterator[pa.RecordBatch]) -> None:
        """All rows in their order, numbered by content."""
        subject = self._target.subject
        held = [from_record_batch(rows, subject=subject, key=None) for rows in batches if len(rows)]
        if not held:
            return
        if self._into is not None:
            for batch in held:  # all before the first is sent
                self._into.check(batch)
        hashes = [batch.content_hashes() for batch in held]
        numbers, name = rank(hashes), self._task.rows_name(hashes)
        self.row_producer = name if self._marks else None
        self.producers = dict.fromkeys([name] if self._marks else [])
        if len(numbers) >> ROW_BITS:
            raise BadInput(f"headrace sink: {len(numbers)} rows in one task; repartition: at most 2^32")
        numbers += np.uint64(self._task.batch << ROW_BITS)
        self.first_subject = held[0][0].subject
        prefix = f"{name}:"
        for batch in held:
            own = numbers[self.rows : self.rows + len(batch)].tobytes()
            self._publisher.publish(batch.renumbered(own), id_prefix=prefix, producer=self.row_producer)
            self.rows += len(batch)

    def _from_source(self, log: str, rows: pa.RecordBatch) -> None:
        table: Any = rows
        sequences = table.column("seq")
        if sequences.null_count:
            raise BadInput(
                "headrace sink: ids=source, and a row without seq; use ids=rows or a column msg_id"
            )
        self._refuse_twins(log, sequences)
        application = self._task.application
        producer = f"{application}/{log}" if self._marks else None
        self._publish(rows, sequences, f"{application}:{log}:", producer)

    def _refuse_twins(self, log: str, sequences: Any) -> None:
        """Two rows of one message would be taken for one: rather stop than lose the second."""
        twins: Any = pc
        before = self._seen
        self._seen = (log, sequences[-1].as_py())
        if twins.count_distinct(sequences).as_py() < len(sequences) or before == (log, sequences[0].as_py()):
            raise BadInput(
                f"headrace sink: several rows come from one message of {log} (the same log and seq): ids=source would keep "
                "only the first; use ids=rows, or a column msg_id"
            )

    def _publish(self, rows: pa.RecordBatch, numbers: Any, prefix: str | None, producer: str | None) -> None:
        key = "msg_id" if self._target.ids == "column" else None
        batch = from_record_batch(rows, subject=self._target.subject, key=key, positions=numbers)
        if producer is not None and producer not in self.producers:
            self.producers[producer] = None
            self.first_subject = self.first_subject or batch[0].subject
        self._publisher.publish(batch, id_prefix=prefix, producer=producer)


def _by_log(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of one log together, in their order."""
    table: Any = rows
    logs: Any = table.column("log")
    if logs.null_count:
        raise BadInput("headrace sink: ids=source, and a row without log; use ids=rows or a column msg_id")
    kernels: Any = pc
    names = kernels.unique(logs).to_pylist()
    for name in names:
        yield name, rows if len(names) == 1 else rows.filter(kernels.equal(logs, name))
