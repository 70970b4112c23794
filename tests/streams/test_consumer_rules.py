"""Rules for consumer configurations: what is filled in, what is refused with which number, what may change."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.model import ConsumerConfig, ConsumerLimits, StreamConfig
from headrace.streams.api.json_reader import read
from headrace.streams.api.json_writer import to_json
from headrace.streams.api.types import CreateConsumerRequest
from headrace.streams.consumer import changes as consumer_changes
from headrace.streams.consumer import rules as consumer_rules
from headrace.streams.consumer.rules import Caps
from headrace.streams.errors import ApiError
from headrace.streams.limits import go_duration

SECOND = 10**9
STREAM = StreamConfig(name="S", subjects=("s.>",)).filled()
QUEUE = StreamConfig(name="W", subjects=("w.>",), retention="workqueue").filled()


def apply_defaults(
    stream: StreamConfig = STREAM, caps: Caps | None = None, pedantic: bool = False, **fields: Any
) -> ConsumerConfig:
    request = read(to_json({"config": fields}), CreateConsumerRequest)
    return consumer_rules.apply_defaults(request.config, stream, caps or Caps(), pedantic=pedantic)


def refused(*args: Any, **fields: Any) -> int:
    with pytest.raises(ApiError) as raised:
        apply_defaults(*args, **fields)
    return raised.value.err_code


def test_what_is_left_open_is_filled_in() -> None:
    config = apply_defaults(ack_policy="explicit")
    assert (config.ack_wait, config.max_deliver) == (30 * SECOND, -1)
    assert (config.max_ack_pending, config.max_waiting) == (1000, 512)
    assert apply_defaults().max_ack_pending == 0, "nothing is acked"
    assert apply_defaults(ack_policy="explicit", backoff=[SECOND, 5 * SECOND]).ack_wait == SECOND
    assert apply_defaults(deliver_subject="d").max_waiting == 0
    assert apply_defaults(caps=Caps(max_ack_pending=50), ack_policy="all").max_ack_pending == 50
    assert consumer_rules.created(config).inactive_threshold == 5 * SECOND
    durable = consumer_rules.created(apply_defaults(durable_name="d"))
    assert (durable.name, durable.inactive_threshold) == ("d", 0)


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"deliver_subject": "a.*"}, 10079),
        ({"deliver_subject": "s.1"}, 10081),
        ({"rate_limit_bps": 5}, 10086),
        ({"idle_heartbeat": SECOND}, 10088),
        ({"deliver_subject": "d", "idle_heartbeat": 1}, 10083),
        ({"deliver_subject": "d", "flow_control": True}, 10108),
        ({"deliver_policy": "by_start_sequence"}, 10094),
        ({"deliver_policy": "last_per_subject"}, 10094),
        ({"opt_start_seq": 5}, 10094),
        ({"ack_policy": "explicit", "backoff": [1, 2], "max_deliver": 1}, 10116),
        ({"filter_subject": "a", "filter_subjects": ["b"]}, 10136),
        ({"filter_subjects": ["a.*", "a.b"]}, 10138),
        ({"filter_subjects": [""]}, 10139),
        ({"sample_freq": "often"}, 10095),
        ({"max_expires": 1}, 10115),
        ({"durable_name": "a", "name": "b"}, 10132),
        ({"priority_policy": "overflow"}, 10159),
        ({"num_replicas": 3}, 10074),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], number: int) -> None:
    assert refused(**fields) == number


def test_limits_of_stream_and_server() -> None:
    limits = ConsumerLimits(inactive_threshold=SECOND, max_ack_pending=10)
    stream = StreamConfig(name="L", consumer_limits=limits).filled()
    assert apply_defaults(stream, ack_policy="explicit").max_ack_pending == 10
    assert refused(stream, ack_policy="explicit", max_ack_pending=11) == 10121
    assert refused(stream, inactive_threshold=2 * SECOND) == 10153
    assert refused(stream, None, True, ack_policy="explicit") == 10157
    assert refused(STREAM, Caps(max_request_batch=5), max_batch=6) == 10125


def queue_with(*filters: tuple[str, ...]) -> list[ConsumerConfig]:
    return [ConsumerConfig(ack_policy="explicit", filter_subjects=each) for each in filters]


@pytest.mark.parametrize(
    ("there", "fields", "number"),
    [
        ([], {"ack_policy": "all"}, 10098),
        ([], {"deliver_policy": "new"}, 10101),
        ([()], {}, 10099),
        ([()], {"filter_subject": "w.1"}, 10100),
        ([("w.*",)], {"filter_subject": "w.1"}, 10100),
        ([("w.1",)], {"filter_subject": "w.>"}, 10100),
        ([("w.1",)], {"filter_subjects": ["w.2", "w.3"]}, None),
    ],
)
def test_one_consumer_per_message_of_a_work_queue(
    there: list[tuple[str, ...]], fields: dict[str, Any], number: int | None
) -> None:
    config = apply_defaults(QUEUE, **{"ack_policy": "explicit", **fields})
    others = queue_with(*there)
    if number is None:
        consumer_rules.check_beside(config, QUEUE, others)
        return
    with pytest.raises(ApiError) as raised:
        consumer_rules.check_beside(config, QUEUE, others)
    assert raised.value.err_code == number


def test_what_may_change() -> None:
    before = consumer_rules.created(apply_defaults(durable_name="d", ack_policy="explicit"))
    after = apply_defaults(durable_name="d", ack_policy="explicit", filter_subject="s.1", max_ack_pending=5)
    assert consumer_changes.check_update(before, after, active=False).filter_subject == "s.1"
    for change in (
        {"ack_policy": "all"},
        {"deliver_policy": "new"},
        {"deliver_subject": "x"},
        {"max_waiting": 5},
    ):
        wanted = apply_defaults(**{"durable_name": "d", "ack_policy": "explicit", **change})
        with pytest.raises(ApiError, match="can not"):
            consumer_changes.check_update(before, wanted, active=False)
    push = apply_defaults(durable_name="d", deliver_subject="one")
    with pytest.raises(ApiError) as raised:
        consumer_changes.check_update(
            push, apply_defaults(durable_name="d", deliver_subject="two"), active=True
        )
    assert raised.value.err_code == 10013
    moved = consumer_changes.check_update(
        push, apply_defaults(durable_name="d", deliver_subject="two"), active=False
    )
    assert moved.deliver_subject == "two"


def test_durations_as_errors_show_them() -> None:
    shown = {
        1: "1ns",
        1500: "1.5µs",
        250 * 10**6: "250ms",
        SECOND: "1s",
        90 * SECOND: "1m30s",
        3605 * SECOND: "1h0m5s",
    }
    assert {ns: go_duration(ns) for ns in shown} == shown
    assert go_duration(0) == "0s"
