"""Streaming from files: exact offsets, admission, availableNow in several batches, logs that come and go, data loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

import headrace
from headrace.errors import BadInput, NotFound
from headrace.spark.options import read_options
from headrace.spark.stream import FileStream


def publish(path: Path, stream: str, first: int, count: int) -> None:
    with headrace.open(str(path), mode="rw", create=True, block_bytes=32 << 10) as volume:
        log = (
            volume.create(stream, subjects=[f"{stream}.x"])
            if stream not in volume.logs()
            else volume.open(stream)
        )
        for start in range(first, first + count, 100):
            log.append(
                headrace.batch(
                    f"{stream}.x", [b"%d" % n for n in range(start, min(start + 100, first + count))]
                )
            )
        log.commit()


def stream(path: Path, **options: str) -> FileStream:
    made = FileStream(read_options({"path": str(path)} | options), ["seq", "log"])
    made._seen = None
    return made


def fresh(of: FileStream) -> FileStream:
    of._seen = None  # what it saw a moment ago is kept for 100 ms
    return of


def read(of: FileStream, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for part in of.partitions(start, end):
        for batch in of.read(part):
            found += zip(batch.column("log").to_pylist(), batch.column("seq").to_pylist(), strict=True)
    return sorted(found)


def ends(offset: dict[str, Any]) -> dict[str, int]:
    assert json.loads(json.dumps(offset)) == offset and offset["v"] == 1
    return {log: each["seq"] for log, each in offset["logs"].items()}


def test_batches_follow_each_other_without_a_seam(tmp_path: Path) -> None:
    publish(tmp_path, "A", 0, 3000)
    publish(tmp_path, "B", 0, 50)
    source = stream(tmp_path)
    at = source.initialOffset()
    assert ends(at) == {"A": 1, "B": 1} and source.initialOffset() is at
    seen: list[tuple[str, int]] = []
    for limit in (ReadMaxRows(300), ReadMaxRows(300), ReadMaxFiles(1), ReadMaxBytes(1), ReadAllAvailable()):
        end = source.latestOffset(at, limit)
        batch = read(source, at, end)
        assert batch and (not isinstance(limit, ReadMaxRows) or len(batch) <= 300)
        seen += batch
        at = end
    assert sorted(seen) == [*(("A", n) for n in range(1, 3001)), *(("B", n) for n in range(1, 51))]
    assert source.latestOffset(at, ReadAllAvailable()) == at and source.partitions(at, at) == []
    publish(tmp_path, "A", 3000, 5)
    publish(tmp_path, "C", 0, 3)
    end = fresh(source).latestOffset(at, ReadAllAvailable())
    assert read(source, at, end) == [*(("A", n) for n in range(3001, 3006)), *(("C", n) for n in (1, 2, 3))]
    assert ends(source.reportLatestOffset()) == {"A": 3006, "B": 51, "C": 4}


def test_where_a_query_begins_and_ends(tmp_path: Path) -> None:
    publish(tmp_path, "A", 0, 100)
    assert ends(stream(tmp_path, startingFrom="latest").initialOffset()) == {"A": 101}
    assert ends(stream(tmp_path, startingSequence="40").initialOffset()) == {"A": 40}
    bounded = stream(tmp_path, startingSequence="40", endingSequence="50")
    at = bounded.initialOffset()
    end = bounded.latestOffset(at, ReadAllAvailable())
    assert [seq for _, seq in read(bounded, at, end)] == list(range(40, 51))
    assert bounded.latestOffset(end, ReadAllAvailable()) == end


def test_few_rows_wait_for_more_but_not_for_ever(tmp_path: Path) -> None:
    publish(tmp_path, "A", 0, 10)
    source = stream(tmp_path, minRowsPerTrigger="50", maxTriggerDelay="100ms")
    at = source.initialOffset()
    assert source.latestOffset(at, ReadAllAvailable()) == at
    publish(tmp_path, "A", 10, 45)
    assert ends(fresh(source).latestOffset(at, ReadAllAvailable())) == {"A": 56}
    patient = stream(tmp_path, minRowsPerTrigger="500", maxTriggerDelay="0s")
    assert ends(patient.latestOffset(at, ReadAllAvailable())) == {"A": 56}


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    publish(tmp_path, "A", 0, 100)
    source = stream(tmp_path)
    at = source.initialOffset()
    end = source.latestOffset(at, ReadAllAvailable())
    with headrace.open(str(tmp_path), mode="rw") as volume:
        volume.open("A").drop_front(31)
    with pytest.raises(BadInput, match="log A no longer holds 1 to 30"):
        fresh(source).partitions(at, end)
    few = source.latestOffset(at, ReadMaxRows(10))
    with pytest.raises(
        BadInput, match="log A no longer holds 1 to 30"
    ):  # all of it, not only the batch's ten
        fresh(source).partitions(at, few)
    tolerant = stream(tmp_path, failOnDataLoss="false")
    assert [seq for _, seq in read(tolerant, at, end)] == list(range(31, 101))
    with headrace.open(str(tmp_path), mode="rw") as volume:
        volume.delete("A")
    with pytest.raises(NotFound, match="log A is no longer in"):
        fresh(source).partitions(at, end)
    publish(tmp_path, "A", 0, 100)
    with pytest.raises(BadInput, match="log A was deleted and made again"):
        fresh(source).partitions(at, end)


def test_available_now_in_several_batches_and_again_from_the_checkpoint(spark: Any, tmp_path: Path) -> None:
    """Through Spark: every message once, over two runs of one query; the second sees only what is new."""
    publish(tmp_path / "store", "A", 0, 1000)
    rows: list[tuple[int, int]] = []

    def keep(frame: Any, batch: int) -> None:
        rows.extend((batch, row.seq) for row in frame.select("seq").collect())

    def run() -> list[int]:
        before = len(rows)
        query = (
            spark.readStream.format("headrace")
            .option("maxRowsPerTrigger", "400")
            .load(str(tmp_path / "store"))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        return [seq for _, seq in rows[before:]]

    assert sorted(run()) == list(range(1, 1001)) and len({batch for batch, _ in rows}) == 3
    publish(tmp_path / "store", "A", 1000, 7)
    assert sorted(run()) == list(range(1001, 1008))
