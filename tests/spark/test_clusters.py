"""Source, sink and archive on real clusters: Spark standalone and three nats-servers; one of each is killed in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_faults import on_clusters

MESSAGES = 20_000


@pytest.mark.slow
def test_clusters_that_lose_a_node_and_a_worker(tmp_path: Path) -> None:
    report = on_clusters(tmp_path / "proof", MESSAGES)
    assert report.exact, report.counted
    assert {each.rows for each in report.counted.values()} == {MESSAGES}
    assert report.faults.get("NATS nodes killed (the leader of OUT)") == 1, report.faults
    assert report.faults.get("Spark workers killed") == 1, report.faults
