"""Delta and Iceberg tables: every message once, a repeated or overtaken commit adds nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import BadInput
from headrace.ops import archive as archiving
from headrace.ops.archive import ArchiveOptions, archive
from headrace.ops.lake import DeltaLedger
from tests.ops.helpers import small_store

deltalake: Any = importlib.import_module("deltalake")
catalogs: Any = importlib.import_module("pyiceberg.catalog")
config: Any = importlib.import_module("pyiceberg.utils.config")
SEQS = [n for n in range(1, 301) if n not in (7, 8, 20)]


class Killed(BaseException):
    pass


def test_delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, table = str(small_store(tmp_path / "store")), str(tmp_path / "delta")
    options = ArchiveOptions(target_bytes=8192, newest=True, format="delta", by=("orders.{kind}",))
    with monkeypatch.context() as patch:

        def dies(*_: Any) -> None:
            raise Killed

        patch.setattr(DeltaLedger, "commit", dies)
        with pytest.raises(Killed):
            archive(store, table, options)
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == 0
    monkeypatch.setattr(archiving, "COMMIT_EVERY_S", 0.0)
    first = archive(store, table, options)
    assert first.rows == 297 == first.rows_all
    assert archive(store, table, options).rows == 0
    found = deltalake.DeltaTable(table)
    assert sorted(found.to_pyarrow_table()["seq"].to_pylist()) == SEQS
    assert found.to_pyarrow_table(filters=[("kind", "=", "3")]).num_rows == 74  # 7 is removed
    with pytest.raises(BadInput, match="divided by kind"):
        archive(store, table, ArchiveOptions(format="delta"))


def test_a_delta_commit_that_another_run_made_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs planned the same ranges: the application transaction lets one of them in."""
    store, table = str(small_store(tmp_path / "store")), str(tmp_path / "delta")
    options = ArchiveOptions(target_bytes=8192, newest=True, format="delta")
    real = DeltaLedger.commit

    def overtaken(self: DeltaLedger, parts: Any) -> None:
        monkeypatch.setattr(DeltaLedger, "commit", real)
        archive(store, table, options)
        self._table.update_incremental()  # pyright: ignore[reportPrivateUsage]
        real(self, parts)

    monkeypatch.setattr(DeltaLedger, "commit", overtaken)
    archive(store, table, options)
    assert sorted(deltalake.DeltaTable(table).to_pyarrow_table()["seq"].to_pylist()) == SEQS


def test_iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, warehouse = str(small_store(tmp_path / "store")), tmp_path / "warehouse"
    warehouse.mkdir()
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path}/catalog.db"),
        ("WAREHOUSE", f"file://{warehouse}"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__HEADRACE__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", config.Config())
    table = "headrace.lake.orders"
    first = archive(store, table, ArchiveOptions(target_bytes=8192, format="iceberg"))
    second = archive(store, table, ArchiveOptions(target_bytes=8192, format="iceberg", newest=True))
    assert first.rows + second.rows == 297 == second.rows_all
    assert archive(store, table, ArchiveOptions(format="iceberg", newest=True)).rows == 0
    rows = catalogs.load_catalog("headrace").load_table("lake.orders").scan().to_arrow()
    assert sorted(rows["seq"].to_pylist()) == SEQS
    with pytest.raises(BadInput, match="catalog 'none'"):
        archive(store, "none.lake.orders", ArchiveOptions(format="iceberg"))
    with pytest.raises(BadInput, match=r"CATALOG\.NAMESPACE\.TABLE"):
        archive(store, "orders", ArchiveOptions(format="iceberg"))
