"""Writing a query's batches: `df.writeStream.format("headrace").option(…).start()`. Needs PySpark 4.1.

A batch that is written again (a killed driver, a failed commit) has the same number and the same rows, so the ids are the
same. Once a batch is committed, the floor of its row numbers is raised: the server needs no list of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client import shared_connection
from headrace.errors import ConnectionLost, ServerRefused
from headrace.spark.filing import FileStreamWriter
from headrace.spark.one_line import OneLineErrors
from headrace.spark.producer_floors import raise_floor
from headrace.spark.publishing import ROW_BITS, Task, TaskResult, publish_rows
from headrace.spark.sink_options import SinkOptions, read_sink_options

LOG = logging.getLogger("headrace")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """To a server or to files, by the options. (`overwrite` is Spark's word for complete mode: each batch is new rows here.)"""
    target = read_sink_options(options, schema.fieldNames())
    return FileStreamWriter(target) if target.access is None else ServerStreamWriter(target)


def this_task(application: str | None) -> Task:
    """Which batch and partition this is; the query's id is the application unless the user names one."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = int(context.getLocalProperty("streaming.sql.batchId"))
    return Task(application or f"query-{query}", context.partitionId(), batch, str(query))


class ServerStreamWriter(OneLineErrors, DataSourceStreamArrowWriter):
    """Publishes in the tasks."""

    def __init__(self, target: SinkOptions) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a worker: one partition of one batch."""
        return publish_rows(self._target, this_task(self._target.application), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was acknowledged in the tasks; what remains is housekeeping, which may fail."""
        done = [each for each in messages if isinstance(each, TaskResult) and each.producer]
        if not done or self._target.access is None:
            return
        try:
            raise_floor(
                shared_connection(self._target.access), self._target.stream, done, (batchId + 1) << ROW_BITS
            )
        except (ConnectionLost, ServerRefused) as problem:
            LOG.warning("headrace sink: the floor of batch %d was not raised: %s", batchId, problem)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was acknowledged stays: the batch comes again with the same ids."""
