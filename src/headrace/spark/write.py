"""Writing a DataFrame once: `df.write.format("headrace").mode("append").option(…).save()`.

Tasks may run twice (retries, speculation): ids are the same both times. `abort` takes nothing back: what was
acknowledged stays, and a run with the same `application` finds it there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client import shared_connection
from headrace.errors import BadInput, ConnectionLost, ServerRefused
from headrace.randomness import random_hex
from headrace.spark.filing import FileWriter
from headrace.spark.one_line import OneLineErrors
from headrace.spark.producer_floors import close
from headrace.spark.publishing import Task, TaskResult, publish_rows
from headrace.spark.sink_options import SinkOptions, read_sink_options

LOG = logging.getLogger("headrace")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """To a server or to files, by the options."""
    target = read_sink_options(options, schema.fieldNames())
    if overwrite:
        raise BadInput('headrace sink: mode("overwrite") is not for logs; use mode("append")')
    return FileWriter(target) if target.access is None else ServerWriter(target)


class ServerWriter(OneLineErrors, DataSourceArrowWriter):
    """Publishes in the tasks."""

    def __init__(self, target: SinkOptions) -> None:
        self._target = target
        # Made on the driver: all attempts of a task have the same name.
        self._application = target.application or f"batch-{random_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a worker: one partition."""
        context: Any = TaskContext.get()
        return publish_rows(self._target, Task(self._application, context.partitionId(), 0), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything was acknowledged in the tasks. A write without a name is never repeated: its producers are closed."""
        done = [each for each in messages if isinstance(each, TaskResult) and each.producers]
        if not done or self._target.application is not None or self._target.access is None:
            return
        try:
            close(shared_connection(self._target.access), self._target.stream, done)
        except (ConnectionLost, ServerRefused) as problem:
            LOG.warning("headrace sink: the producers of this write were not closed: %s", problem)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was acknowledged stays: only that can never lose anything."""
