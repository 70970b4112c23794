"""The examples, run as they stand: windows with a watermark, a join, state that survives a restart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from examples.join import with_regions
from examples.running_totals import running_totals
from examples.windows import totals
from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.testing.server import TestServer

REGIONS = ("eu", "us", "asia")
START_NS = 1_790_000_000_000_000_000


def order(n: int) -> bytes:
    return json.dumps({"id": n, "region": REGIONS[n % 3], "amount": n / 4}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(tmp_path_factory.mktemp("examples") / "js") as made:
        access = read_access(made.url)
        ServerVolume(access).create("ORDERS", subjects=["orders.>"])
        ServerVolume(access).create("TOTALS", subjects=["totals.>"])
        publish(made, 0, 600)
        yield made


def publish(server: TestServer, first: int, count: int) -> None:
    with Connection(read_access(server.url)) as connection:
        publisher = Publisher(connection)
        numbers = range(first, first + count)
        publisher.publish(
            headrace.batch([f"orders.{REGIONS[n % 3]}" for n in numbers], [order(n) for n in numbers])
        )
        publisher.flush()


def test_windows_are_written_back_once(spark: Any, tmp_path: Path) -> None:
    """From files, whose times can be chosen: 600 orders, ten a second, in windows of ten seconds."""
    with headrace.open(str(tmp_path / "in"), mode="rw", create=True) as volume:
        log = volume.create("ORDERS", subjects=["orders.>"])
        times = [START_NS + n * 100_000_000 for n in range(600)]
        log.append(headrace.batch("orders.x", [order(n) for n in range(600)], times=times))
        log.commit()
    with TestServer(tmp_path / "js") as server:
        out = ServerVolume(read_access(server.url)).create("TOTALS", subjects=["totals.>"])
        sink = {"url": server.url, "stream": "TOTALS"}
        for attempt in range(2):  # another checkpoint: everything again
            query = totals(spark, {"path": str(tmp_path / "in")}, sink, str(tmp_path / f"c{attempt}"))
            query.awaitTermination()
        found = [
            json.loads(each.data or b"") for task in out.scan_tasks() for b in task.batches() for each in b
        ]
    expected: Counter[tuple[int, str]] = Counter((n // 100, REGIONS[n % 3]) for n in range(600))
    # The watermark is one window behind: the last ones are not final yet.
    assert len(found) == len({(each["window"], each["region"]) for each in found}) >= 12
    assert {each["orders"] for each in found} <= set(expected.values())


def test_a_join_with_a_table(spark: Any, server: TestServer, tmp_path: Path) -> None:
    table = spark.createDataFrame([("eu", "Europe"), ("us", "America")], "region string, name string")
    source = {"url": server.url, "stream": "ORDERS", "endingSequence": "600"}
    with_regions(spark, source, table, str(tmp_path / "out"), str(tmp_path / "c")).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(600))
    assert {(row.region, row.name) for row in rows} == {("eu", "Europe"), ("us", "America"), ("asia", None)}


def test_state_survives_a_restart(spark: Any, server: TestServer, tmp_path: Path) -> None:
    source = {"url": server.url, "stream": "ORDERS", "endingSequence": "900"}
    running_totals(spark, source, str(tmp_path / "out"), str(tmp_path / "c")).awaitTermination()
    publish(server, 600, 300)
    running_totals(spark, source, str(tmp_path / "out"), str(tmp_path / "c")).awaitTermination()
    found = sorted(spark.read.parquet(str(tmp_path / "out")).collect(), key=lambda row: row.last_seq)
    rows = {row.region: (row.orders, row.amount) for row in found}
    assert rows == {
        region: (300, sum(n / 4 for n in range(900) if REGIONS[n % 3] == region)) for region in REGIONS
    }
