"""Consumers with time under control: numbers, redelivery, limits, starts, what removal does to them.

Expected numbers and texts were seen on nats-server 2.15.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.consuming import SECOND, World, ack_numbers, seqs
from tests.support.model import Msg


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.model.__exit__(None, None, None)


def events(msgs: list[Msg], word: str) -> list[dict[str, object]]:
    return [json.loads(msg.data) for msg in msgs if f".{word}." in msg.subject]


# Numbers


def test_the_walk_through_of_the_source_document(world: World) -> None:
    world.stream()
    world.consumer()
    assert world.numbers() == (0, 0, 0, 0, 0, 0, 0)
    world.put("s.1")
    (first,) = world.fetch(1)
    assert ack_numbers(first) == (1, 1, 1, 0)
    world.ack(first)
    assert world.numbers() == (1, 1, 1, 1, 0, 0, 0)
    world.put("s.1")
    world.fetch(1)
    assert world.numbers() == (2, 2, 1, 1, 1, 0, 0)
    world.pass_time(31)
    world.fetch(1)
    assert world.numbers() == (3, 2, 1, 1, 1, 1, 0)
    world.pass_time(31)
    (last,) = world.fetch(1)
    assert ack_numbers(last) == (3, 2, 4, 0)
    world.ack(last)
    assert world.numbers() == (4, 2, 4, 2, 0, 0, 0)


def test_the_floor_waits_for_gaps_and_jumps_over_filtered_messages(world: World) -> None:
    world.stream()
    world.put("s.1", "s.2", "s.2", "s.1", "s.2", "s.2")
    world.consumer(filter_subject="s.1")
    one, two = world.fetch(2)
    assert world.numbers() == (2, 4, 0, 0, 2, 0, 0)
    world.ack(two)
    assert world.numbers()[2:4] == (0, 0)
    world.ack(one)
    assert world.numbers()[2:4] == (2, 4)


def test_ack_all_acks_everything_below(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 6)
    world.consumer(ack_policy="all")
    got = world.fetch(5)
    world.ack(got[3])
    assert world.numbers() == (5, 5, 4, 4, 1, 0, 1)
    world.ack(got[1])
    assert world.numbers() == (5, 5, 4, 4, 1, 0, 1)


def test_ack_none_is_acked_when_it_is_sent(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 3)
    world.consumer(ack_policy="none")
    world.fetch(2)
    assert world.numbers() == (2, 2, 2, 2, 0, 0, 1)


def test_pending_counts_follow_publishes_deletes_and_purges(world: World) -> None:
    world.stream()
    world.put("s.1", "s.2", "s.1", "s.2", "s.1")
    world.consumer(filter_subject="s.1")
    assert world.numbers()[6] == 3
    world.fetch(1)
    assert world.numbers()[6] == 2
    world.put("s.1", "s.2")
    assert world.numbers()[6] == 3
    world.client.api("STREAM.MSG.DELETE.S", {"seq": 3})
    assert world.numbers()[6] == 2
    world.client.api("STREAM.PURGE.S", {"filter": "s.2"})
    assert world.numbers()[6] == 2
    world.client.api("STREAM.PURGE.S")
    assert world.numbers() == (1, 7, 1, 7, 0, 0, 0)


def test_a_deleted_pending_message_is_done_and_reported(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 5)
    world.consumer()
    world.fetch(3)
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    world.client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    (event,) = events(world.client.take(), "MSG_TERMINATED")
    assert (event["stream_seq"], event["reason"]) == (1, "Unacknowledged message was deleted")
    assert world.numbers() == (3, 3, 1, 1, 2, 0, 2)
    world.client.api("STREAM.PURGE.S", {"seq": 3})
    assert world.numbers() == (3, 3, 2, 2, 1, 0, 2)


def test_limits_that_evict_unacked_messages_move_the_floor(world: World) -> None:
    world.stream(max_msgs=3)
    world.put(*["s.1"] * 3)
    world.consumer()
    world.fetch(2)
    world.put(*["s.1"] * 3)
    assert world.numbers() == (2, 2, 2, 2, 0, 0, 3)
    assert seqs(world.fetch(9)) == [4, 5, 6]


# Redelivery


def test_backoff_then_given_up_with_one_advisory(world: World) -> None:
    world.stream()
    world.put("s.1")
    world.consumer(max_deliver=3, backoff=[200_000_000, 400_000_000])
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    start, times = world.time, list[int]()
    world.pull(batch=9, expires=60 * SECOND)
    for _ in range(100):
        got = world.pass_time(0.02)
        times += [(world.time - start) // 10_000_000 * 10 for _ in seqs(got)]
        if given_up := events(got, "MAX_DELIVERIES"):
            break
    assert [round(each, -2) for each in times] == [200, 600]
    assert [(each["stream_seq"], each["deliveries"]) for each in given_up] == [(1, 3)]
    assert world.numbers() == (3, 1, 0, 0, 0, 1, 0)
    assert events(world.pass_time(3), "MAX_DELIVERIES") == []


def test_nak_now_later_and_progress(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 4)
    world.consumer(ack_wait=10 * SECOND)
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.>")
    one, two, three, four = world.fetch(4)
    (event,) = events(world.ack(three, b"-NAK"), "MSG_NAKED")
    assert (event["consumer_seq"], event["stream_seq"], event["deliveries"]) == (3, 3, 1)
    world.ack(one, b"-NAK")
    world.ack(two, b'-NAK {"delay": 2000000000}')
    assert seqs(world.fetch(9)) == [3, 1], "in the order they were refused"
    world.pass_time(1)
    assert world.fetch(9) == []
    world.pass_time(1.1)
    assert seqs(world.fetch(9)) == [2]
    world.pass_time(5)
    world.ack(four, b"+WPI")
    world.pass_time(3)
    assert seqs(world.fetch(9)) == [1, 3], "their ten seconds are over, those of 4 began again"
    world.ack(four, b"-NAK 1s")
    assert world.fetch(9) == []
    world.pass_time(1.1)
    assert seqs(world.fetch(9)) == [4]


def test_terminated_messages_do_not_come_again(world: World) -> None:
    world.stream()
    world.put("s.1", "s.1")
    world.consumer(ack_wait=SECOND)
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    one, two = world.fetch(2)
    (event,) = events(world.ack(one, b"+TERM not today"), "MSG_TERMINATED")
    assert event["reason"] == "not today"
    world.ack(two, b"+TERM")
    world.pass_time(2)
    assert world.fetch(5) == []
    assert world.numbers() == (2, 2, 2, 2, 0, 0, 0)


def test_max_ack_pending_stalls_and_an_ack_goes_on(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 6)
    world.consumer(max_ack_pending=2)
    got = world.pull(batch=5, expires=60 * SECOND)
    assert seqs(got) == [1, 2]
    assert seqs(world.ack(got[0])) == [3]
    assert seqs(world.ack(got[1], b"-NAK")) == [2], "redeliveries are not held back"


def test_double_acks_are_answered_whatever_they_say_but_next(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 5)
    world.consumer()
    got = world.fetch(4)
    for msg, body in zip(got, (b"", b"-NAK", b"+WPI", b"bogus"), strict=True):
        answer = world.client.request(msg.reply, body)
        assert answer is not None
        assert (answer.data, answer.headers) == (b"", None)
    assert world.client.request(got[0].reply, b"+ACK") is not None, "again"
    world.ack(got[2], b"+TERM")
    (more,) = [msg for msg in world_next(world, got[3]) if msg.reply]
    assert seqs([more]) == [2], "refused before, so it comes first"
    assert world.info()["num_ack_pending"] == 1


def world_next(world: World, msg: Msg) -> list[Msg]:
    world.client.publish(msg.reply, b"+NXT", "_INBOX.next")
    return world.client.take()


@pytest.mark.parametrize("body", [b"+NXT 2", b'+NXT {"batch": 2, "no_wait": true}'])
def test_next_acks_and_asks(world: World, body: bytes) -> None:
    world.stream()
    world.put(*["s.1"] * 5)
    world.consumer()
    (first,) = world.fetch(1)
    world.client.publish(first.reply, body, "_INBOX.n")
    got = world.client.take()
    assert seqs(got) == [2, 3]
    assert world.numbers()[2:5] == (1, 1, 2)


# Starts and filters


@pytest.mark.parametrize(
    ("policy", "start", "first"),
    [
        ({}, 0, [1, 2]),
        ({"deliver_policy": "last"}, 5, [6]),
        ({"deliver_policy": "last", "filter_subject": "s.2"}, 4, [5]),
        ({"deliver_policy": "new"}, 6, []),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, 3, [4, 5]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 40}, 39, []),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.*"}, 2, [3, 5]),
    ],
)
def test_where_a_consumer_starts(
    world: World, policy: dict[str, object], start: int, first: list[int]
) -> None:
    world.stream()
    world.put("s.1", "s.2", "s.3", "s.1", "s.2", "s.1")
    world.consumer(**policy)
    assert world.numbers()[:4] == (0, start, 0, start)
    assert seqs(world.fetch(2)) == first


def test_start_by_time(world: World) -> None:
    world.stream()
    world.put("s.1")
    world.pass_time(10)
    world.put("s.1")
    for name, at, first in (
        ("b", "2027-01-15T07:59:00Z", [1]),
        ("m", "2027-01-15T08:00:05Z", [2]),
        ("f", "2030-01-01T00:00:00Z", []),
    ):
        world.consumer(name, deliver_policy="by_start_time", opt_start_time=at)
        assert seqs(world.fetch(1, name)) == first, name


def test_last_per_subject_then_everything_newer(world: World) -> None:
    world.stream()
    world.put("s.1", "s.2", "s.3", "s.1", "s.2", "s.1")
    world.consumer(deliver_policy="last_per_subject", filter_subject="s.*")
    assert world.numbers()[6] == 3
    world.put("s.2")
    got = world.fetch(10)
    assert seqs(got) == [3, 5, 6, 7]
    assert [ack_numbers(msg)[3] for msg in got] == [3, 2, 1, 0]


def test_several_filters_and_a_change_of_filter(world: World) -> None:
    world.stream()
    world.put("s.1", "s.2", "s.3", "s.1", "s.2", "s.3")
    world.consumer(filter_subjects=["s.1", "s.3"])
    assert seqs(world.fetch(2)) == [1, 3]
    world.consumer(filter_subjects=["s.2"])
    assert world.numbers()[6] == 1
    assert seqs(world.fetch(5)) == [5]


def test_headers_only(world: World) -> None:
    world.stream()
    world.put("s.1", data=b"12345")
    world.consumer(headers_only=True)
    (msg,) = world.fetch(1)
    assert (msg.headers, msg.data) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")


def test_reset(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 5)
    world.consumer()
    got = world.fetch(4)
    world.ack(got[0])
    world.ack(got[1])
    assert world.client.api("CONSUMER.RESET.S.c")["reset_seq"] == 3
    assert world.numbers() == (0, 2, 0, 2, 0, 0, 3)
    assert world.client.api("CONSUMER.RESET.S.c", {"seq": 2})["reset_seq"] == 2
    assert ack_numbers(world.fetch(1)[0]) == (1, 2, 1, 3)


# Retention


def test_a_work_queue_lets_go_of_what_is_acked_or_terminated(world: World) -> None:
    world.stream(retention="workqueue")
    world.put(*["s.1"] * 4)
    world.consumer()
    one, two, three = world.fetch(3)
    world.ack(one)
    world.ack(two, b"+TERM")
    world.client.request(three.reply, b"")
    state = world.client.api("STREAM.INFO.S")["state"]
    assert (state["messages"], state["first_seq"]) == (1, 4)


def test_interest_waits_for_every_consumer_that_wants_it(world: World) -> None:
    world.stream(retention="interest")
    world.consumer("a")
    world.consumer("b", filter_subject="s.1")
    world.consumer("n", ack_policy="none", filter_subject="s.2")
    world.put("s.1", "s.2")
    for msg in world.fetch(2, "a"):
        world.ack(msg)
    assert world.client.api("STREAM.INFO.S")["state"]["messages"] == 2
    (msg,) = world.fetch(2, "b")
    world.ack(msg)
    assert world.client.api("STREAM.INFO.S")["state"]["first_seq"] == 2
    world.fetch(1, "n")
    assert world.client.api("STREAM.INFO.S")["state"]["messages"] == 0


def test_what_was_given_up_stays_in_a_work_queue_over_a_restart(world: World) -> None:
    world.stream(retention="workqueue")
    world.put("s.1", "s.1")
    world.consumer(max_deliver=1, ack_wait=SECOND)
    world.ack(world.fetch(2)[1])
    world.pass_time(2)
    assert world.numbers()[4] == 0
    world.restart()
    assert world.client.api("STREAM.INFO.S")["state"]["messages"] == 1


# Sampling, pause, replay


def test_sampled_acks(world: World) -> None:
    world.stream()
    world.put("s.1", "s.1")
    world.consumer(sample_freq="100%")
    world.client.subscribe("$JS.EVENT.METRIC.>")
    one, two = world.fetch(2)
    world.pass_time(0.5)
    got = world.ack(one)
    metric = json.loads(got[0].data)
    assert (metric["stream_seq"], metric["ack_time"], metric["deliveries"]) == (1, SECOND // 2, 1)
    assert world.ack(two, b"+TERM") == [], "only acks are sampled"
    assert world.numbers()[4] == 0


def test_pause(world: World) -> None:
    world.stream()
    world.put("s.1", "s.1")
    world.consumer()
    until = "2027-01-15T08:00:10Z"  # ten seconds from now
    world.client.api("CONSUMER.PAUSE.S.c", {"pause_until": until})
    info = world.info()
    assert (info["paused"], info["pause_remaining"]) == (True, 10 * SECOND)
    assert world.status(world.pull(batch=2, no_wait=True)) == ["404 No Messages"]
    assert world.pull(batch=2, expires=60 * SECOND) == []
    assert seqs(world.pass_time(9)) == []
    assert seqs(world.pass_time(2)) == [1, 2]
    assert "paused" not in world.info()


def test_replay_at_the_original_pace(world: World) -> None:
    world.stream()
    for gap in (0, 2, 1):
        world.pass_time(gap)
        world.put("s.1")
    world.consumer(replay_policy="original")
    start = world.time
    got = world.pull(batch=10, expires=60 * SECOND)
    times = [0 for _ in seqs(got)]
    for _ in range(400):
        times += [round((world.time - start) / SECOND) for _ in seqs(world.pass_time(0.02))]
    assert times == [0, 2, 3]
    world.put("s.1")
    assert len(seqs(world.client.take())) == 1, "what is new comes at once"


# Life


def test_an_ephemeral_consumer_goes_when_it_is_not_used(world: World) -> None:
    world.stream()
    world.put("s.1")
    world.consumer("e", durable_name="", inactive_threshold=5 * SECOND)
    world.pass_time(4)
    (msg,) = world.fetch(1, "e")
    world.pass_time(4)
    world.ack(msg)
    world.pass_time(4)
    world.pull("e", expires=20 * SECOND)
    world.pass_time(15)
    assert world.info("e")["num_waiting"] == 1, "a waiting request is use"
    world.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.DELETED.>")
    got = world.pass_time(11)
    assert [event["consumer"] for event in events(got, "DELETED")] == ["e"]
    assert world.info("e")["error"]["err_code"] == 10014


def test_an_ephemeral_consumer_outlives_a_restart_if_it_is_used_again(world: World) -> None:
    world.stream()
    world.put("s.1", "s.1")
    world.consumer("e", durable_name="", inactive_threshold=5 * SECOND)
    world.consumer("f", durable_name="", inactive_threshold=5 * SECOND)
    world.ack(world.fetch(1, "e")[0])
    world.restart()
    world.pass_time(4)
    assert seqs(world.fetch(2, "e")) == [2]
    world.pass_time(3)
    assert world.numbers("e")[:4] == (2, 2, 1, 1)
    assert "error" in world.info("f")


def test_state_is_the_same_after_a_restart(world: World) -> None:
    world.stream()
    world.put(*["s.1"] * 6)
    world.consumer(max_deliver=2, ack_wait=SECOND)
    got = world.fetch(4)
    world.ack(got[1])
    world.pass_time(1.5)
    world.fetch(1)
    before = world.numbers()
    world.restart()
    assert world.numbers() == before
    world.pass_time(2)
    assert seqs(world.fetch(9)) == [3, 4, 5, 6], "1 was given up, 3 and 4 are due"


def test_a_double_ack_survives_a_crash_and_a_plain_one_a_quarter_second_later(tmp_path: Path) -> None:
    world = World(tmp_path / "a", durability="sync")
    world.stream()
    world.put(*["s.1"] * 4)
    world.consumer()
    got = world.fetch(4)
    assert world.client.request(got[1].reply, b"") is not None
    world.ack(got[2])
    world.pass_time(0.3)
    world.ack(got[0])  # not written yet
    world.model.volume._lock.release()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    other = World.__new__(World)
    other.place, other.options, other.time = tmp_path / "a", {"durability": "sync"}, world.time
    other.start()
    assert other.numbers()[:5] == (4, 4, 0, 0, 2)
    other.pass_time(31)
    assert seqs(other.fetch(9)) == [1, 4]


# Acknowledgements of what was never delivered


@pytest.mark.parametrize(
    ("retention", "policy"),
    [(r, "explicit") for r in ("limits", "workqueue", "interest")]
    + [(r, "all") for r in ("limits", "interest")],
)
@pytest.mark.parametrize("word", [b"+ACK", b"", b"+TERM"])
def test_an_ack_before_the_delivery_is_neither_recorded_nor_confirmed(
    world: World, retention: str, policy: str, word: bytes
) -> None:
    """As after a crash that forgot deliveries: who acks them gets no answer, and the messages come."""
    world.stream(retention=retention)
    world.consumer(ack_policy=policy)
    world.put("s.1", "s.1", "s.1")
    (first,) = world.fetch(1)
    assert world.client.request("$JS.ACK.S.c.1.2.2.1700000000000000000.0", word) is None
    assert world.client.request("$JS.ACK.S.c.1.3.3.1700000000000000000.0", word) is None
    assert world.client.request("$JS.ACK.S.c.1.9.9.1700000000000000000.0", word) is None
    assert world.numbers() == (1, 1, 0, 0, 1, 0, 2)
    assert seqs(world.fetch(5)) == [2, 3]
    confirmed = world.client.request(first.reply, word)
    assert confirmed is not None and confirmed.data == b""
    assert world.client.request(first.reply, word) is not None, "acked is acked"
    assert world.numbers()[2:5] == (1, 1, 2)


def test_what_is_confirmed_is_kept_whatever_its_delivery_was_numbered(world: World) -> None:
    """Policy `all`: a forgotten delivery's number is above or below those of the new process."""
    world.stream()
    world.consumer(ack_policy="all")
    world.put(*["s.1"] * 6)
    world.fetch(4)
    assert world.client.request("$JS.ACK.S.c.1.2.70.1700000000000000000.0", b"+ACK") is not None
    assert world.numbers()[2:5] == (4, 2, 2)
    assert world.client.request("$JS.ACK.S.c.1.3.1.1700000000000000000.0", b"+ACK") is not None
    assert world.numbers()[2:5] == (4, 3, 1)
    world.restart()
    assert world.numbers()[2:5] == (4, 3, 1)


def test_a_consumer_without_acks_has_nobody_who_answers_them(world: World) -> None:
    world.stream()
    world.consumer(ack_policy="none")
    world.put("s.1")
    (first,) = world.fetch(1)
    answer = world.client.request(first.reply or "$JS.ACK.S.c.1.1.1.1700000000000000000.0", b"+ACK")
    assert answer is not None and answer.headers is not None and b"503" in answer.headers
