"""The native client against Headrace and real nats-servers: the same answers from all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client import (
    Access,
    Connection,
    Destination,
    Publisher,
    ServerVolume,
    named_stream,
    read_access,
    stream_of,
)
from headrace.client._kernels import encode_publishes
from headrace.client.gets import get_range
from headrace.client.holding import Hold
from headrace.client.pulling import pull_range
from headrace.client.retrying import GIVE_UP_S
from headrace.errors import BadInput, ConnectionLost, NotFound, ServerRefused
from headrace.layouts.base import Batch, Predicate
from headrace.nkeys import sign
from headrace.testing.server import TestServer
from tests.server.certificates import make_certificates
from tests.support.peers import NatsServer

SERVERS = ("headrace", "2.9.10", "2.15.2")


@pytest.fixture(scope="module", params=SERVERS)
def access(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    place = tmp_path_factory.mktemp("client")
    made = (
        TestServer(place / "js") if request.param == "headrace" else NatsServer(request.param, place / "js")
    )
    with made as server:
        yield read_access(server.url)


def messages(count: int, subject: str = "o.{}", size: int = 0) -> Batch:
    return headrace.batch(
        [subject.format(n % 5) for n in range(count)],
        [b"%d" % n + b"x" * size for n in range(count)],
        positions=list(range(count)),
    )


def read(batches: Iterator[Batch]) -> list[tuple[int, str, bytes]]:
    return [(each.position, each.subject, each.data or b"") for batch in batches for each in batch]


def test_what_is_published_is_read_again(access: Access) -> None:
    volume = ServerVolume(access)
    log = volume.create("PLAIN", subjects=["p.>"], storage="file")
    assert "PLAIN" in volume.logs() and log.state().messages == 0 and log.scan_tasks() == []
    with Connection(access) as connection:
        publisher = Publisher(connection, window=3000)
        publisher.publish(messages(10_000, "p.{}"), id_prefix="run:")
        done = publisher.flush()
        assert (done.stored, done.duplicates, done.last_sequence) == (10_000, 0, 10_000)
        publisher.publish(messages(10_000, "p.{}"), id_prefix="run:")
        again = publisher.flush()
        assert (again.stored, again.duplicates) == (10_000, 10_000), "ids make each one once"
        connection.api("STREAM.MSG.DELETE.PLAIN", {"seq": 7000})
    assert log.state().messages == 9_999
    tasks = log.scan_tasks()
    expected = [(n + 1, f"p.{n % 5}", b"%d" % n) for n in range(10_000) if n != 6999]
    assert [each for task in tasks for each in read(task.batches())] == expected
    some = Predicate(first=3000, next=3100, subjects=("p.1", "p.3"))
    assert [each for task in log.scan_tasks(some) for each in read(task.batches(some))] == [
        each for each in expected[2999:3099] if each[1] in ("p.1", "p.3")
    ]
    one = next(iter(tasks[0].scan(["seq", "time_ns", "subject"])))
    assert one.schema.names == ["seq", "time_ns", "subject"] and one.column("subject")[0].as_py() == "p.0"
    times = [each.time_ns for task in tasks for batch in task.batches() for each in batch]
    middle = times[5000]
    assert log.seq_from_time(middle) == 1 + times.index(middle)
    assert log.seq_from_time(times[-1] + 1) == 10_001 and log.seq_from_time(0) == 1
    with pytest.raises(NotFound, match="no stream 'ABSENT'"):
        volume.open("ABSENT")


def test_large_messages_and_headers(access: Access) -> None:
    log = ServerVolume(access).create("LARGE", subjects=["l.>"])
    with Connection(access) as connection:
        publisher = Publisher(connection)
        block = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
        publisher.publish(headrace.batch("l.x", [b"y" * 900_000] * 40, headers=[block] * 40))
        assert publisher.flush().stored == 40
        found = [each for batch in pull_range(connection, "LARGE", 1, 41) for each in batch]
        assert [len(each.data or b"") for each in found] == [900_000] * 40
        assert {each.headers for each in found} == {block}
        with pytest.raises(BadInput, match="the server takes"):
            publisher.publish(headrace.batch("l.x", [b"y" * (connection.max_payload + 1)]))
        publisher.publish(headrace.batch("l.x", [b"after"]))
        assert publisher.flush().stored == 41, "a refused batch leaves the others alone"
    assert log.state().messages == 41


def test_a_work_queue_is_read_without_being_consumed_and_held_until_passed(access: Access) -> None:
    log = ServerVolume(access).create("QUEUE", subjects=["q.>"], retention="workqueue")
    with Connection(access) as connection:
        publisher = Publisher(connection)
        publisher.publish(messages(2_000, "q.{}"))
        publisher.flush()
        connection.api("STREAM.MSG.DELETE.QUEUE", {"seq": 10})
        found = read(batch for task in log.scan_tasks() for batch in task.batches())
        assert [each[0] for each in found] == [n for n in range(1, 2_001) if n != 10]
        assert read(get_range(connection, "QUEUE", 9, 12, subjects=["q.0"])) == [(11, "q.0", b"10")]
        assert log.state().messages == 1_999, "reading took nothing"
        hold = Hold(connection, "QUEUE", "lake")
        assert hold.advance(1_501) == 1_499 and hold.advance(1_501) == 0
        assert (log.state().first_seq, log.state().messages) == (1_501, 500)
        assert Hold(connection, "QUEUE", "lake").advance(2_001) == 500
        assert log.state().messages == 0


def test_a_hold_shows_the_lag(access: Access) -> None:
    ServerVolume(access).create("HELD", subjects=["h.>"])
    with Connection(access) as connection:
        publisher = Publisher(connection)
        publisher.publish(messages(20_000, "h.{}"))
        publisher.flush()
        connection.api("STREAM.PURGE.HELD", {"seq": 101})
        hold = Hold(connection, "HELD", "reader", start=50)
        hold.advance(15_001)
        assert (hold.passed, hold.info()["num_pending"]) == (15_000, 5_000)
        hold.advance(20_001)
        assert (hold.passed, hold.info()["num_pending"]) == (20_000, 0)


def test_refusals_name_what_is_wrong(access: Access) -> None:
    with Connection(access) as connection:
        publisher = Publisher(connection)
        ServerVolume(access).create("TINY", subjects=["t.>"], max_msgs=1, discard="new")
        publisher.publish(headrace.batch("t.x", [b"1", b"2"]))
        with pytest.raises(ServerRefused, match="maximum messages exceeded"):
            publisher.flush()
        with pytest.raises(BadInput, match='the subject "a b"'):
            publisher.publish(headrace.batch("a b", [b""]))
    with pytest.raises(ConnectionLost, match=r"no NATS server can be reached \(127.0.0.1:1: .*refused"):
        Connection(read_access("nats://127.0.0.1:1"))


def test_a_subject_that_no_stream_takes_is_said_at_once(access: Access) -> None:
    began = time.monotonic()
    with Connection(access) as connection:
        publisher = Publisher(connection)
        publisher.publish(headrace.batch(["nowhere.1"], [b"x"]))
        with pytest.raises(NotFound, match=r"no stream takes 'nowhere\.1'"):
            publisher.flush()
    assert time.monotonic() - began < GIVE_UP_S / 2


def test_a_named_stream_and_no_other(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first message where the subject tells it, by the server where it does not, by the answer at last."""
    volume = ServerVolume(access)
    orders, copy = volume.create("ORDERS", subjects=["orders.>"]), volume.create("COPY", subjects=["copy.>"])
    with Connection(access) as connection:
        into = named_stream(connection, "COPY")
        assert into == Destination("COPY", ("copy.>",)) == stream_of(connection, "copy.x")
        sender = Publisher(connection, into=into, without=["Nats-Expected-Last-Sequence"])
        headers = (
            b"NATS/1.0\r\nNats-Expected-Stream: ORDERS\r\nNats-Expected-Last-Sequence: 77\r\nA: 1\r\n\r\n"
        )
        sender.publish(headrace.batch("copy.a", [b"1", b"2"], headers=[None, headers]))
        with pytest.raises(BadInput, match=r"'orders.b' is no subject of stream COPY, which takes copy.>"):
            sender.publish(headrace.batch(["copy.a", "orders.b"], [b"", b""]))
        assert sender.flush().stored == 2
        assert [each.header_map for each in copy] == [
            {"Nats-Expected-Stream": ["COPY"]},
            {"A": ["1"], "Nats-Expected-Stream": ["COPY"]},
        ]
        trusting = Publisher(connection, into=Destination("COPY", (">",)))
        trusting.publish(headrace.batch("orders.a", [b"1"]))
        with pytest.raises(ServerRefused, match="expected stream does not match"):
            trusting.flush()
        volume.create("MIRROR", mirror={"name": "ORDERS"})
        with pytest.raises(BadInput, match="MIRROR is a mirror"):
            named_stream(connection, "MIRROR")
        with pytest.raises(NotFound, match="no stream 'ABSENT'"):
            named_stream(connection, "ABSENT")
        with pytest.raises(NotFound, match="no stream takes 'nowhere'"):
            stream_of(connection, "nowhere")
    assert orders.state().messages == 0

    def unnamed(*given: Any) -> bytes:
        return encode_publishes(*given[:4], None, *given[5:])

    monkeypatch.setattr("headrace.client.publisher.encode_publishes", unnamed)
    with Connection(access) as connection:
        trusting = Publisher(connection, into=Destination("COPY", (">",)))
        trusting.publish(headrace.batch("orders.a", [b"1"]))
        with pytest.raises(ServerRefused, match=r"for stream COPY was stored in ORDERS \(sequence 1\)"):
            trusting.flush()


@pytest.mark.parametrize("version", ["headrace", "2.15.2"])
def test_a_server_that_is_killed_in_the_middle(version: str, tmp_path: Path) -> None:
    made = TestServer(tmp_path / "js") if version == "headrace" else NatsServer(version, tmp_path / "js")
    with made as server:
        access = read_access(server.url)
        log = ServerVolume(access).create("S", subjects=["o.>"])

        def interrupt() -> None:
            time.sleep(0.3)
            server.kill()
            server.start()

        trouble = threading.Thread(target=interrupt)
        with Connection(access) as connection:
            publisher = Publisher(connection, window=500)
            trouble.start()
            for part in range(100):
                publisher.publish(messages(1_000), id_prefix=f"run:{part}:")
                time.sleep(0.01)
            done = publisher.flush()
            trouble.join()
            assert done.stored + done.duplicates == 100_000
        if version == "headrace":  # the other one acknowledges what it has not synced
            assert log.state().messages == 100_000
        trouble = threading.Thread(target=interrupt)
        found: list[int] = []
        with Connection(access) as connection:
            trouble.start()
            for batch in pull_range(connection, "S", 1, 100_001):
                found += batch.positions()
                time.sleep(0.1)
            trouble.join()
        assert found == sorted(set(found)) and len(found) == log.state().messages


def test_every_way_to_be_let_in(tmp_path: Path) -> None:
    seed, nkey = (
        "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
        "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
    )
    cases = {
        "authorization { user: bob, password: pw }": [
            read_access("nats://bob:pw@h"),
            read_access("nats://h").with_secrets(user="bob", password="pw"),
        ],
        "authorization { token: tok }": [
            read_access("nats://tok@h"),
            read_access("nats://h").with_secrets(token="tok"),
        ],
        f"authorization {{ users: [ {{ nkey: {nkey} }} ] }}": [
            read_access("nats://h").with_secrets(nkey=seed)
        ],
    }
    for number, (config, ways) in enumerate(cases.items()):
        with NatsServer("2.15.2", tmp_path / f"js{number}", config=config) as server:
            where = read_access(server.url).servers
            for way in ways:
                assert "bob" not in repr(way) and "tok" not in repr(way) and seed not in repr(way)
                with Connection(_at(way, where)) as connection:
                    assert connection.api("INFO")["type"].endswith("account_info_response")
            with pytest.raises(ServerRefused, match="Authorization Violation"):
                Connection(_at(read_access("nats://bob:wrong@h"), where))
    with pytest.raises(BadInput, match="not a seed") as problem:
        sign("SUnonsense", b"nonce")
    assert "nonsense" not in str(problem.value)


def _at(access: Access, servers: tuple[tuple[str, int], ...]) -> Access:
    from dataclasses import replace

    return replace(access, servers=servers)


@pytest.mark.parametrize("url", ["http://host", "nats://", "nats://h:port", "nats://u:secret@h/path", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(BadInput) as problem:
        read_access(url)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("kind", ["headrace", "2.15.2"])
def test_tls(kind: str, tmp_path: Path) -> None:
    pem = make_certificates(tmp_path)
    files = f'cert_file: "{pem.server_cert}", key_file: "{pem.server_key}", ca_file: "{pem.ca}", verify: true'
    config = f"tls {{ {files} }}"
    if kind == "headrace":
        made = TestServer(tmp_path / "js", config=config)
    else:
        made = NatsServer(kind, tmp_path / "js", config=config)
    with made as server:
        where = read_access(server.url)
        access = where.with_secrets(tls_ca=pem.ca, tls_cert=pem.client_cert, tls_key=pem.client_key)
        ServerVolume(access).create("S", subjects=["o.>"])
        with Connection(access) as connection:
            publisher = Publisher(connection)
            publisher.publish(messages(30_000, size=200), id_prefix="x:")
            assert publisher.flush().stored == 30_000
            found = [each for batch in pull_range(connection, "S", 1, 30_001) for each in batch.positions()]
            assert found == list(range(1, 30_001))
        with pytest.raises(ConnectionLost, match="certificate"):
            Connection(where.with_secrets(tls=True))
