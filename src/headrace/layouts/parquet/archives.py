"""Writing archives: plain Parquet with a manifest."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.layouts.archives import AddedRange, ArchivedLog, Archives, WriteOptions
from headrace.layouts.base import ScanTask
from headrace.layouts.parquet.division import RowDivision, read_division
from headrace.layouts.parquet.manifest import ArchiveWriter, read_manifest
from headrace.layouts.parquet.writing import WRITTEN_COLUMNS, FileGroup, make_groups


class ParquetArchives(Archives):
    """See `Archives`."""

    def division(self, by: Sequence[str]) -> RowDivision:
        return read_division(by)

    def ledger(self, target: str, origin: str, by: Sequence[str], wait_s: float = 0) -> ParquetLedger:
        return ParquetLedger(target, origin, by, wait_s)

    def committed(self, target: str) -> dict[str, ArchivedLog]:
        manifest = read_manifest(target)
        return {} if manifest is None else manifest.logs

    def groups(
        self, log: str, tasks: Sequence[ScanTask], start: int, how: WriteOptions
    ) -> Sequence[FileGroup]:
        return make_groups(log, tasks, start, how)

    def columns(self) -> Sequence[str]:
        return WRITTEN_COLUMNS


class ParquetLedger:
    """The manifest, as the place where commits go."""

    format = "parquet"

    def __init__(self, target: str, layout: str, by: Sequence[str], wait_s: float) -> None:
        self._writer = ArchiveWriter(target, layout, by, wait_s)
        self.place = str(self._writer.staging)

    @property
    def rows(self) -> int:
        return self._writer.manifest.rows

    def log(self, name: str, incarnation: str) -> ArchivedLog:
        return self._writer.log(name, incarnation)

    def commit(self, parts: Sequence[AddedRange]) -> None:
        self._writer.commit(parts)

    def close(self) -> None:
        self._writer.close()
