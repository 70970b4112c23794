"""Exactly once while drivers, workers, executors and the server are killed. `make proof` does the same with a million messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_faults import by_faults

MESSAGES = 20_000


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_double(tmp_path: Path) -> None:
    report = by_faults(
        tmp_path / "proof", MESSAGES, master="local-cluster[1,2,1024]", deaths=("copy", "parquet")
    )
    assert report.exact, report.counted
    assert {name: each.rows for name, each in report.counted.items()} == dict.fromkeys(
        ("in", "copy (origins)", "copy (bodies)", "parquet", "archive"), MESSAGES
    )
    for fault in (
        "tasks killed",
        "executors killed",
        "server killed",
        "drivers killed, copy written and not committed",
        "drivers killed, parquet written and not committed",
    ):
        assert report.faults.get(fault), f"{fault}: it did not happen; {report.faults}"
    assert report.limits == {"missing": [6001, 12000], "named": True, "logged": True, "went_on": True}
