"""Health and dead letters out of captured events: counted, joined with their originals, published once for each attempt."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import run
from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.errors import BadInput
from headrace.ops.dead_letters import dead_letters
from headrace.ops.health import health
from headrace.ops.health_page import page
from headrace.testing.server import TestServer
from tests.ops.helpers import small_store
from tests.support.peers import NatsServer

START_NS = 1_700_000_040_000_000_000  # a whole minute
MINUTE_NS = 60_000_000_000


def event(kind: str, **fields: Any) -> tuple[str, bytes]:
    where = "METRIC.CONSUMER.ACK" if kind == "ACK" else f"ADVISORY.CONSUMER.{kind}"
    body = {"type": "x", "id": "y", "timestamp": "2023-11-14T22:14:00Z", "stream": "ORDERS", **fields}
    return f"$JS.EVENT.{where}.ORDERS.{fields['consumer']}", json.dumps(body).encode()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """200 ack samples of 1 to 200 ms in two minutes, a few with a second delivery; three letters; and other things."""
    path = small_store(tmp_path / "store")
    events = [
        event(
            "ACK",
            consumer="C",
            consumer_seq=n,
            stream_seq=n,
            ack_time=n * 1_000_000,
            deliveries=1 + (n % 50 == 0),
        )
        for n in range(1, 201)
    ]
    times = [START_NS + (n % 2) * MINUTE_NS for n in range(200)]
    events += [
        event("MAX_DELIVERIES", consumer="C", stream_seq=5, deliveries=4),
        event("MAX_DELIVERIES", consumer="C", stream_seq=5, deliveries=5),
        event("MAX_DELIVERIES", consumer="C", stream_seq=7, deliveries=4),  # its original was removed
        event("MSG_TERMINATED", consumer="D", stream_seq=9, consumer_seq=1, deliveries=1, reason="bad"),
        event("MSG_NAKED", consumer="C", stream_seq=5, consumer_seq=9, deliveries=1),
        ("$JS.EVENT.ADVISORY.API", b"not json\nat all"),
        ("$JS.EVENT.METRIC.CONSUMER.ACK.ORDERS.C", b"neither\n"),
    ]
    times += [START_NS + MINUTE_NS] * 7
    with headrace.open(str(path), mode="rw") as volume:
        log = volume.create("JS_EVENTS", subjects=["$JS.EVENT.>"])
        batch = headrace.batch([s for s, _ in events], [d for _, d in events], times=times)
        volume.commit([log.append(batch)])
    return path


def test_health(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.open(str(store)) as volume:
        result = health(volume)
    total = next(row for row in result.totals if row.consumer == "C")
    assert (total.samples, total.redelivered, total.given_up, total.naked) == (200, 4, 3, 1)
    assert total.acked_to == 200 and total.lag == 100
    for seen, wanted in ((total.ack_p50_ns, 100), (total.ack_p95_ns, 190), (total.ack_p99_ns, 198)):
        assert seen is not None and abs(seen / 1e6 - wanted) < 3
    windows = [row for row in result.rows if row.consumer == "C"]
    assert [(row.start_ns, row.samples, row.given_up) for row in windows] == [
        (START_NS, 100, 0),
        (START_NS + MINUTE_NS, 100, 3),
    ]
    drawn = page(result)
    assert drawn.count("<svg") == 1 and drawn.count("<polyline") == 3 and "http" not in drawn
    assert all(drawn.count(f"<{tag}") == drawn.count(f"</{tag}") for tag in ("svg", "table", "h2", "html"))
    assert run(["pipeline", "health", str(store), "--html", str(tmp_path / "h.html"), "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["events"] == 205 and (tmp_path / "h.html").stat().st_size > 2000
    )
    assert run(["pipeline", "health", str(tmp_path / "store"), "--events", "NONE"]) == 2
    assert "--setup" in capsys.readouterr().err


def test_dead_letters_of_files(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[Any] = []
    checked: list[Any] = []

    class Sender:
        def check(self, origin: str, batch: Any) -> None:
            assert origin == "ORDERS" and not sent, "all are checked before the first is sent"
            checked.extend(batch)

        def publish(self, origin: str, batch: Any) -> tuple[int, int]:
            sent.extend(batch)
            return len(batch), 0

    with headrace.open(str(store)) as volume:
        result = dead_letters(volume, resend=Sender())
        assert [each.key for each in checked] == [each.key for each in sent]
        assert [(each.seq, each.deliveries, each.reason) for each in result.letters] == [
            (5, 5, "max_deliver"),
            (7, 4, "max_deliver"),
            (9, 1, "terminated"),
        ]
        assert [each.seq for each in result.gone] == [7] and result.republished == 2
        assert dead_letters(volume, consumer="D").republished == 1
        with pytest.raises(BadInput, match="at least 1"):
            dead_letters(volume, attempts_max=0)
    assert [(each.key, each.subject, each.data) for each in sent] == [
        (b"dlq:ORDERS:5:1", "orders.1", b"order 5"),
        (b"dlq:ORDERS:9:1", "orders.1", b"order 9"),
    ]
    assert sent[1].header_map["N"] == ["9"] and sent[1].header_map["Headrace-Dlq-Attempt"] == ["1"]
    assert run(["pipeline", "dlq", str(store), "--dry-run"]) == 0
    assert "2 would be published again" in capsys.readouterr().out
    assert run(["pipeline", "dlq", str(store)]) == 2
    assert "--to names the server" in capsys.readouterr().err


def test_dead_letters_of_a_live_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Captured, published again; twice is once; after the last attempt no more."""
    with TestServer(tmp_path / "server") as server:
        access = read_access(server.url)
        assert run(["pipeline", "health", "--setup", server.url]) == 0

        def publish(*messages: tuple[str, bytes]) -> None:
            with Connection(access) as connection:
                sender = Publisher(connection)
                sender.publish(
                    headrace.batch([subject for subject, _ in messages], [data for _, data in messages])
                )
                sender.flush()

        def given_up(seq: int) -> tuple[str, bytes]:
            body = {"stream": "JOBS", "consumer": "W", "stream_seq": seq, "deliveries": 3}
            return "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.JOBS.W", json.dumps(body).encode()

        def again(attempts: int) -> dict[str, Any]:
            capsys.readouterr()
            assert run(["pipeline", "dlq", server.url, "--attempts", str(attempts), "--json"]) == 0
            return json.loads(capsys.readouterr().out)

        with Connection(access) as connection:
            connection.api("STREAM.CREATE.JOBS", {"name": "JOBS", "subjects": ["jobs.*"], "storage": "file"})
        publish(("jobs.a", b"one"), ("jobs.b", b"two"))
        publish(given_up(1), given_up(2))
        assert [(run_json["republished"], run_json["duplicates"]) for run_json in (again(2), again(2))] == [
            (2, 0),
            (0, 2),
        ]
        publish(given_up(3), given_up(4))
        run_json = again(1)
        assert [each["seq"] for each in run_json["spent"]] == [3, 4] and run_json["republished"] == 0
        again(2)
        jobs = list(ServerVolume(access).open("JOBS"))
    assert [(each.subject, each.data) for each in jobs] == [("jobs.a", b"one"), ("jobs.b", b"two")] * 3
    assert [each.header_map["Nats-Msg-Id"][0] for each in jobs[4:]] == ["dlq:JOBS:1:2", "dlq:JOBS:2:2"]


@pytest.mark.parametrize("version", ["headrace", "2.15.2"])
def test_dead_letters_go_to_the_stream_that_is_meant(
    tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their own, the one that takes the new subject, or the named one; never a third that happens to take the subject."""
    made = TestServer(tmp_path / "js") if version == "headrace" else NatsServer(version, tmp_path / "js")
    with made as server, Connection(read_access(server.url)) as connection:
        volume = ServerVolume(read_access(server.url))
        assert run(["pipeline", "health", "--setup", server.url]) == 0
        volume.create("JOBS", subjects=["jobs.*"])
        sender = Publisher(connection)
        sender.publish(headrace.batch(["jobs.a", "jobs.b"], [b"one", b"two"]))
        body = {"stream": "JOBS", "consumer": "W", "deliveries": 3}
        events = [json.dumps(body | {"stream_seq": seq}).encode() for seq in (1, 2)]
        sender.publish(headrace.batch("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.JOBS.W", events))
        sender.flush()
        connection.api("STREAM.UPDATE.JOBS", {"name": "JOBS", "subjects": ["jobs.a"]})
        others, retry = volume.create("OTHERS", subjects=["jobs.b"]), volume.create("RETRY", subjects=["r.>"])
        command = ["pipeline", "dlq", server.url]
        assert run(command) == 2 and "'jobs.b' is no subject of stream JOBS" in capsys.readouterr().err
        assert volume.open("JOBS").state().messages == 2 and others.state().messages == 0
        assert (
            run([*command, "--subject", "r.{subject}"]) == 2 and "name the stream" in capsys.readouterr().err
        )
        assert run([*command, "--subject", "nowhere"]) == 2 and "no stream takes" in capsys.readouterr().err
        assert run([*command, "--subject", "r.{subject}", "--into", "RETRY"]) == 0
        assert [each.subject for each in retry] == ["r.jobs.a", "r.jobs.b"]
        assert run([*command, "--subject", "jobs.b"]) == 0
        assert others.state().messages == 2 and volume.open("JOBS").state().messages == 2


def test_events_that_a_server_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing made up: a consumer that never acks gives up its messages, another acks and is sampled."""

    def run_json(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run(["pipeline", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    with TestServer(tmp_path / "server") as server, Connection(read_access(server.url)) as connection:
        assert run(["pipeline", "health", "--setup", server.url]) == 0

        def consumer(name: str, **config: Any) -> None:
            wanted = {"durable_name": name, "ack_policy": "explicit", **config}
            connection.api(f"CONSUMER.DURABLE.CREATE.JOBS.{name}", {"stream_name": "JOBS", "config": wanted})

        inbox = connection.new_inbox()
        sid = connection.subscribe(inbox)

        def pull(name: str) -> Any:
            """A message, or the word that there is none."""
            ask = b'{"batch": 1, "no_wait": true}'
            connection.send(
                b"PUB $JS.API.CONSUMER.MSG.NEXT.JOBS.%s %s %d\r\n%s\r\n"
                % (name.encode(), inbox.encode(), len(ask), ask)
            )
            return next(each for _ in range(100) for each in connection.receive(0.2) if each.sid == sid)

        connection.api("STREAM.CREATE.JOBS", {"name": "JOBS", "subjects": ["jobs.*"], "storage": "file"})
        consumer("DEAF", max_deliver=2, ack_wait=200_000_000)
        consumer("GOOD", sample_freq="100%")
        sender = Publisher(connection)
        sender.publish(headrace.batch(["jobs.a", "jobs.b"], [b"one", b"two"]))
        sender.flush()
        for _ in range(2):
            connection.request(pull("GOOD").reply, b"+ACK")  # answered when the ack is durable
        until = time.monotonic() + 15
        letters: list[Any] = []
        while len(letters) < 2 and time.monotonic() < until:
            pull("DEAF")
            time.sleep(0.1)
            letters = run_json("dlq", server.url, "--dry-run")["letters"]
        found = {(each["stream"], each["seq"], each["consumer"], each["deliveries"]) for each in letters}
        assert found == {("JOBS", 1, "DEAF", 2), ("JOBS", 2, "DEAF", 2)}
        rows = {row["consumer"]: row for row in run_json("health", server.url)["totals"]}
        assert (rows["GOOD"]["samples"], rows["GOOD"]["lag"], rows["DEAF"]["given_up"]) == (2, 0, 2)
        assert 0 < rows["GOOD"]["ack_p50_ns"] <= rows["GOOD"]["ack_p99_ns"] < 15_000_000_000
        assert (
            run_json("dlq", server.url)["republished"] == 2 and run_json("dlq", server.url)["duplicates"] == 2
        )
        jobs = list(ServerVolume(read_access(server.url)).open("JOBS"))
    assert [(each.subject, each.data) for each in jobs] == [("jobs.a", b"one"), ("jobs.b", b"two")] * 2
    assert jobs[2].header_map["Headrace-Dlq-Consumer"] == ["DEAF"]
