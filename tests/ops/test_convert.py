"""`convert` between any two layouts: what is kept, carried, renumbered, refused; interrupted and gone on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace._core import Batch
from headrace.cli.main import run
from headrace.config.model import ConsumerConfig
from headrace.errors import AlreadyExists, BadInput, Damaged
from headrace.layouts.base import ConsumerState, Log, SequencePair
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.registry import LAYOUTS
from headrace.ops import conversion
from headrace.ops.conversion import ConversionSpec, convert
from headrace.ops.conversion.mapping import default_log, make_mapping
from headrace.ops.conversion.worker_pool import independent
from headrace.record import format_kafka_headers
from tests.support import vectors

# Directories that the real products wrote.
REAL = {
    "jetstream": "jetstream/2.15.2/store",
    "nats_streaming": "nats_streaming/0.25.6/clean",
    "kafka": "kafka/4.3.1/store",
    "rocketmq": "rocketmq/5.3.3/store",
    "rabbitmq": "rabbitmq/3.10.8/clean_mixed",
}
Row = tuple[int, int, str, bytes | None, bytes | None, dict[str, list[str]]]


def row(record: headrace.Record) -> Row:
    return record.position, record.time_ns, record.subject, record.key, record.data, record.header_map


def rows(path: Path, name: str) -> list[Row]:
    with headrace.open(str(path)) as volume:
        return [row(record) for record in volume.open(name)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("source", LAYOUTS)
def test_from_a_real_directory_to_every_layout(source: str, threads: int, tmp_path: Path) -> None:
    """`convert` compares count and hash itself; here bodies are compared once more, by other means."""
    path = vectors.ROOT / REAL[source]
    options = {"isolation_level": "read_committed"} if source == "kafka" else {}
    with headrace.open(str(path), **options) as volume:
        wanted = {
            name: [r.data or b"" for r in volume.open(name) if not r.flags & 1] for name in volume.logs()
        }
    for target in LAYOUTS:
        report = convert(str(path), str(tmp_path / target), target, ConversionSpec(threads=threads))
        assert report.verified and not report.damage
        assert headrace.detect(str(tmp_path / target)) == target
        with headrace.open(str(tmp_path / target)) as volume:
            for log in report.logs:
                assert [r.data or b"" for r in volume.open(log.target)] == wanted[log.source], (
                    target,
                    log.source,
                )
        assert sum(map(len, wanted.values())) == report.messages > 5
        assert run(["verify", str(tmp_path / target)]) == 0
        assert [entry.name for entry in tmp_path.iterdir() if entry.suffix] == [], "nothing is left beside"


def kafka_store(path: Path) -> None:
    headers = [
        ("name", b"value"),
        ("name", b"again"),
        ("raw", b"\xff\x00\r\n"),
        ("none", None),
        ("a:b", b" x "),
    ]
    with headrace.open(str(path), "rw", create=True, layout="kafka") as volume:
        log = volume.create("orders-3")
        batch = Batch.build(
            "orders",
            [b"one", None, b"", b"four"],
            headers=[format_kafka_headers(headers), None, None, format_kafka_headers([])],
            times=[1_700_000_000_123_000_000 + n for n in range(4)],
            positions=[0, 1, 7, 8],
            keys=[b"k\x00\xff", b"", None, b"plain key"],
            header_codec="kafka",
        )
        volume.commit([log.append(batch, keep_positions=True)])


@pytest.mark.parametrize("through", ["jetstream", "rocketmq", "rabbitmq"])
def test_what_has_no_place_is_carried_and_comes_home(through: str, tmp_path: Path) -> None:
    kafka_store(tmp_path / "kafka")
    before = rows(tmp_path / "kafka", "orders-3")
    there = convert(str(tmp_path / "kafka"), str(tmp_path / "there"), through).logs[0]
    # The subject that the way there gave them is not worth carrying home.
    back = convert(
        str(tmp_path / "there"),
        str(tmp_path / "back"),
        "kafka",
        ConversionSpec(rules=["*=orders-3"], carry="no"),
    )
    after = rows(tmp_path / "back", back.logs[0].target)
    kept = [r[3:] for r in before]
    assert [r[3:] for r in after] == kept and len(kept) == 4
    if through != "rocketmq":
        assert [r[0] for r in after] == [0, 1, 7, 8] and there.positions in ("shifted", "kept")
        assert [r[1] for r in after] == [r[1] for r in before]


def test_subjects_of_a_stream_come_home(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path / "js"), "rw", create=True) as volume:
        store = volume.create("ORDERS", subjects=["orders.>"])
        subjects = [f"orders.{n % 3}" for n in range(20)]
        headers = [b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n" if n % 2 else None for n in range(20)]
        store.commit(store.append(headrace.batch(subjects, [b"%d" % n for n in range(20)], headers)).mark)
        store.commit(store.remove([1, 5, 20]).mark)
    before = rows(tmp_path / "js", "ORDERS")
    for through in ("kafka", "rabbitmq"):
        convert(str(tmp_path / "js"), str(tmp_path / through), through)
        back = convert(
            str(tmp_path / through),
            str(tmp_path / f"from-{through}"),
            "jetstream",
            ConversionSpec(rules=["ORDERS*=ORDERS"], subject="{subject}" if through == "rabbitmq" else None),
        )
        after = rows(tmp_path / f"from-{through}", "ORDERS")
        tick = 1_000_000 if through == "kafka" else 1
        cut = [(seq, at // tick, subject, data, head) for seq, at, subject, _, data, head in before]
        assert [(seq, at // tick, subject, data, head) for seq, at, subject, _, data, head in after] == cut
        with headrace.open(str(tmp_path / f"from-{through}")) as volume:
            made = volume.open("ORDERS")
            assert isinstance(made, FileStreamStore)
            assert set(made.config.subjects) == {"orders.0", "orders.1", "orders.2"}
        assert back.logs[0].positions == "shifted"


def test_keys_from_subjects(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path / "js"), "rw", create=True) as volume:
        store = volume.create("S", subjects=["s.>"])
        store.commit(store.append(headrace.batch(["s.a", "s.b"], [b"1", b"2"])).mark)
    convert(str(tmp_path / "js"), str(tmp_path / "k"), "kafka", ConversionSpec(carry="key"))
    assert [(r[3], r[5]) for r in rows(tmp_path / "k", "S-0")] == [(b"s.a", {}), (b"s.b", {})]


def test_groups_of_kafka_and_consumers(tmp_path: Path) -> None:
    """A group goes on where it stood; a consumer with open messages goes on at the first of them."""
    with KafkaVolume(str(tmp_path / "k"), mode="rw", create=True) as volume:
        volume.commit([volume.create("t-0").append(headrace.batch("t", [b"%d" % n for n in range(20)]))])
        volume.write_offsets("g.one", {"t-0": 7})
        volume.write_offsets("new", {"t-0": 0})
    report = convert(str(tmp_path / "k"), str(tmp_path / "js"), "jetstream")
    assert report.logs[0].readers == ["g_one", "new"] and len(report.logs) == 1
    with JetStreamVolume(str(tmp_path / "js"), mode="rw", maintenance=False) as volume:
        store = volume.open("t-0")
        assert store.consumers.state_of("g_one") == ConsumerState(SequencePair(7, 7), SequencePair(7, 7))
        assert store.load_msg(8).data == b"7"
        consumer = store.consumers.get("g_one")
        for seq in range(8, 13):
            consumer.update_delivered(seq, seq, 1, store.clock())
        consumer.update_acks(9, 9)
        consumer.commit()
    with KafkaVolume(str(tmp_path / "back"), mode="rw", create=True) as volume:
        volume.write_offsets("somebody", {"other-0": 1})
    back = convert(str(tmp_path / "js"), str(tmp_path / "back"), "kafka", ConversionSpec(rules=["*=t-0"]))
    assert back.logs[0].readers == ["g_one", "new"]
    assert "group" not in back.logs[0].notes[0] and "1 acked message(s)" in back.logs[0].notes[0]
    with KafkaVolume(str(tmp_path / "back")) as volume:
        at = {group: it.next for (group, log), it in volume.committed().items() if log == "t-0"}
        assert at == {"g_one": 7, "new": 0} and volume.open("t-0").read(7).first_position == 7
    fresh = convert(str(tmp_path / "js"), str(tmp_path / "fresh"), "kafka")
    assert "2 reader(s) not carried over (no __consumer_offsets" in fresh.logs[0].notes[0]


def test_a_stream_by_its_subjects(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path / "js"), "rw", create=True) as volume:
        store = volume.create("ORDERS", subjects=["orders.>"])
        subjects = [("orders.eu.new", "orders.us.new", "orders.eu.old", "orders.x")[n % 4] for n in range(40)]
        store.commit(store.append(headrace.batch(subjects, [b"%d" % n for n in range(40)])).mark)
    rules = ["ORDERS:orders.*.>={1}-0", "OTHER=o-1"]
    report = convert(str(tmp_path / "js"), str(tmp_path / "k"), "kafka", ConversionSpec(rules=rules))
    assert [(log.target, log.messages) for log in report.logs] == [
        ("eu-0", 20),
        ("us-0", 10),
        ("ORDERS-0", 10),
    ]
    found = {
        name: [(r[0], r[4]) for r in rows(tmp_path / "k", name)] for name in ("eu-0", "us-0", "ORDERS-0")
    }
    assert found["us-0"] == [(n, b"%d" % n) for n in range(1, 40, 4)]
    assert found["eu-0"] == [(n, b"%d" % n) for n in range(40) if n % 2 == 0]
    assert found["ORDERS-0"] == [(n, b"%d" % n) for n in range(3, 40, 4)]
    convert(
        str(tmp_path / "js"),
        str(tmp_path / "split"),
        "jetstream",
        ConversionSpec(rules=["ORDERS:orders.*.>={1}"]),
    )
    with JetStreamVolume(str(tmp_path / "split")) as volume:
        assert {name: volume.open(name).config.subjects for name in volume.logs()} == {
            "ORDERS": ("orders.x",), "eu": ("orders.eu.new", "orders.eu.old"), "us": ("orders.us.new",)
        }  # fmt: skip
    with pytest.raises(BadInput, match="is no subject"):
        convert(
            str(tmp_path / "js"), str(tmp_path / "no"), "kafka", ConversionSpec(rules=["ORDERS:a..b=x-0"])
        )


def test_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.open(str(tmp_path / "k"), "rw", create=True, layout="kafka") as volume:
        for name in ("orders-0", "orders-1", "bills.x-0", "bills_x-0"):
            volume.commit(
                [
                    volume.create(name).append(
                        headrace.batch("t", [name.encode() + b"%d" % n for n in range(3)])
                    )
                ]
            )
    with pytest.raises(BadInput, match=r"bills\.x-0, bills_x-0 would all be called 'bills_x-0'"):
        convert(str(tmp_path / "k"), str(tmp_path / "no"), "rocketmq")
    report = convert(
        str(tmp_path / "k"),
        str(tmp_path / "js"),
        "jetstream",
        ConversionSpec(rules=["orders-*=ORDERS", "bills.*-0=B_{1}"], subject="{topic}.p{partition}"),
    )
    assert [(log.target, log.positions) for log in report.logs] == [
        ("B_x", "shifted"), ("bills_x-0", "shifted"), ("ORDERS", "renumbered"), ("ORDERS", "renumbered")
    ]  # fmt: skip
    joined = rows(tmp_path / "js", "ORDERS")
    assert [(r[0], r[2], r[4]) for r in joined] == [
        (1 + n, f"orders.p{n // 3}", b"orders-%d%d" % (n // 3, n % 3)) for n in range(6)
    ]
    for bad in (["x"], ["=x"], ["*={nobody}"]):
        with pytest.raises(BadInput, match="--map"):
            convert(str(tmp_path / "k"), str(tmp_path / "no"), "jetstream", ConversionSpec(rules=bad))
    with pytest.raises(BadInput, match="no subject of their own"):
        make_mapping("jetstream", "kafka", [], "all.{subject}")
    assert make_mapping("jetstream", "kafka", [], "{subject}").subject_for("S") is None, "each keeps its own"
    assert not (tmp_path / "no").exists() and not (tmp_path / "no.convert").exists()
    assert default_log("rabbitmq", "jetstream", "vh/q 1.x") == "vh_q_1_x"
    assert run(["convert", str(tmp_path / "k"), str(tmp_path / "no"), "--to", "oracle"]) == 2
    assert "known are: jetstream" in capsys.readouterr().err


def test_a_dry_run_says_what_is_lost_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka_store(tmp_path / "kafka")
    arguments = [
        "convert",
        str(tmp_path / "kafka"),
        str(tmp_path / "out"),
        "--to",
        "nats_streaming",
        "--dry-run",
    ]
    assert run(arguments) == 0
    said = capsys.readouterr().out
    assert "lost    keys" in said and "lost    headers" in said and "orders-3 → orders.3" in said
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["verified"], report["dry_run"]) == (4, False, True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kafka"]


class Stop(Exception):
    """The conversion is interrupted."""


def stop_after(calls: int) -> Callable[[int, int], None]:
    def report_progress(_done: int, _total: int) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Stop

    return report_progress


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", LAYOUTS)
def test_interrupted_it_goes_on(
    target: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.open(str(tmp_path / "js"), "rw", create=True) as volume:
        for name in ("A", "B"):
            store = volume.create(name, subjects=[f"{name}.>"])
            for first in range(0, 3000, 100):
                store.append(headrace.batch(f"{name}.x", [b"%d" % (first + n) for n in range(100)]))
            store.commit()
            store.commit(store.remove([7, 8, 1500]).mark)
            config = ConsumerConfig(durable_name="C", ack_policy="explicit").filled()
            consumer = store.consumer_store("C", config)
            for seq in (1, 2, 3):
                consumer.update_delivered(seq, seq, 1, store.clock())
            consumer.update_acks(1, 1)
            consumer.update_acks(3, 3)
            consumer.commit()
    small = Log.batches

    def in_pieces(self: Log, predicate: object = None) -> object:
        for batch in small(self, predicate):  # type: ignore[arg-type]
            for start in range(0, len(batch), 700):
                yield batch.slice(start, min(start + 700, len(batch)))

    monkeypatch.setattr(FileStreamStore, "batches", in_pieces)
    out, attempts = tmp_path / "out", 0
    while attempts < 40:
        attempts += 1
        try:
            report = convert(
                str(tmp_path / "js"),
                str(out),
                target,
                ConversionSpec(threads=threads),
                progress=stop_after(2 * attempts),
            )
            break
        except Stop:
            assert not out.exists() and (tmp_path / "out.incomplete").is_dir()
            with pytest.raises(AlreadyExists, match="interrupted; repeat its command, or give --restart"):
                convert(str(tmp_path / "js"), str(out), target, ConversionSpec(carry="no"))
    assert attempts > 3 and report.resumed and report.verified
    assert [log.messages for log in report.logs] == [2997, 2997] and report.logs[0].copied < 2997
    with headrace.open(str(out)) as volume:
        for log in report.logs:
            assert [r.data for r in volume.open(log.target)] == [
                b"%d" % n for n in range(3000) if n not in (6, 7, 1499)
            ]
            if target in ("jetstream", "nats_streaming"):
                assert log.readers == ["C"]
                made = volume.open(log.target)
                cursors = made.consumers if isinstance(made, FileStreamStore) else made.subscriptions  # type: ignore[attr-defined]
                state = cursors.state_of(cursors.names()[0])
                assert (state.delivered.stream, state.ack_floor.stream, list(state.pending)) == (3, 1, [2])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["js", "out"]


def test_restart_and_what_is_refused(tmp_path: Path) -> None:
    kafka_store(tmp_path / "kafka")
    out = tmp_path / "out"
    with pytest.raises(Stop):
        convert(str(tmp_path / "kafka"), str(out), "jetstream", progress=stop_after(0))
    report = convert(
        str(tmp_path / "kafka"), str(out), "jetstream", ConversionSpec(restart=True, subject="other")
    )
    assert not report.resumed and {r[2] for r in rows(out, "orders-3")} == {"other"}
    with pytest.raises(AlreadyExists, match="orders-3 holds 4 messages"):
        convert(str(tmp_path / "kafka"), str(out), "jetstream")
    (tmp_path / "out.convert").unlink()
    again = convert(
        str(tmp_path / "kafka"), str(out), "jetstream", ConversionSpec(rules=["*=SECOND"], subject="second")
    )
    assert again.verified and len(rows(out, "SECOND")) == 4 == len(rows(out, "orders-3"))
    with pytest.raises(AlreadyExists, match="a NATS JetStream directory"):
        convert(str(tmp_path / "kafka"), str(out), "rabbitmq")
    with pytest.raises(BadInput, match="outside the source"):
        convert(str(tmp_path / "kafka"), str(tmp_path / "kafka" / "in"), "jetstream")


def test_a_target_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message too few in the copy: the comparison says so, and no directory gets the name."""
    kafka_store(tmp_path / "kafka")
    append = conversion.run._append

    def lossy(log: Log, batch: Batch, keep: bool) -> object:
        return append(log, batch.slice(0, len(batch) - 1), keep)

    monkeypatch.setattr(conversion.run, "_append", lossy)
    with pytest.raises(Damaged, match=r"holds 3 messages.*expected 4 messages of orders-3"):
        convert(str(tmp_path / "kafka"), str(tmp_path / "out"), "jetstream")
    assert not (tmp_path / "out").exists()


def test_damage_in_the_source_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = vectors.ROOT / "nats_streaming/0.25.6/bad-crc-middle-record"
    assert run(["convert", str(path), str(tmp_path / "js"), "--to", "jetstream", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] and any(log["damage"] for log in report["logs"])


@pytest.mark.parametrize("target", LAYOUTS)
def test_many_logs_side_by_side(target: str, tmp_path: Path) -> None:
    """More logs than threads, two of them into one target: the same as one after the other."""
    names = [f"L{number}" for number in range(9)]
    with headrace.open(str(tmp_path / "js"), "rw", create=True) as volume:
        for number, name in enumerate(names):
            store = volume.create(name, subjects=[f"{name}.>"])
            for first in range(0, 400 * (number + 1), 200):
                store.append(
                    headrace.batch(f"{name}.x", [b"%d %d" % (number, first + n) for n in range(200)])
                )
            store.commit()
    rules = [f"{name}={default_log('jetstream', target, names[max(at, 1)])}" for at, name in enumerate(names)]
    alone, together = (
        convert(
            str(tmp_path / "js"),
            str(tmp_path / f"by{threads}"),
            target,
            ConversionSpec(rules=rules, threads=threads),
        )
        for threads in (1, 4)
    )
    assert [log.source_hash for log in alone.logs] == [log.target_hash for log in together.logs]
    assert len({log.target for log in together.logs}) == 8 and together.messages == 200 * 2 * 45
    for log in together.logs:
        bodies = [[r[4] for r in rows(tmp_path / f"by{threads}", log.target)] for threads in (1, 4)]
        assert bodies[0] == bodies[1]
    assert run(["verify", str(tmp_path / "by4")]) == 0


def test_groups_that_share_nothing() -> None:
    pairs = [("a", "1"), ("b", "2"), ("c", "1"), ("d", "3"), ("d", "2"), ("e", "4")]
    assert independent(pairs, lambda pair: pair) == [
        [("a", "1"), ("c", "1")],
        [("b", "2"), ("d", "3"), ("d", "2")],
        [("e", "4")],
    ]
