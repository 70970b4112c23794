"""Push consumers: listeners come and go, heartbeats, flow control, queue groups, rates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.consuming import MS, SECOND, World, ack_numbers, seqs
from tests.support.model import Msg


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.stream()
    yield made
    made.model.__exit__(None, None, None)


def test_everything_goes_to_whoever_listens(world: World) -> None:
    world.put("s.1", "s.1", "s.1")
    world.consumer(deliver_subject="out")
    assert "push_bound" not in world.info()
    assert world.numbers() == (0, 0, 0, 0, 0, 0, 3)
    world.client.subscribe("out")
    got = world.client.take()
    assert [msg.subject for msg in got] == ["s.1"] * 3
    assert [ack_numbers(msg) for msg in got] == [(1, 1, 1, 2), (1, 2, 2, 1), (1, 3, 3, 0)]
    assert world.info()["push_bound"] is True
    world.put("s.1")
    assert seqs(world.client.take()) == [4]
    assert world.status(world.pull()) == ["409 Consumer is push based"]


def test_nothing_is_lost_while_nobody_listens(world: World) -> None:
    world.consumer(deliver_subject="out", ack_policy="none")
    listener = world.listener("out")
    world.put("s.1")
    assert seqs(listener.take()) == [1]
    listener.unsubscribe_all()
    world.put("s.1", "s.1")
    assert world.numbers()[:2] == (1, 1)
    listener.subscribe("out")
    assert seqs(listener.take()) == [2, 3]


def test_unacked_messages_come_again(world: World) -> None:
    world.put("s.1", "s.1")
    world.client.subscribe("out")
    world.consumer(deliver_subject="out", ack_wait=SECOND)
    one, two = world.client.take()
    world.ack(one)
    again = world.pass_time(1.1)
    assert [ack_numbers(msg) for msg in again] == [(2, 2, 3, 0)]
    world.ack(two)
    assert world.numbers() == (3, 2, 3, 2, 0, 0, 0)


def test_another_deliver_subject_gets_the_pending_ones_at_once(world: World) -> None:
    listener = world.listener("out")
    world.put("s.1", "s.1")
    world.consumer(deliver_subject="out")
    assert len(listener.take()) == 2
    listener.unsubscribe_all()
    world.consumer(deliver_subject="elsewhere")
    listener.subscribe("elsewhere")
    assert [ack_numbers(msg)[:2] for msg in listener.take()] == [(2, 1), (2, 2)]


def test_a_queue_group_shares(world: World) -> None:
    members = [world.listener("out", "workers") for _ in range(2)]
    outsider = world.listener("out")
    world.consumer(deliver_subject="out", deliver_group="workers")
    world.put(*["s.1"] * 40)
    shares = [seqs(member.take()) for member in members]
    assert sorted(shares[0] + shares[1]) == list(range(1, 41))
    assert all(shares)
    assert outsider.take() == []


def test_heartbeats_when_idle(world: World) -> None:
    world.client.subscribe("out")
    world.put("s.1")
    world.consumer(deliver_subject="out", idle_heartbeat=200 * MS)
    world.client.take()
    beat = "100 Idle Heartbeat|Nats-Last-Consumer: 1|Nats-Last-Stream: 1"
    assert world.status(world.pass_time(0.5)) == [beat, beat]
    world.client.unsubscribe_all()
    assert world.pass_time(1) == []


def flow_requests(msgs: list[Msg]) -> list[Msg]:
    return [msg for msg in msgs if msg.headers == b"NATS/1.0 100 FlowControl Request\r\n\r\n"]


def test_flow_control_stops_after_a_window_and_goes_on_after_an_answer(world: World) -> None:
    listener = world.listener("out")
    world.consumer(deliver_subject="out", flow_control=True, idle_heartbeat=10 * SECOND)
    world.put(*["s.1"] * 50, data=b"x" * 100_000)
    got = listener.take()
    (request,) = flow_requests(got)
    assert got.index(request) == 11, "after half of two MiB"
    assert len(seqs(got)) == 21
    assert request.reply.startswith("$JS.FC.S.c.")
    world.pass_time(11)
    assert world.status(listener.take()) == [
        f"100 Idle Heartbeat|Nats-Last-Consumer: 21|Nats-Last-Stream: 21|Nats-Consumer-Stalled: {request.reply}"
    ]
    listener.publish("$JS.FC.S.c.none", b"")
    assert listener.take() == []
    listener.publish(request.reply, b"")
    more = listener.take()
    assert seqs(more) == list(range(22, 51)), "the window is twice as large now"
    assert len(flow_requests(more)) == 1


def test_a_rate_limit_spreads_messages_over_time(world: World) -> None:
    world.stream("R", max_msg_size=1000)
    world.put(*["r.1"] * 10, data=b"x" * 900)
    world.client.subscribe("out")
    world.consumer(stream="R", deliver_subject="out", rate_limit_bps=8 * 1000)
    early = len(seqs(world.client.take()))
    assert early <= 2
    counts = [len(seqs(world.pass_time(1))) for _ in range(10)]
    assert early + sum(counts) == 10
    assert max(counts) <= 2


def test_an_ephemeral_push_consumer_goes_with_its_listener(world: World) -> None:
    world.client.subscribe("out")
    world.consumer(
        "e", durable_name="", deliver_subject="out", ack_policy="none", inactive_threshold=5 * SECOND
    )
    world.pass_time(20)
    assert world.info("e")["push_bound"] is True
    listener, world.client = world.client, world.model.client()
    listener.unsubscribe_all()
    world.pass_time(4)
    assert "error" not in world.info("e")
    world.pass_time(2)
    assert world.info("e")["error"]["err_code"] == 10014


def test_an_ephemeral_push_consumer_outlives_a_restart_if_its_listener_returns(world: World) -> None:
    world.client.subscribe("out")
    for name in ("back", "gone"):
        world.consumer(
            name,
            durable_name="",
            deliver_subject=f"out.{name}",
            ack_policy="none",
            inactive_threshold=5 * SECOND,
        )
    world.restart()
    world.pass_time(3)
    world.client.subscribe("out.back")
    world.put("s.1")
    assert seqs(world.client.take()) == [1]
    world.pass_time(5)
    assert world.info("back")["push_bound"] is True
    assert "error" in world.info("gone")
