"""The batch source on real stores: same messages as the library, pruned columns, clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.support import vectors


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    with headrace.open(str(path), mode="rw", create=True, block_bytes=64 << 10) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        other = volume.create("OTHER", subjects=["other"])
        for start in range(0, 5000, 500):
            batch = [f"order {start + at}".encode() for at in range(500)]
            headers = [b"NATS/1.0\r\nN: %d\r\nN: again\r\n\r\n" % at if at % 2 else None for at in range(500)]
            orders.append(headrace.batch([f"orders.{at % 3}" for at in range(500)], batch, headers))
        orders.remove([1, 7, 4999])
        other.append(headrace.batch("other", [b"x", b"", b"z"]))
    return path


def test_rows_equal_the_library(spark: Any, store: Path) -> None:
    reader = spark.read.format("headrace").option("stream", "ORDERS").option("targetPartitionBytes", "1000")
    frame = reader.load(str(store))
    rows = sorted(frame.collect(), key=lambda row: row.seq)
    with headrace.open(str(store)) as volume:
        records = list(volume.open("ORDERS"))
        assert len(volume.open("ORDERS").scan_tasks()) > 3
    assert frame.rdd.getNumPartitions() > 3
    assert len(rows) == len(records) == 4997
    for row, record in zip(rows, records, strict=True):
        assert (row.seq, row.time_ns, row.log, row.subject) == (
            record.seq,
            record.time_ns,
            "ORDERS",
            record.subject,
        )
        assert bytes(row.data) == record.data and row.key is None
        assert (row.headers or {}) == record.header_map
        assert (row.headers is None) == (record.headers is None)


def test_all_streams_and_counts(spark: Any, store: Path) -> None:
    frame = spark.read.format("headrace").load(str(store))
    counts = {row["log"]: row["count"] for row in frame.groupBy("log").count().collect()}
    assert counts == {"ORDERS": 4997, "OTHER": 3}


def test_columns_are_pruned(spark: Any, store: Path) -> None:
    by_schema = spark.read.format("headrace").schema("seq bigint, subject string").load(str(store))
    by_option = spark.read.format("headrace").option("columns", "subject,seq").load(str(store))
    assert by_schema.columns == ["seq", "subject"] and by_option.columns == ["subject", "seq"]
    assert by_schema.count() == by_option.count() == 5000
    numbers = spark.read.format("headrace").option("columns", "seq").option("stream", "ORDERS")
    with headrace.open(str(store)) as volume:
        expected = [record.seq for record in volume.open("ORDERS")]
    assert sorted(row.seq for row in numbers.load(str(store)).collect()) == expected
    some = numbers.option("startingSequence", "5").option("endingSequence", "4999").load(str(store))
    assert sorted(row.seq for row in some.collect()) == [seq for seq in expected if 5 <= seq <= 4999]


def test_golden_directories(spark: Any, jetstream_vector: vectors.Vector) -> None:
    path = jetstream_vector.folder / "store"
    frame = spark.read.format("headrace").schema("log string, seq bigint").load(str(path))
    found = {(row["log"], row.seq) for row in frame.collect()}
    with headrace.open(str(path)) as volume:
        assert found == {(name, record.seq) for name in volume.logs() for record in volume.open(name)}
    assert found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strem": "ORDERS"}, "did you mean 'stream'"),
        ({"columns": "nope"}, "no column 'nope'"),
        ({"stream": "NOPE"}, "no log 'NOPE'"),
    ],
)
def test_refusals_are_clear(spark: Any, store: Path, options: dict[str, str], text: str) -> None:
    reader = spark.read.format("headrace")
    for name, value in options.items():
        reader = reader.option(name, value)
    with pytest.raises(Exception, match=text):
        reader.load(str(store)).count()
