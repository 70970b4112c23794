"""Writing files: tasks leave their rows beside the directory, the driver files them (see `headrace.ops.filing`).

The directory is one that the product opens. On a cluster it lies where driver and workers both see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from headrace.ops.filing import Filing, file_batch, forget, stage
from headrace.randomness import random_hex
from headrace.spark.one_line import OneLineErrors
from headrace.spark.sink_options import SinkOptions


@dataclass
class Staged(WriterCommitMessage):
    """What one task left."""

    file: str
    rows: int
    run: str


def _filing(target: SinkOptions, run: str) -> Filing:
    return Filing(target.path, target.layout, target.log, target.subject, run)


def _staged(target: SinkOptions, run: str, batch: int, rows: Iterator[pa.RecordBatch]) -> Staged:
    context: Any = TaskContext.get()
    name, count = stage(
        _filing(target, run), batch, context.partitionId(), str(context.taskAttemptId()), rows
    )
    return Staged(name, count, run)


def _files(messages: list[WriterCommitMessage | None]) -> list[str]:
    return [each.file for each in messages if isinstance(each, Staged)]


class FileWriter(OneLineErrors, DataSourceArrowWriter):
    """A DataFrame into a directory."""

    def __init__(self, target: SinkOptions) -> None:
        self._target = target
        # A run of its own: a later one with other rows is no repetition of this one.
        self._run = f"batch-{random_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a worker: one partition."""
        return _staged(self._target, self._run, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: all of them, or an error and nothing more than what the note says."""
        filing = _filing(self._target, self._run)
        file_batch(filing, 0, _files(messages))
        forget(filing)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rows that were left and not begun are of no use; those of a batch that was begun stay."""


_StreamArrowWriter: Any = getattr(spark, "DataSourceStreamArrowWriter", object)


class FileStreamWriter(OneLineErrors, _StreamArrowWriter):
    """The batches of a query into a directory."""

    def __init__(self, target: SinkOptions) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a worker: one partition of one batch."""
        from headrace.spark.write_stream import this_task

        task = this_task(self._target.application)
        return _staged(self._target, f"query-{task.query}", task.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: once for each batch, however often Spark asks."""
        runs = {each.run for each in messages if isinstance(each, Staged)}
        for run in runs:
            file_batch(_filing(self._target, run), batchId, _files(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch comes again."""
