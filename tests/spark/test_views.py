"""`view=`: the same facts as the library and the commands, for every layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.config.model import ConsumerConfig
from headrace.errors import BadInput
from headrace.layouts.base import Predicate
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.ops.look import inspect, verify
from headrace.spark.planning import ScanPartition, rows
from headrace.spark.versions import check_java
from tests.spark.test_layouts import STORES as OTHERS
from tests.support import vectors
from tests.support.kafka import copy_damaged

STORES = {"jetstream": "jetstream/2.15.2/store", **OTHERS}
EVENTS = "$JS.EVENT.METRIC.CONSUMER.ACK.ORDERS.work"


def view(spark: Any, path: object, name: str, **options: object) -> Any:
    return spark.read.format("headrace").options(view=name, **options).load(str(path))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 orders on 7 subjects in many blocks, a consumer in the middle, and a stream of events."""
    path = tmp_path_factory.mktemp("views") / "store"
    with headrace.open(str(path), mode="rw", create=True, block_bytes=64 << 10) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        for start in range(0, 4000, 200):
            subjects = [f"orders.{(start + at) % 7}" for at in range(200)]
            data = [f"order {start + at}".encode() * 20 for at in range(200)]
            times = [1_790_000_000_000_000_000 + (start + at) * 1_000_000_000 for at in range(200)]
            orders.append(headrace.Batch.build(subjects, data, None, times))
        work = orders.consumer_store("work", ConsumerConfig(durable_name="work", ack_policy="explicit"))
        for seq in range(1, 11):
            work.update_delivered(seq, seq, 1, 1_790_000_000_000_000_000)
        for seq in (1, 2, 3, 5):
            work.update_acks(seq, seq)
        work.commit()
        events = volume.create("EVENTS", subjects=["$JS.EVENT.>"])
        events.append(headrace.batch(EVENTS, [ack(at) for at in range(50)]))
        advisory = b'{"type":"io.nats.jetstream.advisory.v1.max_deliver","stream":"ORDERS","consumer":"work","stream_seq":9,"deliveries":5}'
        events.append(headrace.batch("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.ORDERS.work", [advisory]))
        events.append(headrace.batch("$JS.EVENT.ADVISORY.API", [b"this is no JSON"]))
    return path


def ack(at: int) -> bytes:
    event = {
        "type": "io.nats.jetstream.metric.v1.consumer_ack",
        "id": f"id{at}",
        "timestamp": f"2026-11-16T08:00:{at % 60:02d}.123456789Z",
        "stream": "ORDERS",
        "consumer": "work",
        "consumer_seq": at + 1,
        "stream_seq": at + 1,
        "ack_time": 1_000_000 + at,
        "deliveries": 1,
        "domain": {"not": "a text"} if at == -1 else "hub",
    }
    return json.dumps(event).encode()


@pytest.mark.parametrize("as_of", [None, 15])
def test_latest_per_subject(spark: Any, store: Path, as_of: int | None) -> None:
    options = {} if as_of is None else {"asOfSequence": as_of}
    found = {
        row.subject: (row.seq, bytes(row.data))
        for row in view(spark, store, "latest_per_subject", stream="ORDERS", **options).collect()
    }
    expected: dict[str, tuple[int, bytes]] = {}
    with headrace.open(str(store)) as volume:
        for record in volume.open("ORDERS"):
            if as_of is None or record.seq <= as_of:
                expected[record.subject] = (record.seq, record.data or b"")
    assert found == expected and len(found) == 7


def test_latest_honours_subjects_times_and_columns(spark: Any, store: Path) -> None:
    options = {
        "stream": "ORDERS",
        "subjects": "orders.3,orders.4",
        "asOfTime": "1790000000000000000",
        "columns": "seq",
    }
    assert view(spark, store, "latest_per_subject", **options).collect() == []
    options["asOfTime"] = str(1_790_000_000_000_000_000 + 20 * 1_000_000_000)
    assert sorted(row.seq for row in view(spark, store, "latest_per_subject", **options).collect()) == [
        18,
        19,
    ]


@pytest.mark.parametrize("layout", STORES)
def test_latest_of_every_layout(spark: Any, layout: str) -> None:
    path = golden(layout)
    found = {
        (row["log"], row.subject): row.seq
        for row in view(spark, path, "latest_per_subject", columns="log,subject,seq").collect()
    }
    expected: dict[tuple[str, str], int] = {}
    with headrace.open(str(path)) as volume:
        for name in volume.logs():
            for record in volume.open(name):
                expected[name, record.subject] = record.position
    assert found == expected and found


def golden(layout: str) -> Path:
    return vectors.ROOT / STORES[layout]


def keys(findings: Iterable[Any]) -> set[tuple[Any, ...]]:
    return {(each.file, each.offset, each.length, each.kind, each.detail) for each in findings}


@pytest.mark.parametrize("layout", STORES)
def test_verify_of_sound_directories(spark: Any, layout: str) -> None:
    path = golden(layout)
    rows = view(spark, path, "verify").collect()
    report = verify(str(path))
    assert keys(each for row in rows for each in row.findings) == keys(report.damage)
    assert all(row.ok == (not row.findings and row.problem is None) for row in rows)
    assert sum(row.messages for row in rows if row.kind in ("stream", "log")) == report.messages > 0


def test_verify_and_damage_show_what_the_command_shows(spark: Any, store: Path, tmp_path: Path) -> None:
    broken = tmp_path / "store"
    shutil.copytree(store, broken)
    blocks = sorted((broken / "jetstream").rglob("ORDERS/msgs/*.blk"), key=lambda path: int(path.stem))
    for block in blocks[1:3]:
        data = bytearray(block.read_bytes())
        data[len(data) // 2] ^= 0x40
        block.write_bytes(data)
    index = blocks[0].parent / "index.db"
    index.write_bytes(index.read_bytes()[:-3])
    report = verify(str(broken))
    rows = view(spark, broken, "verify", targetPartitionBytes=1).collect()
    assert (
        keys(each for row in rows for each in row.findings) == keys(report.damage) and len(report.damage) >= 3
    )
    by_file = {row.file: row for row in rows if row.kind == "block"}
    assert {file for file, row in by_file.items() if not row.ok} >= {str(block) for block in blocks[1:3]}
    for facts in report.streams[1].blocks:
        row = by_file[facts.file]
        assert (row.first_seq, row.messages, row.bytes) == (facts.first_seq, facts.messages, facts.file_bytes)
    damage = view(spark, broken, "damage").collect()
    assert keys(damage) == keys(report.damage)
    only = view(spark, broken, "verify", stream="EVENTS").collect()
    assert {row["log"] for row in only} == {"EVENTS"} and all(row.ok for row in only)


def test_damage_of_kafka(spark: Any, tmp_path: Path) -> None:
    path, _ = copy_damaged(_kafka_case(), tmp_path)
    expected = verify(str(path)).damage
    assert keys(view(spark, path, "damage").collect()) == keys(expected) and expected


def _kafka_case() -> str:
    return sorted(vectors.load("kafka", "4.3.1").manifest["damaged"])[0]


def test_consumers(spark: Any, store: Path) -> None:
    (row,) = view(spark, store, "consumers", stream="ORDERS").collect()
    assert (row.consumer, row.kind, row.durable) == ("work", "pull", True)
    assert (row.delivered, row.ack_floor, row.pending, row.oldest_pending) == (10, 3, 6, 4)
    assert row.lag == 3990 and row.redelivered == 0


def test_consumers_of_other_layouts(spark: Any, tmp_path: Path) -> None:
    """NATS Streaming's by the inspector; Kafka's and RabbitMQ's by what was written."""
    path = golden("nats_streaming")
    found = {
        (row["log"], row.consumer): (row.delivered + 1, row.ack_floor, row.pending)
        for row in view(spark, path, "consumers").collect()
    }
    logs = inspect(str(path)).logs
    assert found == {
        (log.name, it.name): (it.next, it.floor or 0, it.pending) for log in logs for it in log.cursors
    }
    assert found
    with headrace.open(str(tmp_path / "kafka"), "rw", create=True, layout="kafka") as volume:
        assert isinstance(volume, KafkaVolume)
        volume.create("orders-0").append(headrace.Batch.build("orders", [b"x"] * 10, header_codec="kafka"))
        volume.write_offsets("billing", {"orders-0": 4})
    (row,) = view(spark, tmp_path / "kafka", "consumers", topic="orders-0").collect()
    assert (row.consumer, row.kind, row.delivered, row.ack_floor, row.lag) == ("billing", "group", 3, 3, 6)
    queues = view(spark, golden("rabbitmq"), "consumers").collect()
    assert queues and {row.kind for row in queues} == {"queue"}


def test_acks(spark: Any, store: Path) -> None:
    rows = {row.seq: row for row in view(spark, store, "acks").collect()}
    assert len(rows) == 52 and {row["log"] for row in rows.values()} == {"EVENTS"}
    first = rows[1]
    assert (first.kind, first.stream, first.consumer, first.consumer_seq) == (
        "consumer_ack",
        "ORDERS",
        "work",
        1,
    )
    assert (first.ack_time_ns, first.deliveries, first.time.microsecond) == (1_000_000, 1, 123456)
    assert first.time.isoformat().startswith("2026-11-16T08:00:00")
    assert (rows[51].kind, rows[51].deliveries, rows[51].stream_seq) == ("max_deliver", 5, 9)
    assert rows[51].ack_time_ns is None and rows[51].time == rows[51].stored
    assert rows[52].kind is None and rows[52].json == "this is no JSON"


def test_acks_stream(spark: Any, store: Path, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("headrace")
        .options(view="acks", columns="seq,kind", maxRowsPerTrigger=20)
        .load(str(store))
    )
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    kinds = [row.kind for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert len(kinds) == 52 and kinds.count("consumer_ack") == 50


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "lates"}, "expected one of log, latest_per_subject"),
        ({"view": "verify", "subjects": "a"}, "looks at whole files"),
        ({"view": "verify", "columns": "nope"}, "no column 'nope'"),
        ({"view": "consumers", "stream": "NOPE"}, "no log 'NOPE'"),
        ({"view": "acks", "stream": "ORDERS"}, "headrace pipeline health --setup"),
    ],
)
def test_refusals(spark: Any, store: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        spark.read.format("headrace").options(**options).load(str(store)).collect()


def test_tables_do_not_stream(spark: Any, store: Path) -> None:
    frame = spark.readStream.format("headrace").option("view", "verify").load(str(store))
    with pytest.raises(Exception, match=r"is a table, not a stream: use spark\.read"):
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_another_version_in_a_worker_says_so() -> None:

    part = ScanPartition([], Predicate())
    part.version = "0.0.9"
    with pytest.raises(
        BadInput,
        match=rf"driver has Headrace 0\.0\.9, this worker has {headrace.__version__}.*install the same",
    ):
        list(rows(part, ["seq"], "FAILFAST"))


def test_java_is_checked_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_java() >= 17
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"no Java in JAVA_HOME.*Spark needs Java 17"):
        check_java()
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    program.chmod(0o755)
    with pytest.raises(BadInput, match=r"is Java 8\. Spark needs Java 17"):
        check_java()
