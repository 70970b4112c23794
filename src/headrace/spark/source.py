"""The data source `headrace`: directories and servers as DataFrames, and DataFrames into them.

    spark.read.format("headrace").option("stream", "ORDERS").load("/data/store")
    df.write.format("headrace").mode("append").option("url", "nats://host:4222").save()

The driver opens a directory once, read-only, and plans partitions of whole blocks; a worker reads its blocks
and nothing else. Columns that are not in the user's schema are neither decoded nor shipped.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.errors import BadInput
from headrace.spark.batch import BlockReader
from headrace.spark.columns import schema_text
from headrace.spark.one_line import OneLineErrors
from headrace.spark.options import LATEST, LOG_VIEW, ReadOptions, read_options
from headrace.spark.requested_columns import checked, columns_of

SCHEMA = (
    "seq bigint, time timestamp, time_ns bigint, log string, subject string, key binary, "
    "headers map<string,array<string>>, data binary"
)


class HeadraceSource(OneLineErrors, DataSource):
    """What Spark asks: a name, a schema, readers."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = options
        self._requested: ReadOptions | None = None

    @property
    def requested(self) -> ReadOptions:
        """What a reader is asked for; a writer has options of its own."""
        if self._requested is None:
            self._requested = read_options(self._given)
            if not self._requested.path and self._requested.access is None:
                raise BadInput("headrace source: give a directory, load('/path/to/store'), or url=nats://…")
        return self._requested

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "headrace"

    def schema(self) -> str:
        """All columns, or those of the option `columns`."""
        return schema_text(columns_of(self.requested), self.requested.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader for the columns of `schema`."""
        if self.requested.start == LATEST:
            raise BadInput("headrace source: startingFrom=latest is for streams; a batch would read nothing")
        columns = checked(self.requested, schema.fieldNames())
        if self.requested.view != LOG_VIEW:
            from headrace.spark.views import view_reader

            return view_reader(self.requested, columns)
        if not self.requested.pushdown:
            return BlockReader(self.requested, columns)
        try:
            from headrace.spark.pushdown import FilteringReader
        except ImportError:
            raise BadInput("headrace source: pushdown needs PySpark 4.1 or newer") from None
        return FilteringReader(self.requested, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of micro-batches for the columns of `schema`."""
        from headrace.spark.limits import ADMITS
        from headrace.spark.stream import FileStream

        columns = checked(self.requested, schema.fieldNames())
        kind = FileStream
        if self.requested.view == "acks":
            from headrace.spark.ack_stream import AckStream

            kind = AckStream
        elif self.requested.view != LOG_VIEW:
            raise BadInput(
                f"headrace source: view={self.requested.view} is a table, not a stream: use spark.read"
            )
        if not ADMITS:
            from headrace.spark.greedy import greedy

            return greedy(kind, self.requested, columns)
        return kind(self.requested, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Rows into a server's stream, or into a directory."""
        from headrace.spark.write import batch_writer

        return batch_writer(self._given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The same, batch by batch of a query, each once."""
        try:
            from headrace.spark.write_stream import stream_writer
        except ImportError:
            raise BadInput("headrace sink: streaming needs PySpark 4.1 or newer") from None
        return stream_writer(self._given, schema, overwrite)
