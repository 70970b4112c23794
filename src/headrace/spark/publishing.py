"""In a worker: rows of one task into a server's stream, each once however often the task runs.

    ids=source   application:log:seq      the row's origin; the producer is application/log, its number the sequence
    ids=rows     application:task:number  the row's place: batch << 32 | row; the producer is application/task
    ids=column   the column msg_id        inside the dedupe window only: nobody knows an order of such ids

A Headrace server keeps for each producer what is done, so that a repetition after days is still one. Any other server
knows the ids of its dedupe window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from headrace.arrow import from_record_batch
from headrace.client import Connection, Publisher
from headrace.errors import BadInput
from headrace.spark.sink_options import Target

ROW_BITS = 32


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int
    stored: int
    duplicates: int
    last_sequence: int
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Which part of which batch this is."""

    application: str
    partition: int
    batch: int


def publish_rows(target: Target, task: Task, batches: Iterator[pa.RecordBatch]) -> Written:
    """All rows of a task; returns when every one is acknowledged."""
    assert target.access is not None
    with Connection(target.access, "headrace-sink", patient=True) as connection:
        if target.stream is not None:
            connection.ask(f"STREAM.INFO.{target.stream}")
        publisher = Publisher(connection, window=target.window)
        sender = _Sender(target, task, publisher, marks=connection.is_headrace)
        for batch in batches:
            sender.send(batch)
        done = publisher.flush()
    return Written(sender.rows, done.stored, done.duplicates, done.last_sequence, sender.row_producer)


class _Sender:
    def __init__(self, target: Target, task: Task, publisher: Publisher, marks: bool) -> None:
        self._target, self._task, self._publisher, self._marks = target, task, publisher, marks
        self.rows = 0
        self._seen: tuple[str, int] | None = None
        who = f"{task.application}/{task.partition}"
        self.row_producer = who if marks and target.ids == "rows" else None

    def send(self, rows: pa.RecordBatch) -> None:
        if not len(rows):
            return
        if self._target.ids == "source":
            for log, part in _by_log(rows):
                self._from_source(log, part)
        elif self._target.ids == "rows":
            base = self._task.batch << ROW_BITS
            numbers = pa.array(range(base + self.rows, base + self.rows + len(rows)), pa.int64())
            prefix = f"{self._task.application}:{self._task.partition}:"
            self._publish(rows, numbers, prefix, self.row_producer)
        else:
            self._publish(rows, None, None, None)
        self.rows += len(rows)

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
        steps = twins.pairwise_diff(sequences) if len(sequences) > 1 else None
        same = steps is not None and bool(twins.any(twins.equal(steps, 0)).as_py())
        if same or before == (log, sequences[0].as_py()):
            raise BadInput(
                f"headrace sink: several rows come from one message of {log} (the same log and seq): ids=source would keep "
                "only the first; use ids=rows, or a column msg_id"
            )

    def _publish(self, rows: pa.RecordBatch, numbers: Any, prefix: str | None, producer: str | None) -> None:
        key = "msg_id" if self._target.ids == "column" else None
        batch = from_record_batch(rows, subject=self._target.subject, key=key, positions=numbers)
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
