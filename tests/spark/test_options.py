"""The source's options over files: what is asked for is read and no more; wrong ones are refused by name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource as filters

import headrace
from headrace.errors import BadInput, NotFound
from headrace.layouts.base import Predicate
from headrace.spark.batch import BlockReader
from headrace.spark.greedy import greedy
from headrace.spark.options import read_options
from headrace.spark.planning import ScanPartition
from headrace.spark.pushdown import FilteringReader, narrowed
from headrace.spark.stream import FileStream

START_NS = 1_700_000_000_000_000_000
COUNT = 6000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A message each second, on three subjects, in blocks of 64 KiB; a second stream beside."""
    path = tmp_path_factory.mktemp("options") / "one"
    with headrace.open(str(path), mode="rw", create=True, block_bytes=64 << 10) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        for first in range(0, COUNT, 500):
            numbers = range(first, first + 500)
            times = [START_NS + n * 1_000_000_000 for n in numbers]
            data = [b"%d" % n for n in numbers]
            batch = headrace.Batch.build([f"orders.{n % 3}" for n in numbers], data, times=times)
            orders.append(batch)
        volume.create("OTHER", subjects=["other"]).append(headrace.batch("other", [b"x", b"y"]))
    return path


def reader(store: Path, **options: str) -> BlockReader:
    read = read_options({"path": str(store)} | options)
    return (FilteringReader if read.pushdown else BlockReader)(read, ["seq", "subject", "time_ns"])


def seqs(of: BlockReader) -> list[int]:
    """Through pickle, as on the way to a worker."""
    parts = pickle.loads(pickle.dumps(of.partitions()))
    return sorted(seq for part in parts for batch in of.read(part) for seq in batch.column("seq").to_pylist())


def bytes_read(of: BlockReader) -> int:
    return sum(
        task.size_bytes for part in of.partitions() if isinstance(part, ScanPartition) for task in part.tasks
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingSequence": "5990"}, range(5990, 6001)),
        ({"endingSequence": "5"}, range(1, 6)),
        ({"startingSequence": "100", "asOfSequence": "110"}, range(100, 111)),
        ({"startingTime": str(START_NS + 5_995 * 1_000_000_000)}, range(5996, 6001)),
        ({"endingTime": "2023-11-14T22:13:22Z"}, range(1, 4)),
        ({"subjects": "orders.1", "endingSequence": "9"}, (2, 5, 8)),
        ({"subjects": "orders.1,orders.2", "endingSequence": "6"}, (2, 3, 5, 6)),
        ({"subjects": "orders.*", "endingSequence": "3"}, (1, 2, 3)),
    ],
)
def test_ranges(store: Path, options: dict[str, str], expected: Any) -> None:
    assert seqs(reader(store, stream="ORDERS", **options)) == list(expected)


def test_a_narrow_range_reads_little(store: Path) -> None:
    """1 % of the sequences or of the time reads a few blocks of many."""
    whole = bytes_read(reader(store, stream="ORDERS"))
    by_seq = reader(store, stream="ORDERS", startingSequence="3000", endingSequence="3060")
    start = START_NS + 3000 * 1_000_000_000
    by_time = reader(
        store, stream="ORDERS", startingTime=str(start), endingTime=str(start + 60 * 1_000_000_000)
    )
    assert 0 < bytes_read(by_seq) < whole / 3 and 0 < bytes_read(by_time) < whole / 3
    assert len(seqs(by_time)) == 61


def test_partitions_by_size(store: Path) -> None:
    one = reader(store, stream="ORDERS").partitions()
    small = reader(store, stream="ORDERS", targetPartitionBytes="70000").partitions()
    least = reader(store, stream="ORDERS", minPartitions="3").partitions()
    assert len(one) == 1 and len(small) > 3 and len(least) >= 3


def test_logs_by_pattern_and_directories_by_glob(store: Path) -> None:
    assert len(seqs(reader(store))) == COUNT + 2
    assert len(seqs(reader(store, streams="O*R"))) == 2
    assert seqs(reader(store, topics="ORDERS", endingSequence="2")) == [1, 2]
    assert len(seqs(reader(store.parent / "o*", log="OTHER"))) == 2
    with pytest.raises(NotFound, match="no directory fits"):
        reader(store.parent / "x*").partitions()
    with pytest.raises(BadInput, match=r"headrace source: .*: no log 'NONE'; there are: ORDERS, OTHER"):
        reader(store, stream="NONE").partitions()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingSeqence": "1"}, "did you mean 'startingSequence'"),
        ({"startingSequence": "one"}, "startingSequence='one'; expected a whole number"),
        ({"stream": "a", "topics": "b"}, "stream and topics mean the same"),
        ({"startingFrom": "middle"}, "earliest or latest"),
        ({"startingFrom": "latest", "startingSequence": "1"}, "give one"),
        ({"endingTime": "yesterday"}, "expected a time"),
        ({"maxRowsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
    ],
)
def test_what_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        read_options({"path": "/x"} | options)


def test_filters_skip_blocks_and_are_given_back(store: Path) -> None:
    pushed = reader(store, stream="ORDERS", pushdown="true")
    assert isinstance(pushed, FilteringReader)
    pushed_down = [
        filters.GreaterThan(("seq",), 2999),
        filters.LessThanOrEqual(("seq",), 3009),
        filters.EqualTo(("subject",), "orders.0"),
        filters.StringStartsWith(("subject",), "orders"),
        filters.IsNotNull(("seq",)),
    ]
    assert list(pushed.pushFilters(pushed_down)) == pushed_down
    assert seqs(pushed) == [3001, 3004, 3007] and bytes_read(pushed) < bytes_read(
        reader(store, stream="ORDERS")
    )
    assert narrowed(Predicate(), filters.Not(filters.EqualTo(("seq",), 1))) == Predicate()
    assert narrowed(Predicate(), filters.EqualTo(("seq",), 7)) == Predicate(first=7, next=8)
    assert narrowed(Predicate(), filters.LessThan(("seq",), -3)) == Predicate(next=0)


def test_through_spark(spark: Any, store: Path) -> None:
    frame = spark.read.format("headrace").option("stream", "ORDERS").option("startingSequence", "5900")
    assert frame.load(str(store)).where("subject = 'orders.0'").count() == 33
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("headrace").option("pushdown", "true").option("stream", "ORDERS")
        found = pushed.load(str(store)).where("seq between 100 and 109 and time >= '2023-11-14 22:15:00'")
        assert [row.seq for row in found.orderBy("seq").collect()] == list(range(101, 110))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/a b", "/data/a b"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data/x", "/data/x"),
        ("file://localhost/data/*", "/data/*"),
        ("/data/x:y", "/data/x:y"),
    ],
)
def test_file_uris_are_paths(given: str, path: str) -> None:
    assert read_options({"path": given}).path == path


def test_other_places_are_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"^headrace source: path=s3://…: a user and password") as refused:
        read_options({"path": "s3://me:hunter2@bucket/x"})
    assert "hunter2" not in str(refused.value)
    with pytest.raises(BadInput, match="that is a server, not a directory; give it as url"):
        read_options({"path": "nats://host:4222"})
    with pytest.raises(BadInput, match="another host"):
        read_options({"path": "file://far/data"})


def test_streams_of_older_pyspark_take_all(store: Path) -> None:
    """4.0 and 4.1 call `latestOffset` without a word: everything, each time."""
    every = greedy(FileStream, read_options({"path": str(store), "stream": "ORDERS"}), ["seq"])
    latest: Any = every.latestOffset
    start, end = every.initialOffset(), latest()
    assert list(start["logs"]) == list(end["logs"]) == ["ORDERS"] and latest() == end
    parts = every.partitions(start, end)
    found = [seq for part in parts for batch in every.read(part) for seq in batch.column(0).to_pylist()]
    assert found == seqs(reader(store, stream="ORDERS"))
    for name in ("maxRowsPerTrigger", "minRowsPerTrigger"):
        with pytest.raises(BadInput, match=f"{name} needs PySpark 4.2"):
            greedy(FileStream, read_options({"path": str(store), name: "5"}), ["seq"])


def test_partitions_without_end_are_no_more_than_blocks(store: Path) -> None:
    many = reader(store, stream="ORDERS", minPartitions=str(10**12))
    assert 1 < len(many.partitions()) < 100 and len(seqs(many)) == COUNT
