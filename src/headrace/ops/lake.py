"""Delta and Iceberg as the place where an archive is committed, through deltalake and pyiceberg: no jar, no JVM.

    Delta     one commit per part, whose application transaction (app = log and incarnation, version = next position)
              refuses the same range a second time
    Iceberg   the data files and the property `headrace.log.<name>` in one commit of the catalog

Workers write the same Parquet files as always, straight into the table's directory: until a commit names them nobody sees
them. The table itself is the record of what is archived; there is no manifest beside it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from headrace.arrow import schema
from headrace.errors import BadInput
from headrace.layouts.archives import AddedRange, ArchivedFile, ArchivedLog, Division
from headrace.layouts.registry import ARCHIVE, layout_named

PROPERTY = "headrace.log."
LAKE = "pip install 'headrace[lake]'"
files: Any = parquet


def _package(name: str, what: str) -> Any:
    """Both packages are optional; a type checker sees them only where they are installed."""
    try:
        return import_module(name)
    except ImportError as problem:
        raise BadInput(f"{what} need the package {name.partition('.')[0]} ({problem}): {LAKE}") from None


def table_schema(division: Division) -> pa.Schema:
    """The columns of the files, then those of the directories."""
    found: Any = schema(layout_named(ARCHIVE).archives().columns())
    for name in division.columns:
        found = found.append(pa.field(name, pa.string()))
    return found


class DeltaLedger:
    """A Delta table."""

    format = "delta"

    def __init__(self, target: str, division: Division) -> None:
        deltalake = _package("deltalake", "Delta tables")
        self._transaction = _package("deltalake.transaction", "Delta tables")
        self._division = division
        self.place = os.path.abspath(target)  # noqa: PTH100  (links stay links)
        Path(self.place).mkdir(parents=True, exist_ok=True)
        if not deltalake.DeltaTable.is_deltatable(self.place):
            deltalake.DeltaTable.create(
                self.place,
                table_schema(division),
                partition_by=list(division.columns),
                name="headrace",
            )
        self._table: Any = deltalake.DeltaTable(self.place)
        found = list(self._table.metadata().partition_columns)
        if found != list(division.columns):
            raise BadInput(
                f"{target} is a table divided by {', '.join(found) or 'nothing'}; asked for "
                f"{', '.join(division.columns) or 'nothing'}: archive as before, or into another directory"
            )

    @property
    def rows(self) -> int:
        return int(self._table.count())

    def log(self, name: str, incarnation: str) -> ArchivedLog:
        """By the table's application transactions: the first position is not remembered there, only the next one."""
        following = self._table.transaction_version(_application(name, incarnation))
        entry = ArchivedLog(id=incarnation)
        if following is not None:
            entry.ranges = [(0, following)]
        return entry

    def commit(self, parts: Sequence[AddedRange]) -> None:
        """All parts of one log in one commit."""
        for log in dict.fromkeys(part.log for part in parts):
            mine = [part for part in parts if part.log == log]
            application = _application(log, mine[0].entry.id)
            for part in mine:
                part.entry.add(part.first, part.next, 0)
            done = self._table.transaction_version(application)
            if done is not None and done >= mine[-1].next:
                continue
            if done is not None and done > mine[0].first:
                raise BadInput(
                    f"{self.place}: another run has archived {log} to {done - 1} meanwhile; run again"
                )
            following = self._transaction.Transaction(application, mine[-1].next)
            self._table.create_write_transaction(
                [self._action(file) for part in mine for file in part.files],
                "append",
                self._table.schema(),
                partition_by=list(self._division.columns),
                commit_properties=self._transaction.CommitProperties(app_transactions=[following]),
            )
            self._table.update_incremental()

    def _action(self, file: ArchivedFile) -> Any:
        path = Path(self.place, file.path)
        about = {"numRecords": file.rows} | _ends(path)
        return self._transaction.AddAction(
            file.path,
            file.bytes,
            dict(file.partition),
            int(path.stat().st_mtime * 1000),
            True,
            json.dumps(about),
        )

    def close(self) -> None:
        """Nothing is held."""


def _ends(path: Path) -> dict[str, Any]:
    """Lowest and highest sequence and time, by which readers skip files."""
    metadata = files.read_metadata(path)
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    nulls = {"seq": 0, "time_ns": 0}
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for column, name in ((0, "seq"), (2, "time_ns")):
            ends = group.column(column).statistics
            nulls[name] += ends.null_count
            if ends.has_min_max:  # not where all are null
                low[name] = min(low.get(name, ends.min), ends.min)
                high[name] = max(high.get(name, ends.max), ends.max)
    return {"minValues": low, "maxValues": high, "nullCount": nulls}


def _application(log: str, incarnation: str) -> str:
    return f"headrace:{log}:{incarnation}"


class IcebergLedger:
    """An Iceberg table of a catalog that pyiceberg knows: `catalog.namespace.table`, its files below the table's location."""

    format = "iceberg"

    def __init__(self, target: str, division: Division) -> None:
        load_catalog = _package("pyiceberg.catalog", "Iceberg tables").load_catalog
        absent = _package("pyiceberg.exceptions", "Iceberg tables").NoSuchTableError
        if division.columns:
            raise BadInput(
                "an Iceberg table is not divided into directories: leave out --by, partition the table instead"
            )
        catalog_name, dot, name = target.partition(".")
        if not dot or "." not in name:
            raise BadInput(
                f"{target!r}: name an Iceberg table as CATALOG.NAMESPACE.TABLE (catalogs: ~/.pyiceberg.yaml)"
            )
        try:
            catalog: Any = load_catalog(catalog_name)
        except ValueError as problem:
            raise BadInput(f"catalog {catalog_name!r}: {problem}") from None
        try:
            self._table: Any = catalog.load_table(name)
        except absent:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            self._table = catalog.create_table(name, table_schema(division))
        location = str(self._table.location())
        if "://" in location and not location.startswith("file://"):
            raise BadInput(
                f"{target}: its files lie at {location}; workers write to local or mounted paths only"
            )
        self.place = f"{location.removeprefix('file://')}/data"
        Path(self.place).mkdir(parents=True, exist_ok=True)

    @property
    def rows(self) -> int:
        snapshot = self._table.current_snapshot()
        return int(snapshot.summary["total-records"]) if snapshot is not None else 0

    def log(self, name: str, incarnation: str) -> ArchivedLog:
        """By the table's property."""
        text = self._table.properties.get(PROPERTY + name)
        if text is None:
            return ArchivedLog(id=incarnation)
        id, first, following = json.loads(text)
        if id != incarnation:
            raise BadInput(
                f"log {name} was deleted and made again (it was {id}, now it is {incarnation}); archive it into another table"
            )
        return ArchivedLog(id=incarnation, ranges=[(first, following)])

    def commit(self, parts: Sequence[AddedRange]) -> None:
        """Files and properties in one commit; another run's commit in between makes it fail."""
        # It warns of every column without statistics, once per file: binary ones have none on purpose.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        with self._table.transaction() as changes:
            text: dict[str, str] = {}
            for part in parts:
                part.entry.add(part.first, part.next, 0)
                text[PROPERTY + part.log] = json.dumps([part.entry.id, part.entry.ranges[0][0], part.next])
            changes.set_properties(text)
            files = [f"{self.place}/{file.path}" for part in parts for file in part.files]
            if files:
                changes.add_files(files)

    def close(self) -> None:
        """Nothing is held."""
