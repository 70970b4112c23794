"""A server at rest rests: after everything that consumers and streams do, no timer is due again at once.

Time is the test's own. `turns_in` does what the loop does: it sleeps until the next timer, runs a turn, and counts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DiskFull
from headrace.streams.limits import ServerFacts
from tests.streams.consuming import SECOND, World, seqs

MINUTES = 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.model.__exit__(None, None, None)


def turns_in(world: World, seconds: float) -> int:
    """How often the loop would wake up in that time."""
    engine, end, turns = world.model.engine, world.time + int(seconds * SECOND), 0
    while turns < 100_000:
        due = engine.timers.next_ns()
        now = engine.now()
        if not engine.ready and (due is None or world.time + max(due - now, 0) > end):
            break
        if not engine.ready and due is not None:
            world.time += max(due - now, 0)
        engine.turn()
        world.model.deliver()
        turns += 1
    world.time = max(world.time, end)
    return turns


def checkpoint_by_somebody_else(world: World) -> None:
    """What the upkeep thread does once a second: o.dat is written, and the ledgers' changes with it."""
    for account in world.model.engine.accounts.values():
        for stream in account.streams.values():
            stream.store.consumers.checkpoint()


def pull_and_leave(world: World) -> None:
    world.fetch(3)


def pull_with_everything(world: World) -> None:
    world.pull(batch=2, expires=5 * SECOND, idle_heartbeat=SECOND)
    world.pull(batch=100, expires=5 * SECOND, idle_heartbeat=SECOND)


def push_and_leave(world: World) -> None:
    listener = world.listener("push.here")
    world.put("s.1", "s.2")
    world.pass_time(0.3)
    listener.unsubscribe_all()


def ack_some(world: World) -> None:
    first, second, third = world.fetch(3)
    world.ack(first)
    world.ack(second, b"-NAK")
    world.ack(third, b"+WPI")
    world.client.request(first.reply, b"+ACK")


KINDS: dict[str, tuple[dict[str, Any], Callable[[World], None]]] = {
    "pull": ({}, pull_and_leave),
    "pull, heartbeats": ({}, pull_with_everything),
    "pull, acks": ({}, ack_some),
    "pull, max_deliver": ({"max_deliver": 2, "ack_wait": SECOND}, pull_and_leave),
    "pull, backoff": ({"max_deliver": 3, "backoff": [SECOND, 2 * SECOND]}, pull_and_leave),
    "pull, original": ({"replay_policy": "original"}, pull_and_leave),
    "pull, inactive": ({"inactive_threshold": 3600 * SECOND}, pull_and_leave),
    "pull, no acks": ({"ack_policy": "none"}, pull_and_leave),
    "pull, all": ({"ack_policy": "all"}, ack_some),
    "pull, paused": ({"pause_until": "2027-01-15T08:05:00Z"}, pull_with_everything),
    "pull, last per subject": (
        {"deliver_policy": "last_per_subject", "filter_subject": "s.*"},
        pull_and_leave,
    ),
    "pull, overflow": (
        {"priority_policy": "overflow", "priority_groups": ["g"]},
        lambda world: _grouped(world, min_pending=10),
    ),
    "pull, pinned": (
        {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": 120 * SECOND},
        lambda world: _grouped(world),
    ),
    "push": ({"deliver_subject": "push.here"}, push_and_leave),
    "push, original": ({"deliver_subject": "push.here", "replay_policy": "original"}, push_and_leave),
    "push, rate": ({"deliver_subject": "push.here", "rate_limit_bps": 64}, push_and_leave),
    "push, flow control": (
        {"deliver_subject": "push.here", "flow_control": True, "idle_heartbeat": SECOND},
        push_and_leave,
    ),
    "push, rate, paused": (
        {"deliver_subject": "push.here", "rate_limit_bps": 8_000_000, "pause_until": "2027-01-15T08:05:00Z"},
        push_and_leave,
    ),
}


def _grouped(world: World, **more: Any) -> None:
    body = json.dumps({"batch": 5, "expires": 5 * SECOND, "group": "g", **more}).encode()
    world.ask(body)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("checkpoint", [False, True])
def test_ten_minutes_of_rest(world: World, kind: str, checkpoint: bool) -> None:
    """Redeliveries to nobody, heartbeats to nobody, pauses that end: some turns each, not one after the other."""
    config, use = KINDS[kind]
    world.stream()
    for pause in (0, 0.5, 3):  # for replay at the pace of the original
        world.pass_time(pause)
        world.put("s.1", "s.2", "s.3")
    world.consumer(**config)
    use(world)
    if checkpoint:
        checkpoint_by_somebody_else(world)
    turns = turns_in(world, MINUTES * 60)
    assert turns < 200, f"{turns} turns in {MINUTES} minutes of rest"


def test_streams_with_ages_and_ttls_rest(tmp_path: Path) -> None:
    world = World(tmp_path, facts=ServerFacts(origins=True))
    world.stream("A", max_age=5 * SECOND)
    world.stream("T", allow_msg_ttl=True, subject_delete_marker_ttl=2 * SECOND)
    world.stream("M", mirror={"name": "A"}, subjects=None)
    world.stream("Q", subjects=["q"], sources=[{"name": "A"}])
    world.put("a.1", "a.2")
    assert world.client.request("t.1", b"x", b"NATS/1.0\r\nNats-TTL: 3s\r\n\r\n") is not None
    world.pass_time(1)
    turns = turns_in(world, MINUTES * 60)
    world.model.__exit__(None, None, None)
    assert turns < 200, f"{turns} turns in {MINUTES} minutes of rest"


def test_a_timer_that_raises_harms_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk while TTLs expire: consumers redeliver all the same, and after healing the messages go."""
    world.stream("T", allow_msg_ttl=True)
    world.stream()
    world.consumer(ack_wait=2 * SECOND)
    world.put("s.1")
    assert seqs(world.fetch(1)) == [1]
    assert world.client.request("t.1", b"x", b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n") is not None
    store = world.model.account().streams["T"].store

    def full(*_args: object) -> None:
        raise DiskFull("no room for a tombstone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "remove", full)
        world.pass_time(10)
        assert store.log.messages == 1
        assert seqs(world.fetch(1)) == [1], "the other stream's consumer was woken"
        turns = turns_in(world, 60)
        assert turns < 200, f"{turns} turns in a minute with a full disk"
    world.pass_time(3)
    assert store.log.messages == 0


def test_a_consumer_whose_delivery_raised_is_served_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream()
    world.consumer()
    consumer: Any = world.model.account().streams["S"].consumers["c"]

    def broken(*_args: object) -> None:
        raise OSError("a read that failed")

    with monkeypatch.context() as patch:
        patch.setattr(consumer, "_send", broken)
        world.put("s.1")
        assert world.pull(expires=60 * SECOND) == []
        world.pass_time(3)
    got = world.pass_time(2)
    assert seqs(got) == [1]
