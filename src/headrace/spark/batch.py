"""Batch reading: planned on the driver, read in the workers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.spark.one_line import OneLineErrors
from headrace.spark.options import ReadOptions
from headrace.spark.planning import parts, rows


class BlockReader(OneLineErrors, DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options, self._columns = options, columns
        self._predicate = options.predicate()

    def partitions(self) -> list[InputPartition]:
        """What may hold a match, in pieces of about `targetPartitionBytes`. The store is only read."""
        return parts(self._options, self._predicate, self._columns)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages of one piece."""
        yield from rows(partition, self._columns, self._options.mode)
