"""The data source `headrace`: a store directory as a DataFrame.

    spark.read.format("headrace").option("stream", "ORDERS").load("/data/store")

The driver opens the directory once, read-only, and plans partitions of whole blocks; a worker reads its blocks
and nothing else. Columns that are not in the user's schema are neither decoded nor shipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.arrow import COLUMNS
from headrace.errors import BadInput
from headrace.spark.batch import BlockReader
from headrace.spark.options import LATEST, read_options

SCHEMA = (
    "seq bigint, time timestamp, time_ns bigint, log string, subject string, key binary, "
    "headers map<string,array<string>>, data binary"
)


class HeadraceSource(DataSource):
    """What Spark asks: a name, a schema, readers."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.asked = read_options(options)
        if not self.asked.path:
            raise BadInput("headrace source: give a directory, load('/path/to/store')")

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "headrace"

    def schema(self) -> str:
        """All columns, or those of the option `columns`."""
        types = {
            name: f"{name} {kind}" for name, _, kind in (part.partition(" ") for part in SCHEMA.split(", "))
        }
        return ", ".join(types[column] for column in _known(self.asked.columns or COLUMNS))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader for the columns of `schema`."""
        if self.asked.start == LATEST:
            raise BadInput("headrace source: startingFrom=latest is for streams; a batch would read nothing")
        columns = _known(schema.fieldNames())
        if not self.asked.pushdown:
            return BlockReader(self.asked, columns)
        try:
            from headrace.spark.pushdown import FilteringReader
        except ImportError:
            raise BadInput("headrace source: pushdown needs PySpark 4.1 or newer") from None
        return FilteringReader(self.asked, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of micro-batches for the columns of `schema`."""
        try:
            from headrace.spark.stream import FileStream
        except ImportError:
            raise BadInput("headrace source: streaming needs PySpark 4.2 or newer") from None
        return FileStream(self.asked, _known(schema.fieldNames()))


def _known(columns: Sequence[str]) -> list[str]:
    for column in columns:
        if column not in COLUMNS:
            raise BadInput(f"headrace source: no column {column!r}; there are: {', '.join(COLUMNS)}")
    return list(columns)
