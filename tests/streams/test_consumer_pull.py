"""Pull requests: every way in which one ends, with the words of nats-server 2.15.2; rotation, limits, priority groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.consuming import MS, NEXT, SECOND, World, seqs
from tests.support.model import Msg


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.stream()
    yield made
    made.model.__exit__(None, None, None)


def test_no_wait_ends_with_404(world: World) -> None:
    world.consumer()
    assert world.status(world.pull(no_wait=True)) == ["404 No Messages"]
    world.put("s.1", "s.1")
    got = world.pull(batch=5, no_wait=True)
    assert (seqs(got), world.status(got)) == ([1, 2], ["404 No Messages"])


def test_no_wait_with_a_time_takes_what_is_there_or_what_comes_first(world: World) -> None:
    world.consumer()
    world.pull(batch=5, no_wait=True, expires=500 * MS)
    timeout = "408 Request Timeout|Nats-Pending-Messages: 5|Nats-Pending-Bytes: 0"
    assert world.status(world.pass_time(0.6)) == [timeout]
    world.pull(batch=5, no_wait=True, expires=SECOND)
    world.put("s.1")
    got = world.client.take()
    assert (seqs(got), world.status(got)) == ([1], ["404 No Messages"])


def test_no_wait_waits_where_it_is_held_back_by_unacked_messages(world: World) -> None:
    world.put(*["s.1"] * 5)
    world.consumer(max_ack_pending=2)
    got = world.pull(batch=5, no_wait=True)
    assert (seqs(got), world.status(got)) == ([1, 2], [])
    assert seqs(world.ack(got[0])) == [3]


def test_a_request_times_out_with_what_it_did_not_get(world: World) -> None:
    world.consumer()
    world.put(*["s.1"] * 3)
    assert seqs(world.pull(batch=5, expires=300 * MS)) == [1, 2, 3]
    assert world.status(world.pass_time(0.4)) == [
        "408 Request Timeout|Nats-Pending-Messages: 2|Nats-Pending-Bytes: 0"
    ]
    world.pull(expires=-1)
    assert world.status(world.pass_time(0.02)) == [
        "408 Request Timeout|Nats-Pending-Messages: 1|Nats-Pending-Bytes: 0"
    ]


def test_bytes_end_a_request(world: World) -> None:
    world.put(*["s.1"] * 3, data=b"x" * 50)
    world.consumer()
    got = world.pull(batch=5, max_bytes=200, expires=SECOND)
    assert seqs(got) == [1, 2]
    (status,) = world.status(got)
    assert status.startswith(
        "409 Message Size Exceeds MaxBytes|Nats-Pending-Messages: 3|Nats-Pending-Bytes: "
    )
    assert world.status(world.pull(batch=5, max_bytes=20)) == [
        "409 Message Size Exceeds MaxBytes|Nats-Pending-Messages: 5|Nats-Pending-Bytes: 20"
    ]


def test_a_filled_request_says_what_is_left_of_its_bytes(world: World) -> None:
    world.put("s.1", "s.1")
    world.consumer()
    got = world.pull(batch=2, max_bytes=2000)
    (status,) = world.status(got)
    assert seqs(got) == [1, 2]
    assert status.startswith("409 Batch Completed|Nats-Pending-Messages: 0|Nats-Pending-Bytes: 19")


def test_heartbeats_while_nothing_happens(world: World) -> None:
    world.put("s.1")
    world.consumer()
    world.fetch(1)
    world.pull(batch=2, expires=900 * MS, idle_heartbeat=300 * MS)
    beat = "100 Idle Heartbeat|Nats-Last-Consumer: 1|Nats-Last-Stream: 1"
    timeout = "408 Request Timeout|Nats-Pending-Messages: 2|Nats-Pending-Bytes: 0"
    assert world.status(world.pass_time(1.2)) == [beat, beat, timeout]


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"expires": 500, "idle_heartbeat": 300}', "400 Bad Request - heartbeat value too large"),
        (b'{"idle_heartbeat": 300}', "400 Bad Request - heartbeat value too large"),
        (b"{bad", "400 Bad Request - expected '\"' (byte 1)"),
        (b'{"batch":"x"}', '400 Bad Request - batch: expected a whole number, got "x"'),
        (b'{"batch":[\n]}', "400 Bad Request - batch: expected a whole number, got an array"),
        (b'{"batch": 11}', "409 Exceeded MaxRequestBatch of 10"),
        (b'{"expires": 2000000000}', "409 Exceeded MaxRequestExpires of 1s"),
        (b'{"max_bytes": 501}', "409 Exceeded MaxRequestMaxBytes of 500"),
        (b'{"batch": 11, "expires": 2000000000}', "409 Exceeded MaxRequestBatch of 10"),
    ],
)
def test_requests_that_are_refused(world: World, body: bytes, answer: str) -> None:
    world.consumer(max_batch=10, max_expires=SECOND, max_bytes=500)
    assert world.status(world.ask(body)) == [answer]


@pytest.mark.parametrize(
    ("body", "count"), [(b"", 1), (b"3", 3), (b"what", 1), (b'{"batch": 0}', 1), (b"-2", 1)]
)
def test_forms_of_a_request(world: World, body: bytes, count: int) -> None:
    world.put(*["s.1"] * 5)
    world.consumer()
    assert len(seqs(world.ask(body))) == count


def test_only_so_many_wait(world: World) -> None:
    world.consumer(max_waiting=2)
    for inbox in ("_INBOX.1", "_INBOX.2"):
        assert world.pull(expires=5 * SECOND, inbox=inbox) == []
    assert world.status(world.pull(expires=5 * SECOND)) == ["409 Exceeded MaxWaiting"]
    assert world.pull(expires=5 * SECOND, idle_heartbeat=SECOND) == [], "its heartbeats stay away: that tells"
    assert world.info()["num_waiting"] == 2
    world.put("s.1", "s.1")
    assert len(seqs(world.client.take())) == 2
    assert world.pull(expires=5 * SECOND) == []


def test_many_equal_requests_fill_the_queue_and_no_more(world: World) -> None:
    world.consumer(max_waiting=3)
    lines = b"".join(b"PUB %sS.c _INBOX.m%d 1\r\n1\r\n" % (NEXT.encode(), n) for n in range(5))
    world.client._feed(lines)  # pyright: ignore[reportPrivateUsage]
    assert world.status(world.client.take()) == ["409 Exceeded MaxWaiting"] * 2
    assert world.info()["num_waiting"] == 3


def test_requests_are_served_in_rotation(world: World) -> None:
    world.consumer()
    clients = [world.listener("_O.1"), world.listener("_O.2")]
    for client, inbox in zip(clients, ("_O.1", "_O.2"), strict=True):
        client.publish(f"{NEXT}S.c", b'{"batch": 10, "expires": 1000000000}', inbox)
    lines = b"".join(b"PUB s.1 1\r\nx\r\n" for _ in range(6))
    world.client._feed(lines)  # pyright: ignore[reportPrivateUsage]
    assert [seqs(client.take()) for client in clients] == [[1, 3, 5], [2, 4, 6]]


def test_a_request_that_nobody_listens_for_takes_nothing(world: World) -> None:
    world.consumer()
    gone, stays = world.listener("_O.1"), world.listener("_O.2")
    for client, inbox in ((gone, "_O.1"), (stays, "_O.2")):
        client.publish(f"{NEXT}S.c", b'{"batch": 10, "expires": 1000000000000}', inbox)
    gone.unsubscribe_all()
    world.put("s.1", "s.1")
    assert seqs(stays.take()) == [1, 2]
    assert world.info()["num_waiting"] == 1


def test_waiting_requests_get_the_end(world: World) -> None:
    world.consumer("gone")
    world.consumer("stays")
    for name in ("gone", "stays"):
        world.pull(name, batch=3, expires=60 * SECOND)
    world.client.api("CONSUMER.DELETE.S.gone")
    assert world.status(world.client.take()) == ["409 Consumer Deleted"]
    world.model.account().streams["S"].stop()
    world.model.deliver()
    stopped = "409 Server Shutdown|Nats-Pending-Messages: 3|Nats-Pending-Bytes: 0"
    assert world.status(world.client.take()) == [stopped]


def test_a_consumer_that_is_not_there(world: World) -> None:
    (msg,) = world.pull("nobody")
    assert msg.headers == b"NATS/1.0 503\r\nNats-Subject: $JS.API.CONSUMER.MSG.NEXT.S.nobody\r\n\r\n"


# Priority groups


def grouped(world: World, policy: str, **more: object) -> None:
    world.consumer(priority_policy=policy, priority_groups=["G"], **more)


def test_groups_must_be_named(world: World) -> None:
    grouped(world, "overflow")
    assert world.status(world.pull()) == ["400 Bad Request - Priority Group missing"]
    assert world.status(world.pull(group="X")) == ["400 Bad Request - Invalid Priority Group"]


def test_overflow_waits_until_there_is_much_to_do(world: World) -> None:
    grouped(world, "overflow")
    world.pull(batch=5, group="G", min_pending=3, expires=60 * SECOND)
    world.put("s.1", "s.1")
    assert world.client.take() == []
    world.put("s.1")
    assert seqs(world.client.take()) == [1], "now two are pending"
    assert seqs(world.pull(batch=9, group="G", expires=SECOND)) == [2, 3]


def test_prioritized_serves_low_numbers_first(world: World) -> None:
    grouped(world, "prioritized")
    other = world.listener("_O.*")
    other.publish(f"{NEXT}S.c", b'{"batch":2,"group":"G","priority":1,"expires":60000000000}', "_O.1")
    world.pull(batch=2, group="G", priority=0, expires=60 * SECOND)
    world.put("s.1", "s.1", "s.1")
    assert (seqs(world.client.take()), seqs(other.take())) == ([1, 2], [3])


def test_pinned_goes_to_one_client_until_it_is_unpinned(world: World) -> None:
    grouped(world, "pinned_client", priority_timeout=10 * SECOND)
    world.put(*["s.1"] * 6)

    def pin_of(msgs: list[Msg]) -> str:
        headers = msgs[0].headers or b""
        return headers.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0].decode()

    first = world.pull(batch=1, group="G")
    pin = pin_of(first)
    assert (len(pin), seqs(first)) == (22, [1])
    assert world.info()["priority_groups"][0]["pinned_client_id"] == pin
    assert world.pull(batch=2, group="G", expires=60 * SECOND, inbox="_INBOX.other") == [], (
        "another client waits"
    )
    assert seqs(world.pull(batch=2, group="G", id=pin)) == [2, 3]
    assert world.status(world.pull(group="G", id="wrong")) == ["423 Nats-Pin-Id mismatch"]
    world.client.api("CONSUMER.UNPIN.S.c", {"group": "G"})
    got = world.client.take()
    assert seqs(got) == [4, 5]
    assert pin_of(got) != pin
    assert seqs(world.pull(group="G", expires=60 * SECOND, inbox="_INBOX.third")) == []
    assert seqs(world.pass_time(11)) == [6], "the pinned client was not heard of for too long"
