"""`mode=`: damaged directories of every layout. What is sound is read byte for byte, what is not is never passed over in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.support import vectors
from tests.support.kafka import copy_damaged


def read(spark: Any, path: Path, mode: str | None, **options: object) -> Any:
    given = options if mode is None else {"mode": mode, **options}
    return spark.read.format("headrace").options(**given).load(str(path))


def flip(path: Path, at: int) -> None:
    """Two bytes: a single bit would be turned back where the format allows it."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x5A
    data[at + 1] ^= 0xA5
    path.write_bytes(data)


def jetstream(place: Path) -> tuple[Path, Path]:
    """(store, the file that is damaged): two records of one block."""
    path = place / "js"
    with headrace.open(str(path), "rw", create=True, block_bytes=64 << 10) as volume:
        log = volume.create("ORDERS", subjects=["orders.>"])
        log.append(
            headrace.batch(
                [f"orders.{at % 3}" for at in range(2000)], [b"order %d " % at * 9 for at in range(2000)]
            )
        )
    block = sorted(path.rglob("*.blk"), key=lambda each: int(each.stem))[1]
    data = block.read_bytes()
    for number in (800, 820):
        flip(block, data.index(b"order %d " % number) + 3)
    return path, block


def kafka(place: Path) -> tuple[Path, Path]:
    path, _ = copy_damaged("corrupt-mid", place)
    return path, sorted(path.rglob("00000000000000000000.log"))[0]


def streaming(place: Path) -> tuple[Path, Path]:
    path = Path(shutil.copytree(vectors.ROOT / "nats_streaming/0.25.6/bad-crc-middle-record", place / "stan"))
    return path, path / "orders" / "msgs.4.dat"


def rocketmq(place: Path) -> tuple[Path, Path]:
    path = Path(shutil.copytree(vectors.ROOT / "rocketmq/5.3.3/store", place / "rmq"))
    with headrace.open(str(path)) as volume:
        record = next(r for name in volume.logs() for r in volume.open(name) if len(r.data or b"") > 4)
    file = sorted((path / "commitlog").iterdir())[0]
    flip(file, file.read_bytes().index(record.data or b"") + 1)
    return path, file


def rabbitmq(place: Path) -> tuple[Path, Path]:
    path = Path(shutil.copytree(vectors.ROOT / "rabbitmq/3.10.8/clean_mixed", place / "rabbit"))
    file = max(path.rglob("*.rdq"), key=lambda each: each.stat().st_size)
    file.unlink()
    return path, file


def survivors(path: Path) -> set[tuple[str, int, str, bytes | None]]:
    with headrace.open(str(path)) as volume:
        return {(name, r.position, r.subject, r.data) for name in volume.logs() for r in volume.open(name)}


def plain(rows: list[Any]) -> set[tuple[str, int, str, bytes | None]]:
    return {(row["log"], row.seq, row.subject, None if row.data is None else bytes(row.data)) for row in rows}


@pytest.mark.parametrize("damaged", [jetstream, kafka, streaming, rocketmq, rabbitmq])
def test_every_layout(spark: Any, tmp_path: Path, damaged: Callable[[Path], tuple[Path, Path]]) -> None:
    path, file = damaged(tmp_path)
    expected = survivors(path)
    with pytest.raises(Exception, match=r"at byte \d+: found (bad-record|unsound-tail|missing)") as stopped:
        read(spark, path, None).collect()
    named = file.name if damaged is not rabbitmq else "queues"
    assert named in str(stopped.value) and "mode=PERMISSIVE" in str(stopped.value)
    rows = read(spark, path, "PERMISSIVE").collect()
    sound, broken = (
        [row for row in rows if row._corrupt is None],
        [row for row in rows if row._corrupt is not None],
    )
    assert plain(sound) == expected and len(sound) == len(expected) > 0
    assert broken and all(row.data is None and row.subject is None for row in broken)
    if damaged is not rabbitmq:
        assert {Path(row._corrupt.file).name for row in broken} == {file.name}
    assert all(row._corrupt.kind in ("bad-record", "unsound-tail", "missing") for row in broken)
    left = read(spark, path, "DROPMALFORMED").collect()
    assert plain(left) == expected and "_corrupt" not in left[0]


def test_the_lost_sequences_are_named(spark: Any, tmp_path: Path) -> None:
    path, block = jetstream(tmp_path)
    rows = read(spark, path, "PERMISSIVE", columns="_corrupt,seq").collect()
    broken = {row.seq: row._corrupt for row in rows if row._corrupt is not None}
    assert sorted(broken) == [801, 821]
    for seq, what in broken.items():
        assert (what.file, what.first_seq, what.next_seq) == (str(block), seq, seq + 1)
        record = block.read_bytes()[what.offset : what.offset + what.length]
        assert record.count(b"order %d " % (seq - 1)) == 8 and what.length == int.from_bytes(
            record[:4], "little"
        )
    # What was not asked for does not stop a query.
    assert read(spark, path, "FAILFAST", startingSequence=900).count() == 1101
    with pytest.raises(Exception, match=r"sequence 821"):
        read(spark, path, "FAILFAST", startingSequence=810).count()


def test_a_block_that_is_gone_is_found_by_the_checks(spark: Any, tmp_path: Path) -> None:
    path, block = jetstream(tmp_path)
    block.unlink()
    (row,) = spark.read.format("headrace").option("view", "damage").load(str(path)).collect()
    assert (row.file, row.kind, row.first_seq) == (str(block), "missing", 520)


def test_a_slice_with_nothing_left_in_it(spark: Any, tmp_path: Path) -> None:
    """No task reads it, but the channel's index tells what was there."""
    store = Path(shutil.copytree(vectors.ROOT / "nats_streaming/0.25.6/slices", tmp_path / "store"))
    whole = spark.read.format("headrace").load(str(store)).count()
    (store / "orders" / "msgs.3.dat").write_bytes(b"")
    with pytest.raises(Exception, match=r"msgs\.3\.dat: at byte 4.*sequence 7"):
        spark.read.format("headrace").load(str(store)).count()
    left = spark.read.format("headrace").option("mode", "DROPMALFORMED").load(str(store)).count()
    assert left == whole - 3


def test_streams_stop_too(spark: Any, tmp_path: Path) -> None:
    path, block = jetstream(tmp_path)

    def streamed(mode: str) -> int:
        query = (
            spark.readStream.format("headrace").option("mode", mode).load(str(path)).writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    with pytest.raises(Exception, match=rf"{block.name}: at byte"):
        streamed("FAILFAST")
    assert streamed("PERMISSIVE") == 2000 and streamed("DROPMALFORMED") == 1998


def test_refusals(spark: Any, tmp_path: Path) -> None:
    path, _ = jetstream(tmp_path)
    with pytest.raises(Exception, match="column _corrupt is needed"):
        read(spark, path, "PERMISSIVE", columns="seq").count()
    with pytest.raises(Exception, match="expected one of FAILFAST, PERMISSIVE, DROPMALFORMED"):
        read(spark, path, "SOMETIMES").count()
    with pytest.raises(Exception, match="no column '_corrupt'"):
        read(spark, path, "FAILFAST", columns="seq,_corrupt").count()


LAYOUT_COLUMNS = {
    "kafka/4.3.1/store": {"topic", "partition", "leader_epoch", "timestamp_type"},
    "rabbitmq/3.10.8/clean_mixed": {"vhost", "queue", "exchange", "routing_key", "persistent"},
    "rocketmq/5.3.3/store": {"topic", "queue_id", "commit_log_offset", "tags"},
    "nats_streaming/0.25.6/clean": {"channel", "reply"},
    "jetstream/2.15.2/store": {"stream", "msg_id"},
}


@pytest.mark.parametrize("store", LAYOUT_COLUMNS)
def test_layout_columns(spark: Any, store: str) -> None:
    """By name, each against what the library says of the same message."""
    path = vectors.ROOT / store
    frame = read(spark, path, None, layoutColumns="true")
    assert set(frame.columns) >= LAYOUT_COLUMNS[store]
    names = sorted(LAYOUT_COLUMNS[store])
    rows = read(spark, path, None, columns=",".join(["log", "seq", *names])).collect()
    with headrace.open(str(path)) as volume:
        records = {(name, r.position): r for name in volume.logs() for r in volume.open(name)}
        assert len(rows) == len(records)
        for row in rows:
            log, record = row["log"], records[row["log"], row.seq]
            texts = record.header_map
            if "partition" in names:
                assert f"{row.topic}-{row.partition}" == log
                assert row.leader_epoch is None or row.leader_epoch >= 0
                assert row.timestamp_type in ("CreateTime", "LogAppendTime")
            elif "queue_id" in names:
                assert f"{row.topic}-{row.queue_id}" == log and row.tags == next(
                    iter(texts.get("TAGS", [])), None
                )
            elif "vhost" in names:
                assert row.queue == log.rpartition("/")[2] and row.routing_key == record.subject
                assert row.exchange == next(iter(texts.get("amqp-exchange", [])), None)
                assert row.persistent == (texts.get("delivery-mode") == ["2"])
            elif "channel" in names:
                assert row.channel == log and row.reply == next(
                    iter(texts.get("Nats-Streaming-Reply", [])), None
                )
            else:
                assert row.stream == log and row.msg_id == next(iter(texts.get("Nats-Msg-Id", [])), None)
    if "commit_log_offset" in names:
        files = {int(file.name): file.read_bytes() for file in (path / "commitlog").iterdir()}
        for row in rows:
            start = max(each for each in files if each <= row.commit_log_offset)
            data, at = files[start], row.commit_log_offset - start
            body = records[row["log"], row.seq].data or b""
            size = int.from_bytes(data[at : at + 4], "big")
            # Magic, then the body; what is stored packed has its own bytes.
            assert data[at + 4 : at + 6] == b"\xda\xa3" and (body in data[at : at + size] or len(body) > size)
