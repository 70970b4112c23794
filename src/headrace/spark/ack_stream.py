"""`view=acks` as a stream: the offsets of the stream that captures the events."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.spark.acks import NEEDED, events, narrowed
from headrace.spark.options import ReadOptions
from headrace.spark.stream import FileStream


class AckStream(FileStream):
    """Micro-batches of events."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        super().__init__(narrowed(options), list(NEEDED))
        self._shown = columns

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """In a worker: the events of one piece."""
        for batch in super().read(partition):
            yield events(batch, self._shown)
