"""Pipelines over Spark give what the local engine gives: the same files, byte for byte, the same reports."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client import ServerVolume, read_access
from headrace.errors import BadInput
from headrace.layouts.base import Predicate
from headrace.layouts.parquet.manifest import read_manifest
from headrace.ops import parallel
from headrace.ops.archive import ArchiveOptions
from headrace.ops.archive import archive as archive_locally
from headrace.ops.look import verify as verify_alone
from headrace.spark import pipelines
from headrace.testing.server import TestServer
from headrace.units import parse_size
from tests.ops.helpers import STREAMS, small_store
from tests.support import vectors

OPTIONS: dict[str, Any] = {"target_bytes": 32768, "newest": True, "by": ("date", "orders.{kind}")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("pipelines") / "store", 1000, 8192)


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*.parquet")}


def test_archive_equals_the_local_engine(spark: Any, store: Path, tmp_path: Path) -> None:
    with_spark = pipelines.archive(str(store), str(tmp_path / "one"), session=spark, **OPTIONS)
    without = archive_locally(str(store), str(tmp_path / "two"), ArchiveOptions(**OPTIONS))
    assert (with_spark.engine, without.engine) == ("spark", "local")
    assert with_spark.rows == without.rows == 997 and with_spark.files > 4
    assert files(tmp_path / "one") == files(tmp_path / "two")
    one, two = read_manifest(tmp_path / "one"), read_manifest(tmp_path / "two")
    assert one is not None and two is not None and (one.logs, one.files) == (two.logs, two.files)
    assert pipelines.archive(str(store), str(tmp_path / "one"), session=spark, **OPTIONS).rows == 0
    read_both_ways(spark, store, str(tmp_path / "one"))


def read_both_ways(spark: Any, store: Path, lake: str) -> None:
    plain = spark.read.parquet(lake).where("kind = 3 and seq > 500").select("date", "seq").collect()
    assert sorted(row.seq for row in plain) == list(range(503, 1001, 4))
    some = (
        spark.read.format("headrace")
        .option("startingSequence", "500")
        .option("subjects", "orders.3,orders.2")
    )
    rows = sorted(some.load(lake).collect(), key=lambda row: row.seq)
    with headrace.open(str(store)) as volume:
        wanted = volume.open("ORDERS").to_arrow(
            predicate=Predicate(first=500, subjects=("orders.3", "orders.2"))
        )
    assert len(rows) == 250
    for name in ("seq", "time_ns", "log", "subject", "data"):
        assert [row[name] for row in rows] == wanted[name].to_pylist()
    assert [row.headers for row in rows] == [
        None if each is None else dict(each) for each in wanted["headers"].to_pylist()
    ]


def test_results_and_errors_of_workers(spark: Any) -> None:
    """All results, more than one wave of them; an error is the worker's own, not Spark's."""
    with pipelines.engine(spark) as engine:
        assert sorted(engine.run(len, ["x" * n for n in range(20)])) == [(n, n) for n in range(20)]
        with pytest.raises(BadInput, match="'x' is not a size"):
            list(engine.run(parse_size, ["1k", "x", "2k"]))


def test_a_pipeline_that_fails_leaves_the_jobs_of_others(spark: Any) -> None:
    """The session may be the user's: only jobs of the pipeline are cancelled."""

    def slow(number: int) -> int:
        time.sleep(3)
        return number

    with ThreadPoolExecutor(1) as pool, pipelines.engine(spark) as engine:
        other = pool.submit(lambda: spark.sparkContext.parallelize([7], 1).map(slow).collect())
        time.sleep(1)
        with pytest.raises(BadInput, match="'x' is not a size"):
            list(engine.run(parse_size, ["x"]))
        assert other.result() == [7]


def test_verify_equals_ops(spark: Any, store: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(store, damaged)
    block = sorted((damaged / STREAMS / "ORDERS/msgs").glob("*.blk"))[2]
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 4
    block.write_bytes(content)
    found, alone = pipelines.verify(str(damaged), session=spark), verify_alone(str(damaged))
    local = parallel.verify(str(damaged))
    found.seconds = alone.seconds = local.seconds = 0
    assert found.to_dict() == alone.to_dict() == local.to_dict()
    assert alone.damage and len(alone.streams[0].blocks) > 5
    path = str(vectors.ROOT / "nats_streaming/0.25.6/slices")
    assert parallel.verify(path).to_dict() == verify_alone(path).to_dict()


def test_a_server_into_an_archive(spark: Any, store: Path, tmp_path: Path) -> None:
    """Workers read the server themselves; a second run has nothing to do; the replayed stream is what the store is."""
    lake = str(tmp_path / "lake")
    with TestServer(tmp_path / "js") as server:
        ServerVolume(read_access(server.url)).create("ORDERS", subjects=["orders.>"])
        into = pipelines.StreamTarget(read_access(server.url), "ORDERS", "replay")
        assert pipelines.replay(str(store), into, session=spark).stored == 997
        assert pipelines.archive(server.url, lake, session=spark, target_bytes=32768).rows == 997
        assert pipelines.archive(server.url, lake, session=spark).rows == 0
    with headrace.open(lake) as copied, headrace.open(str(store)) as volume:
        found = [(each.subject, each.data, each.header_map.get("N")) for each in copied.open("ORDERS")]
        assert found == [
            (each.subject, each.data, each.header_map.get("N")) for each in volume.open("ORDERS")
        ]
    assert pipelines.verify(lake, session=spark).exit_code == 0  # type: ignore[union-attr]


def test_names_that_spark_would_not_see(spark: Any, tmp_path: Path) -> None:
    """A topic like __consumer_offsets, and names with characters that paths and URLs treat their own way."""
    with headrace.open(str(tmp_path / "store"), mode="rw", create=True) as volume:
        for name in ("_HIDDEN", "A~B", "C%20D", "Ü"):
            log = volume.create(name, subjects=[name])
            volume.commit([log.append(headrace.batch(name, [b"1", b"2"]))])
    pipelines.archive(str(tmp_path / "store"), str(tmp_path / "lake"), session=spark, newest=True)
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 8
