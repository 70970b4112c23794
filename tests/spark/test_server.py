"""Spark and live servers: read, follow, write; files and server as one; secrets that never show."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

import headrace
from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.errors import BadInput
from headrace.spark.options import read_options
from headrace.spark.sink_options import read_sink_options
from headrace.spark.stream import FileStream
from headrace.testing.server import TestServer
from tests.support.peers import NatsServer

COUNT = 30_000


@pytest.fixture(scope="module", params=["headrace", "2.15.2"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("server")
    config = "authorization { user: ann, password: hush }"
    if request.param == "headrace":
        made: Any = TestServer(place / "js", config=config)
    else:
        made = NatsServer(request.param, place / "js", config=config)
    with made:
        made.access = read_access(made.url).with_secrets(user="ann", password="hush")
        made.options = {"url": made.url, "user": "ann", "password": "hush"}
        volume = ServerVolume(made.access)
        volume.create("ORDERS", subjects=["orders.>"])
        publish(made.access, 0, COUNT)
        yield made


def publish(access: Any, first: int, count: int, subject: str = "orders.{}") -> None:
    numbers = range(first, first + count)
    with Connection(access) as connection:
        publisher = Publisher(connection)
        heads = [b"NATS/1.0\r\nN: %d\r\n\r\n" % n if n % 4 == 0 else None for n in numbers]
        publisher.publish(
            headrace.batch([subject.format(n % 7) for n in numbers], [b"%d" % n for n in numbers], heads)
        )
        publisher.flush()


def reader(spark: Any, server: Any, **more: str) -> Any:
    return spark.read.format("headrace").options(**server.options, **more)


def test_rows_of_a_live_stream(spark: Any, server: Any) -> None:
    frame = reader(spark, server, stream="ORDERS", targetPartitionBytes="500000").load()
    assert frame.rdd.getNumPartitions() > 1
    rows = sorted(frame.collect(), key=lambda row: row.seq)
    assert [(row.seq, row.subject, bytes(row.data)) for row in rows] == [
        (n + 1, f"orders.{n % 7}", b"%d" % n) for n in range(COUNT)
    ]
    assert (
        rows[4].headers == {"N": ["4"]}
        and rows[5].headers is None
        and {row.log for row in rows} == {"ORDERS"}
    )
    some = reader(spark, server, stream="ORD*", subjects="orders.3,orders.5", columns="seq,subject")
    found = some.option("startingSequence", "101").option("endingSequence", "200").load().collect()
    assert sorted(found) == [(n + 1, f"orders.{n % 7}") for n in range(100, 200) if n % 7 in (3, 5)]
    text = frame._jdf.queryExecution().toString() + str(frame.explain)
    assert "hush" not in text and "ann" not in text.replace("Scan", "").replace("Planned", "")


def test_a_query_follows_and_writes_each_row_once(spark: Any, server: Any, tmp_path: Path) -> None:
    volume = ServerVolume(server.access)
    copy = volume.create("COPY", subjects=["copy.>"])
    before = volume.open("ORDERS").state().last_seq

    def run(name: str) -> Any:
        source = spark.readStream.format("headrace").options(
            **server.options, stream="ORDERS", maxRowsPerTrigger="12000", durable="spark-copy"
        )
        rows = source.load().withColumn("subject", f.regexp_replace("subject", "^orders", "copy"))
        rows = rows.filter("seq % 3 = 0").select("log", "seq", "subject", "data", "headers")
        sink = rows.writeStream.format("headrace").options(
            **server.options, stream="COPY", application="copier"
        )
        query = sink.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run("one")
    assert len(query.recentProgress) >= 2, "several batches"
    assert copy.state().messages == before // 3
    publish(server.access, before, 3_000)
    run("one")
    assert copy.state().messages == (before + 3_000) // 3
    run("two")  # another checkpoint: everything is read and written again
    assert copy.state().messages == (before + 3_000) // 3, "each row once"
    found = sorted(
        (row.seq, bytes(row.data)) for row in reader(spark, server, stream="COPY").load().collect()
    )
    assert sorted(int(data) for _, data in found) == list(range(2, before + 3_000, 3))
    progress = query.lastProgress["sources"][0]
    assert '"ORDERS"' in str(progress["endOffset"]) and "hush" not in str(query.recentProgress)
    with Connection(server.access) as connection:
        held = connection.api("CONSUMER.INFO.ORDERS.spark-copy")
    assert held["ack_floor"]["stream_seq"] >= before, "the durable stands where the query began its last run"


def test_rows_without_an_origin_are_numbered(spark: Any, server: Any, tmp_path: Path) -> None:
    log = ServerVolume(server.access).create("ROWS", subjects=["rows.>"])
    frame = spark.range(5_000).selectExpr("concat('rows.', id % 3) subject", "cast(id as string) data")
    for _ in range(2):
        writer = frame.repartition(3, "subject").write.format("headrace").mode("append")
        writer.options(**server.options, application="numbers").save()
        assert log.state().messages == 5_000
    frame.withColumn("msg_id", f.concat(f.lit("m"), "data")).coalesce(1).write.format("headrace").mode(
        "append"
    ).options(**server.options).save()
    assert log.state().messages == 10_000, "other ids are other messages"
    twins = spark.range(10).selectExpr("'L' log", "id div 2 seq", "'rows.x' subject", "'y' data").coalesce(1)
    with pytest.raises(Exception, match="several rows come from one message of L"):
        twins.write.format("headrace").mode("append").options(**server.options).save()


@pytest.mark.parametrize("ids", ["rows", "none"])
def test_a_named_stream_and_no_other(spark: Any, server: Any, ids: str) -> None:
    """A subject of another stream: nothing is written, anywhere."""
    volume = ServerVolume(server.access)
    named, other = volume.create("NAMED", subjects=["named.>"]), volume.open("ORDERS")
    before = (named.state().last_seq, other.state().last_seq)
    rows = spark.range(20).selectExpr("concat('x', id) as data").coalesce(1)

    def write(subject: str) -> None:
        sink = rows.write.format("headrace").mode("append").options(**server.options, ids=ids, stream="NAMED")
        sink.option("subject", subject).save()

    with pytest.raises(Exception, match=r"is no subject of stream NAMED, which takes named.>"):
        write("orders.x")
    assert (named.state().last_seq, other.state().last_seq) == before
    write(f"named.{ids}")
    assert (named.state().last_seq, other.state().last_seq) == (before[0] + 20, before[1])


def test_files_and_server_are_one_log(spark: Any, tmp_path: Path) -> None:
    with TestServer(tmp_path / "js") as server:
        access = read_access(server.url)
        live = ServerVolume(access).create("S", subjects=["orders.>"])
        publish(access, 0, 20_000)
        cold = tmp_path / "cold"
        server.stop()
        import shutil

        shutil.copytree(tmp_path / "js", cold)
        server.start()
        with Connection(access) as connection:
            connection.api("STREAM.PURGE.S", {"seq": 15_001})
        publish(access, 20_000, 10_000)
        options = {"url": server.url, "path": str(cold), "stream": "S"}
        rows = spark.read.format("headrace").options(**options).load().select("seq", "data").collect()
        assert sorted((row.seq, int(bytes(row.data))) for row in rows) == [(n + 1, n) for n in range(30_000)]
        read = read_options(options | {"maxRowsPerTrigger": "7000"})
        stream, seen = FileStream(read, ["seq"]), list[int]()
        offset = stream.initialOffset()
        while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
            for part in stream.partitions(offset, end):
                seen += [seq for batch in stream.read(part) for seq in batch.column("seq").to_pylist()]
            offset = end
        assert sorted(seen) == list(range(1, 30_001)), "no seam, nothing twice"
        with Connection(access) as connection:
            connection.api("STREAM.PURGE.S", {"seq": 25_001})
        with pytest.raises(BadInput, match="the files end at 20000, the server begins at 25001"):
            FileStream(read, ["seq"]).initialOffset()
        ServerVolume(access).delete("S")
        ServerVolume(access).create("S", subjects=["orders.>"])
        with pytest.raises(BadInput, match="another stream with this name"):
            FileStream(read, ["seq"]).initialOffset()
        assert live.name == "S"


def test_a_stream_survives_a_server_that_is_killed(spark: Any, tmp_path: Path) -> None:
    with TestServer(tmp_path / "js") as server:
        access = read_access(server.url)
        out = ServerVolume(access).create("OUT", subjects=["out"])
        ServerVolume(access).create("IN", subjects=["orders.>"])
        publish(access, 0, 60_000)
        source = spark.readStream.format("headrace").options(
            url=server.url, stream="IN", maxRowsPerTrigger="5000"
        )
        rows = source.load().selectExpr("log", "seq", "'out' subject", "data")
        sink = rows.writeStream.format("headrace").options(url=server.url, stream="OUT")
        query = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

        def trouble() -> None:
            for _ in range(2):
                time.sleep(2.0)
                server.kill()
                server.start()

        thread = threading.Thread(target=trouble)
        thread.start()
        query.awaitTermination()
        thread.join()
        found = spark.read.format("headrace").options(url=server.url, stream="OUT").load().collect()
        assert sorted(int(bytes(row.data)) for row in found) == list(range(60_000))
        assert out.name == "OUT"


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({}, ["subject", "data"], "give url="),
        ({"url": "h", "path": "p"}, ["subject", "data"], "one of the two"),
        ({"path": "p", "layout": "kafak"}, ["subject", "data"], "layout='kafak'"),
        ({"url": "h", "subjct": "x"}, ["data"], "did you mean 'subject'"),
        ({"url": "h"}, ["data"], "the column subject or the option subject"),
        ({"url": "h"}, ["subject"], "no column data"),
        ({"url": "h"}, ["subject", "data", "price"], "no place for a column 'price'"),
        ({"url": "h", "ids": "source"}, ["subject", "data"], "no columns log and seq"),
        ({"user": "u", "path": "p", "layout": "kafka"}, ["subject", "data"], "user is for a server"),
    ],
)
def test_what_a_sink_refuses(options: dict[str, str], columns: list[str], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        read_sink_options(options, columns)
