"""Batch reading: one Spark partition per block of the store."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.layouts.base import ScanTask
from headrace.layouts.detect import open_volume


class BlockPartition(InputPartition):
    """One block, as the layout's own task."""

    def __init__(self, task: ScanTask) -> None:
        super().__init__(task)
        self.task = task


class BlockReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, path: str, stream: str | None, columns: list[str], key: str | None) -> None:
        self._path, self._stream, self._columns, self._key = path, stream, columns, key

    def partitions(self) -> list[InputPartition]:
        """Every block of the asked streams (default: all). The store is only read."""
        with open_volume(self._path, key=self._key) as volume:
            names = [name.strip() for name in self._stream.split(",")] if self._stream else volume.logs()
            return [BlockPartition(task) for name in names for task in volume.open(name).scan_tasks()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages of one block; an empty plan arrives as no partition at all."""
        if isinstance(partition, BlockPartition):
            yield from partition.task.scan(self._columns)
