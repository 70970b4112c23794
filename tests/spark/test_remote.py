"""`path=` on an object store: the same rows as from the local directory, over a real S3 protocol on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client import Connection, Publisher, read_access
from headrace.errors import HeadraceError
from headrace.layouts import remote_files
from headrace.ops.archive import ArchiveOptions, archive
from headrace.ops.replay import DirectoryTarget
from headrace.spark import pipelines
from headrace.spark.options import read_options
from headrace.spark.planning import parts, rows
from headrace.testing.server import TestServer
from tests.support import vectors
from tests.support.s3 import S3Server

STORES = {
    "jetstream": "jetstream/2.9.10/store",
    "nats_streaming": "nats_streaming/0.25.6/clean",
    "kafka": "kafka/3.9.2/store",
    "rocketmq": "rocketmq/5.3.3/store",
    "rabbitmq": "rabbitmq/3.10.8/clean_mixed",
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def table(spark: Any, path: str, **options: str) -> list[tuple[Any, ...]]:
    """Every row, as plain values, in an order of their own."""
    rows = spark.read.format("headrace").options(**options).load(path).collect()
    return sorted((tuple(row) for row in rows), key=repr)


@pytest.mark.parametrize("layout", STORES)
def test_rows_equal_the_local_directory(spark: Any, s3: S3Server, layout: str) -> None:
    local = vectors.ROOT / STORES[layout]
    s3.upload(local, f"golden/{layout}")
    far = s3.uri(f"golden/{layout}", "s3a" if layout == "kafka" else "s3")
    expected = table(spark, str(local), layoutColumns="true")
    assert table(spark, far, layoutColumns="true") == expected and len(expected) > 5
    assert table(spark, far, columns="seq,log") == table(spark, str(local), columns="seq,log")


def make(path: Path, first: int = 0, count: int = 3000, stream: str = "ORDERS") -> None:
    """Messages added to a store with small blocks."""
    new = not path.exists()
    with headrace.open(str(path), mode="rw", create=new, block_bytes=64 << 10) as volume:
        log = volume.create(stream, subjects=["orders.>"]) if new else volume.open(stream)
        texts = [b"%05d " % at * 20 for at in range(first, first + count)]
        log.append(headrace.batch([f"orders.{at % 7}" for at in range(count)], texts))


def test_views_patterns_and_archives(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    one, two, lake = tmp_path / "in" / "one", tmp_path / "in" / "two", tmp_path / "lake"
    make(one)
    make(two, 5000, 100)
    archive(str(one), str(lake), ArchiveOptions(newest=True))
    s3.upload(tmp_path, "views")
    far = s3.uri("views/in/one")
    for view in ("latest_per_subject", "consumers"):
        assert table(spark, far, view=view) == table(spark, str(one), view=view)
    checked = spark.read.format("headrace").option("view", "verify").load(far).collect()
    assert (
        all(row.ok for row in checked) and sum(row.messages for row in checked if row.kind == "block") == 3000
    )
    assert all(row.file.startswith("s3://views;endpoint_override=") for row in checked)
    both = table(spark, s3.uri("views/in/*"), columns="seq,data")
    assert both == table(spark, str(tmp_path / "in" / "*"), columns="seq,data") and len(both) == 3100
    assert table(spark, s3.uri("views/lake")) == table(spark, str(lake)) == table(spark, str(one))
    some = {"startingSequence": "2990", "subjects": "orders.3"}
    assert (
        table(spark, s3.uri("views/lake"), **some)
        == table(spark, far, **some)
        == table(spark, str(one), **some)
    )
    assert all(
        row.ok
        for row in spark.read.format("headrace").option("view", "verify").load(s3.uri("views/lake")).collect()
    )


def test_pipelines_from_a_remote_source(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    store, lake = tmp_path / "in" / "store", str(tmp_path / "lake")
    make(store)
    s3.upload(store, "pipelines/store")
    far = s3.uri("pipelines/store")
    report = pipelines.verify(far, session=spark)
    assert report.sound and report.messages == 3000
    assert pipelines.archive(far, lake, session=spark, newest=True).rows_all == 3000
    s3.upload(Path(lake), "pipelines/lake")
    target = DirectoryTarget(str(tmp_path / "again"), "jetstream")
    assert pipelines.replay(s3.uri("pipelines/lake"), target, session=spark).stored == 3000
    assert table(spark, str(tmp_path / "again"), columns="seq,data") == table(spark, far, columns="seq,data")


def test_requests_for_each_block(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store)
    blocks = len(list(store.glob("jetstream/$G/streams/ORDERS/msgs/*.blk")))
    s3.upload(store, "counted/store")
    s3.requests()
    assert len(table(spark, s3.uri("counted/store"))) == 3000
    requests = s3.requests()
    # How large it is, and its bytes. Blocks have guards beside them, for which the same holds.
    of_blocks = [each for each in requests if each.endswith((".blk", ".guard"))]
    assert blocks > 5 and len(of_blocks) == 2 * 2 * blocks, requests
    assert len(requests) - len(of_blocks) <= 30, requests


def test_a_stream_sees_new_files(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    store, out, mark = tmp_path / "store", str(tmp_path / "out"), str(tmp_path / "mark")
    for first, count in ((0, 1000), (1000, 700)):
        make(store, first, count)
        s3.upload(store, "stream/store")
        frame = (
            spark.readStream.format("headrace")
            .option("maxRowsPerTrigger", "800")
            .load(s3.uri("stream/store"))
        )
        writer = frame.select("seq", "data").writeStream.format("parquet").option("checkpointLocation", mark)
        query = writer.trigger(availableNow=True).start(out)
        assert query.awaitTermination(120) and query.exception() is None
        rows = spark.read.parquet(out).collect()
        assert sorted(row.seq for row in rows) == list(range(1, first + count + 1))


def test_remote_files_and_a_server_are_one_log(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    make(tmp_path / "js", count=2000, stream="S")
    s3.upload(tmp_path / "js", "hybrid/store")
    with TestServer(tmp_path / "js") as server:
        with Connection(read_access(server.url)) as connection:
            publisher = Publisher(connection)
            publisher.publish(headrace.batch("orders.1", [b"%05d " % at * 20 for at in range(2000, 2500)]))
            publisher.flush()
            connection.api("STREAM.PURGE.S", {"seq": 1501})
        rows = table(spark, s3.uri("hybrid/store"), url=server.url, stream="S", columns="seq,data")
    assert rows == sorted(((at + 1, b"%05d " % at * 20) for at in range(2500)), key=repr)


def test_damage_names_the_remote_file(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store)
    block = sorted(store.glob("jetstream/$G/streams/ORDERS/msgs/*.blk"))[1]
    data = bytearray(block.read_bytes())
    data[2000:2100] = bytes(100)
    block.write_bytes(data)
    s3.upload(store, "damaged/store")
    far = s3.uri("damaged/store")
    with pytest.raises(
        Exception,
        match=rf"s3://damaged;endpoint_override=[0-9.:]+;region=us-east-1;scheme=http/store/.*/{block.name}: at byte \d+",
    ):
        table(spark, far)
    local, remote = (table(spark, path, mode="DROPMALFORMED") for path in (str(store), far))
    assert remote == local and 2900 < len(remote) < 3000


def test_refusals_are_one_line(spark: Any, s3: S3Server, tmp_path: Path) -> None:
    for path, text in {
        s3.uri("nobody-has-this/store"): "s3://nobody-has-this;.*NO_SUCH_BUCKET",
        s3.uri("golden/nowhere"): "s3://golden;.*nowhere: no such directory",
        s3.uri("golden/none-*"): "no directory fits",
        s3.uri("golden/kafka/meta.properties"): "s3://golden;.*meta.properties",
        "s3://AKIA:hunter2@golden/kafka": "a plan would show them",
    }.items():
        with pytest.raises(Exception, match=text) as refused:
            table(spark, path)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(Exception, match="headrace sink: path= on s3://: remote places are only read"):
        spark.range(1).selectExpr("cast(id as string) data", "'s' subject").write.format("headrace").options(
            path="s3://golden/out", layout="jetstream", log="S"
        ).mode("append").save()


class Failing:
    """A file system of pyarrow whose request number `fail` fails, once."""

    def __init__(self, root: Path) -> None:
        fs: Any = remote_files.arrow_fs
        self._inner, self.requests, self.fail = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem()), 0, 0

    def count(self) -> None:
        self.requests += 1
        if self.requests == self.fail:
            raise OSError("no answer")

    def get_file_info(self, what: Any) -> Any:
        self.count()
        return self._inner.get_file_info(what)

    def open_input_file(self, path: str) -> Any:
        self.count()
        return FailingFile(self, self._inner.open_input_file(path))


class FailingFile:
    def __init__(self, home: Failing, inner: Any) -> None:
        self._home, self._inner = home, inner

    def size(self) -> int:
        return self._inner.size()

    def read_at(self, count: int, offset: int) -> bytes:
        self._home.count()
        return self._inner.read_at(count, offset)


@pytest.mark.parametrize("layout", STORES)
def test_a_request_that_fails_is_never_a_gap(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    far = Failing(vectors.ROOT / STORES[layout])
    monkeypatch.setattr(remote_files, "file_system", lambda head: (far, ""))

    def read(fail: int) -> set[tuple[Any, ...]]:
        far.requests, far.fail = 0, fail
        options, columns = (
            read_options({"path": "s3://bucket", "mode": "DROPMALFORMED"}),
            ["log", "seq", "data"],
        )
        found = [
            batch
            for part in parts(options, options.predicate(), columns)
            for batch in rows(part, columns, options.mode)
        ]
        return {
            each
            for batch in found
            for each in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        }

    whole = read(0)
    count, errors = far.requests, 0
    for fail in range(1, count + 1, max(count // 60, 1)):
        try:
            assert read(fail) == whole, f"request {fail} of {count}"
        except HeadraceError as problem:
            assert "no answer" in str(problem)
            errors += 1
    assert len(whole) > 5 and errors > 5
