"""Logs that become one: merged by time, readers carried, the table truthful, overlapping streams refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import run
from headrace.config.model import ConsumerConfig
from headrace.errors import BadInput
from headrace.layouts.base import Log
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.ops.conversion import ConversionSpec, convert, joined_readers, joining

MS = 1_000_000
BEGIN = 1_700_000_000_000 * MS
PARTITIONS, EACH = 3, 400


def kafka(path: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Three partitions of one topic whose times lie among each other, with groups; (time, body) by log."""
    chance = random.Random(7)
    wanted: dict[str, list[tuple[int, bytes]]] = {}
    with KafkaVolume(str(path), mode="rw", create=True) as volume:
        for partition in range(PARTITIONS):
            name = f"orders-{partition}"
            # Milliseconds, with many that are equal in several partitions.
            times = sorted(BEGIN + chance.randrange(EACH) * MS for _ in range(EACH))
            bodies = [f"{partition}:{n}".encode() for n in range(EACH)]
            log = volume.create(name)
            for start in range(0, EACH, 50):
                part = slice(start, start + 50)
                volume.commit([log.append(headrace.batch("orders", bodies[part], times=times[part]))])
            wanted[name] = list(zip(times, bodies, strict=True))
        volume.write_offsets("billing", {"orders-0": 100, "orders-1": 250, "orders-2": 40})
        volume.write_offsets("late", {"orders-1": 10})
    return wanted


def merged(wanted: dict[str, list[tuple[int, bytes]]]) -> list[tuple[int, bytes]]:
    """By time, then by log, then in the log's order."""
    rows = [
        (time, at, n, body) for at, log in enumerate(wanted.values()) for n, (time, body) in enumerate(log)
    ]
    return [(time, body) for time, _, _, body in sorted(rows)]


JOIN = ["orders-*=ORDERS"]


def test_by_time_with_the_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message once, in the order of time; a group stands where it stood in each partition."""
    wanted = kafka(tmp_path / "k")
    monkeypatch.setattr(joining, "READ_MESSAGES", 37)  # the order does not depend on how logs are read
    report = convert(str(tmp_path / "k"), str(tmp_path / "js"), "jetstream", ConversionSpec(rules=JOIN))
    expected = merged(wanted)
    with JetStreamVolume(str(tmp_path / "js")) as volume:
        store = volume.open("ORDERS")
        found = [(record.seq, record.time_ns, record.data) for record in store]
        assert found == [(at, time, body) for at, (time, body) in enumerate(expected, 1)]
        assert store.config.subjects == ("orders.0", "orders.1", "orders.2")
        # A consumer by start time gets what came then, and nothing twice.
        middle = expected[700][0]
        assert store.seq_from_time(middle) == 1 + next(
            at for at, (time, _) in enumerate(expected) if time >= middle
        )
        stood = {"billing": {"0": 100, "1": 250, "2": 40}, "late": {"1": 10}}
        for group, offsets in stood.items():
            state = store.consumers.state_of(group)
            open_ones = [
                at
                for at, (_, body) in enumerate(expected, 1)
                if int(body.split(b":")[1]) >= offsets.get(body.split(b":")[0].decode(), 0)
            ]
            delivered = max(set(range(1, len(expected) + 1)) - set(open_ones))
            assert state.delivered.stream == delivered
            assert list(state.pending) == [at for at in open_ones if at < delivered]
            assert state.ack_floor.stream == open_ones[0] - 1
    assert report.logs[0].readers == ["billing", "late"] and report.verified
    assert len({log.source_hash for log in report.logs}) == PARTITIONS
    rows = {row.what: (row.fate, row.how) for row in report.losses}
    assert rows["offsets in ORDERS"] == ("changed", "sequences are numbered anew from 1 without gaps")
    assert "offsets" not in rows and "readers" not in rows
    assert rows["order in ORDERS"][1].startswith("merged by time")
    assert rows["readers of ORDERS"][0] == "changed"


def test_one_after_the_other_with_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = kafka(tmp_path / "k")
    words = ["convert", str(tmp_path / "k"), str(tmp_path / "js"), "--to", "jetstream", "--map", JOIN[0]]
    assert run([*words, "--order", "log", "--dry-run"]) == 0
    assert "order in ORDERS: one log after the other: times go back" in capsys.readouterr().out
    assert run([*words, "--order", "backwards"]) == 2 and "known are: time, log" in capsys.readouterr().err
    assert run([*words, "--order", "log"]) == 0
    with headrace.open(str(tmp_path / "js")) as volume:
        assert [record.data for record in volume.open("ORDERS")] == [
            body for log in wanted.values() for _, body in log
        ]


@pytest.mark.parametrize("target", ["jetstream", "kafka", "nats_streaming", "rocketmq", "rabbitmq"])
def test_interrupted_it_goes_on(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same order in every run, also when logs are read in other pieces."""
    expected = [body for _, body in merged(kafka(tmp_path / "k"))]
    name = {"kafka": "all-0", "rocketmq": "all-0"}.get(target, "all")

    class Stop(Exception):
        pass

    def report_progress(done: int, _total: int) -> None:
        if done > PARTITIONS * EACH // 2:
            raise Stop

    monkeypatch.setattr(joining, "READ_MESSAGES", 90)
    with pytest.raises(Stop):
        convert(
            str(tmp_path / "k"),
            str(tmp_path / "out"),
            target,
            ConversionSpec(rules=[f"orders-*={name}"]),
            progress=report_progress,
        )
    monkeypatch.setattr(joining, "READ_MESSAGES", 55)
    report = convert(
        str(tmp_path / "k"), str(tmp_path / "out"), target, ConversionSpec(rules=[f"orders-*={name}"])
    )
    assert report.resumed and report.verified
    assert 0 < sum(log.copied for log in report.logs) < PARTITIONS * EACH
    with headrace.open(str(tmp_path / "out")) as volume:
        assert [record.data for record in volume.open(name)] == expected


def test_groups_between_directories_of_kafka(tmp_path: Path) -> None:
    """The log of their offsets is copied; for a log of another name they are written anew."""
    kafka(tmp_path / "k")
    same = convert(str(tmp_path / "k"), str(tmp_path / "same"), "kafka")
    assert same.verified and ("readers", "kept") in [(row.what, row.fate) for row in same.losses]
    report = convert(
        str(tmp_path / "k"), str(tmp_path / "one"), "kafka", ConversionSpec(rules=["orders-*=all-0"])
    )
    assert next(log for log in report.logs if log.target == "all-0").readers == ["billing", "late"]
    for path in ("same", "one"):
        with KafkaVolume(str(tmp_path / path)) as volume:
            at = {key: it.next for key, it in volume.committed().items() if key[0] == "billing"}
            assert [at["billing", f"orders-{n}"] for n in range(3)] == [100, 250, 40]
            if path == "one":
                bodies = [(record.data or b"").split(b":") for record in volume.open("all-0")]
                open_ones = [n for n, (log, at) in enumerate(bodies) if int(at) >= (100, 250, 40)[int(log)]]
                assert at["billing", "all-0"] == open_ones[0]


def test_more_unacked_messages_than_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on at the first of them: some come again, none is missed."""
    kafka(tmp_path / "k")
    monkeypatch.setattr(joined_readers, "PENDING_MAX", 20)
    report = convert(str(tmp_path / "k"), str(tmp_path / "js"), "jetstream", ConversionSpec(rules=JOIN))
    with JetStreamVolume(str(tmp_path / "js")) as volume:
        store = volume.open("ORDERS")
        state = store.consumers.state_of("billing")
        acked = {"0": 100, "1": 250, "2": 40}
        first = next(
            record.seq
            for record in store
            if int((record.data or b"").split(b":")[1]) >= acked[(record.data or b"").split(b":")[0].decode()]
        )
        assert (state.delivered.stream, dict(state.pending)) == (first - 1, {})
    assert any("come again" in note for note in report.logs[0].notes)


def test_a_reader_of_one_of_the_logs(tmp_path: Path) -> None:
    """Its filter is that log's subject; without filters in the target it is named and left out."""
    with headrace.open(str(tmp_path / "stan"), "rw", create=True, layout="nats_streaming") as volume:
        from headrace.layouts.nats_streaming.protos import SubState

        for name in ("a", "b"):
            channel: Any = volume.create(name)
            times = [BEGIN + n * 2 * MS + (name == "b") * MS for n in range(10)]
            volume.commit([channel.append(headrace.batch(name, [b"%d" % n for n in range(10)], times=times))])
        state = SubState(client_id="me", durable_name="d", is_durable=True, last_sent=4, ack_wait_s=30)
        subscriptions = volume.open("a").subscriptions  # type: ignore[attr-defined]
        subscriptions.create(state)
        subscriptions.commit()
    report = convert(
        str(tmp_path / "stan"), str(tmp_path / "js"), "jetstream", ConversionSpec(rules=["*=ALL"])
    )
    assert report.logs[0].readers == ["d"]
    with JetStreamVolume(str(tmp_path / "js")) as made:
        store = made.open("ALL")
        assert store.consumers.get("d").config.filters == ("a",)
        # Four of `a` were acked: sequences 1, 3, 5, 7 of the joined stream.
        assert (store.consumers.state_of("d").delivered.stream, store.consumers.state_of("d").pending) == (
            7,
            {},
        )
    report = convert(
        str(tmp_path / "stan"), str(tmp_path / "one"), "nats_streaming", ConversionSpec(rules=["*=all"])
    )
    assert report.logs[0].readers == [] and "reader d reads a only" in report.logs[0].notes[-1]


def test_consumers_of_streams_that_are_joined(tmp_path: Path) -> None:
    """Each goes on reading its own stream's subjects."""
    with JetStreamVolume(str(tmp_path / "js"), mode="rw", create=True) as volume:
        for name in ("A", "B"):
            store = volume.create(name, subjects=[f"{name}.>"])
            times = [BEGIN + n * 2 * MS + (name == "B") * MS for n in range(10)]
            store.commit(
                store.append(headrace.batch(f"{name}.x", [b"%d" % n for n in range(10)], times=times)).mark
            )
        consumer = volume.open("B").consumer_store(
            "C", ConsumerConfig(durable_name="C", ack_policy="explicit")
        )
        for seq in (1, 2, 3):
            consumer.update_delivered(seq, seq, 1, BEGIN)
            consumer.update_acks(seq, seq)
        consumer.commit()
    report = convert(
        str(tmp_path / "js"), str(tmp_path / "one"), "jetstream", ConversionSpec(rules=["*=ALL"])
    )
    assert report.logs[0].readers == ["C"]
    with JetStreamVolume(str(tmp_path / "one")) as volume:
        store = volume.open("ALL")
        assert store.consumers.get("C").config.filters == ("B.>",)
        assert store.consumers.state_of("C").delivered.stream == 6 and store.config.subjects == ("A.>", "B.>")
    # With other subjects the configuration has those.
    convert(
        str(tmp_path / "js"), str(tmp_path / "moved"), "jetstream", ConversionSpec(subject="new.{subject}")
    )
    with JetStreamVolume(str(tmp_path / "moved")) as volume:
        assert [volume.open(name).config.subjects for name in "AB"] == [("new.A.x",), ("new.B.x",)]
        assert volume.open("B").consumers.names() == ["C"]


def test_an_empty_log_becomes_a_stream_with_its_subject(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path / "k"), "rw", create=True, layout="kafka") as volume:
        volume.create("empty-0")
    convert(str(tmp_path / "k"), str(tmp_path / "js"), "jetstream")
    with JetStreamVolume(str(tmp_path / "js")) as made:
        assert made.open("empty-0").config.subjects == ("empty.0",)


def test_streams_that_would_take_one_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything is written, in a dry run too, as a server refuses the second stream."""
    kafka(tmp_path / "k")
    words = ["convert", str(tmp_path / "k"), str(tmp_path / "js"), "--to", "jetstream"]
    for subject, text in (
        ("{subject}", "streams orders-0 and orders-1 would both take orders: subjects overlap"),
        ("all", "would both take all: subjects overlap"),
        ("x.{subject}", "would both take x.orders: subjects overlap"),
    ):
        for more in ((), ("--dry-run",)):
            assert run([*words, "--subject", subject, *more]) == 2
            assert text in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["k"]
    assert run([*words, "--subject", "{subject}.{partition}", "--dry-run"]) == 0
    assert run([*words, "--subject", "{subject}", "--map", JOIN[0]]) == 0
    # A stream that is there already counts too.
    with JetStreamVolume(str(tmp_path / "there"), mode="rw", create=True) as volume:
        volume.create("OTHER", subjects=["orders.>"])
    with pytest.raises(BadInput, match=r"OTHER.*subjects overlap"):
        convert(str(tmp_path / "k"), str(tmp_path / "there"), "jetstream")


def test_options_of_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked in a dry run as well; queues become work queues."""
    with headrace.open(str(tmp_path / "rabbit"), "rw", create=True, layout="rabbitmq") as volume:
        volume.commit([volume.create("jobs").append(headrace.batch("jobs", [b"1", b"2"]))])
    words = ["convert", str(tmp_path / "rabbit"), str(tmp_path / "js"), "--to", "jetstream"]
    for option, text in (
        ("retention=interest", "Invalid enum value 'interest'"),
        ("retain=workqueue", "streams that are made here take: retention, compression"),
        ("num_replicas=many", "option: Expected `int`"),
    ):
        assert run([*words, "-o", option, "--dry-run"]) == 2
        assert text in capsys.readouterr().err
    kafka_words = ["convert", str(tmp_path / "rabbit"), str(tmp_path / "k"), "--to", "kafka", "--dry-run"]
    assert run([*kafka_words, "-o", "segment.byte=1"]) == 2 and "unknown option" in capsys.readouterr().err
    assert run([*kafka_words, "-o", "segment.bytes=1000000"]) == 0
    capsys.readouterr()
    assert run([*words, "-o", "retention=workqueue", "-o", "compression=s2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["logs"][0]["positions"] == "shifted"
    with JetStreamVolume(str(tmp_path / "js"), mode="rw") as volume:
        store = volume.open("jobs")
        assert (store.config.retention, store.config.compression) == ("workqueue", "s2")
        assert [record.data for record in store] == [b"1", b"2"]


def test_readers_are_not_carried_into_a_work_queue(tmp_path: Path) -> None:
    kafka(tmp_path / "k")
    report = convert(
        str(tmp_path / "k"),
        str(tmp_path / "js"),
        "jetstream",
        ConversionSpec(rules=JOIN, options={"retention": "workqueue"}),
    )
    assert ("readers", "lost") in [(row.what, row.fate) for row in report.losses]
    with JetStreamVolume(str(tmp_path / "js")) as volume:
        store: Log = volume.open("ORDERS")
        assert isinstance(store, FileStreamStore) and store.consumers.names() == []
