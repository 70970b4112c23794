"""The data source `headrace`: a store directory as a DataFrame.

    spark.read.format("headrace").option("stream", "ORDERS").load("/data/store")

The driver opens the directory once, read-only, and plans one partition per block; a worker reads its block
and nothing else. Columns that are not in the user's schema are neither decoded nor shipped.
"""

from __future__ import annotations

import difflib
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from headrace.arrow import COLUMNS
from headrace.errors import BadInput
from headrace.spark.batch import BlockReader

SCHEMA = (
    "seq bigint, time timestamp, time_ns bigint, log string, subject string, key binary, "
    "headers map<string,array<string>>, data binary"
)
OPTIONS = ("path", "stream", "columns", "key")


class HeadraceSource(DataSource):
    """What Spark asks: a name, a schema, a reader."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        for name in options:
            if name.lower() not in OPTIONS:
                near = difflib.get_close_matches(name.lower(), OPTIONS, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(OPTIONS)}"
                raise BadInput(f"headrace source: no option {name!r}{hint}")
        self.given = {name.lower(): value for name, value in options.items()}

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "headrace"

    def schema(self) -> str:
        """All columns, or those of the option `columns`."""
        if "columns" not in self.given:
            return SCHEMA
        types = {
            name: f"{name} {kind}" for name, _, kind in (part.partition(" ") for part in SCHEMA.split(", "))
        }
        wanted = [column.strip() for column in self.given["columns"].split(",")]
        for column in wanted:
            if column not in types:
                raise BadInput(f"headrace source: no column {column!r}; there are: {', '.join(COLUMNS)}")
        return ", ".join(types[column] for column in wanted)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader for the columns of `schema`."""
        path = self.given.get("path")
        if not path:
            raise BadInput("headrace source: give a directory, load('/path/to/store')")
        columns: list[Any] = schema.fieldNames()
        for column in columns:
            if column not in COLUMNS:
                raise BadInput(f"headrace source: no column {column!r}; there are: {', '.join(COLUMNS)}")
        return BlockReader(path, self.given.get("stream"), columns, self.given.get("key"))
