"""Rules for stream configurations: what is filled in, what is refused with which number. tests/interop compares texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.model import StreamConfig
from headrace.streams.api.json_reader import read
from headrace.streams.api.json_writer import to_json
from headrace.streams.api.types import StreamConfigRequest
from headrace.streams.errors import ApiError
from headrace.streams.stream import rules as stream_rules

SECOND = 10**9
OTHERS = {"OTHER": StreamConfig(name="OTHER", subjects=("other.>",), allow_direct=True).filled()}


def apply_defaults(pedantic: bool = False, **fields: Any) -> StreamConfig:
    request = read(to_json({"name": "S", **fields}), StreamConfigRequest)
    return stream_rules.apply_defaults(request, OTHERS, pedantic=pedantic)


def refused(pedantic: bool = False, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        apply_defaults(pedantic, **fields)
    return raised.value


def test_what_is_left_open_is_filled_in() -> None:
    config = apply_defaults()
    assert config.subjects == ("S",)
    assert (config.max_msgs, config.max_bytes, config.max_msgs_per_subject, config.max_consumers) == (-1,) * 4
    assert (config.num_replicas, config.duplicate_window) == (1, 120 * SECOND)
    assert config.metadata == {"_nats.req.level": "0"}
    assert apply_defaults(max_age=SECOND).duplicate_window == SECOND
    assert apply_defaults(max_msgs=-7).max_msgs == -1
    assert (
        apply_defaults(republish={"dest": "r.>"}).republish
        == apply_defaults(republish={"src": ">", "dest": "r.>"}).republish
    )
    assert apply_defaults(mirror={"name": "OTHER"}).mirror_direct, "taken from the origin"
    marked = apply_defaults(subject_delete_marker_ttl=SECOND, deny_purge=True)
    assert (marked.allow_msg_ttl, marked.allow_rollup_hdrs, marked.deny_purge) == (True, True, False)


@given(
    st.fixed_dictionaries(
        {}, optional={"max_msgs": st.integers(-3, 3), "max_age": st.sampled_from([0, SECOND])}
    )
)
def test_defaults_applied_twice_change_nothing(fields: dict[str, int]) -> None:
    config = apply_defaults(**fields)
    assert stream_rules.apply_defaults(config, OTHERS) == config
    assert config.filled() == config, "the store would write something else"


@pytest.mark.parametrize(
    ("fields", "number", "text"),
    [
        ({"name": "a b"}, 10052, "stream name is required"),
        ({"description": "d" * 4097}, 10052, "description is too long"),
        ({"subjects": ["a..b"]}, 10052, "invalid subject"),
        ({"subjects": ["a.*", "a.1"]}, 10052, 'subject "a.*" overlaps with "a.1"'),
        ({"subjects": [">"]}, 10052, "capturing all subjects requires no-ack"),
        ({"subjects": ["$JS.API.>"]}, 10052, "overlap with jetstream api"),
        ({"max_age": 5}, 10052, "max age needs to be >= 100ms"),
        ({"max_age": SECOND, "duplicate_window": 2 * SECOND}, 10052, "larger then max age"),
        ({"num_replicas": 6}, 10052, "maximum replicas is 5"),
        ({"num_replicas": -1}, 10133, ""),
        ({"discard_new_per_subject": True}, 10052, "requires discard new policy"),
        ({"allow_rollup_hdrs": True, "deny_purge": True}, 10052, "roll-ups require the purge permission"),
        ({"mirror": {"name": "OTHER"}, "subjects": ["z"]}, 10034, ""),
        ({"mirror": {"name": "S"}}, 10052, "detected cycle"),
        ({"sources": [{"name": "OTHER"}, {"name": "OTHER"}]}, 10140, ""),
        (
            {"subject_transform": {"src": "a.*", "dest": "b.$2"}},
            10156,
            "wildcard index out of range in $2: [2]",
        ),
        ({"republish": {"src": "S", "dest": "S"}}, 10052, "forms a cycle"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], number: int, text: str) -> None:
    error = refused(**fields)
    assert error.err_code == number and text in error.description


def test_pedantic_mode_refuses_silent_adjustments() -> None:
    assert refused(pedantic=True, max_msgs=-5).err_code == 10157
    assert refused(pedantic=True, max_age=SECOND).err_code == 10157
    assert apply_defaults(pedantic=True, max_msgs=0).max_msgs == -1


def changed(before: dict[str, Any], after: dict[str, Any]) -> StreamConfig:
    return stream_rules.check_update(apply_defaults(**before), apply_defaults(**after))


@pytest.mark.parametrize(
    ("before", "after", "number"),
    [
        ({}, {"storage": "memory"}, 10052),
        ({}, {"retention": "workqueue"}, 10052),
        ({"deny_delete": True}, {}, 10052),
        ({"allow_msg_ttl": True}, {}, 10052),
        ({}, {"allow_msg_counter": True}, 10052),
        ({}, {"mirror": {"name": "OTHER"}}, 10055),
    ],
)
def test_what_must_stay_stays(before: dict[str, Any], after: dict[str, Any], number: int) -> None:
    with pytest.raises(ApiError) as raised:
        changed(before, after)
    assert raised.value.err_code == number


def test_updates_that_work() -> None:
    assert changed({}, {"retention": "interest"}).retention == "interest"
    assert changed({"mirror": {"name": "OTHER"}}, {}).mirror is None, (
        "a mirror can become a stream of its own"
    )
    sealed = changed({"max_age": SECOND}, {"sealed": True, "max_age": SECOND})
    assert (sealed.max_age, sealed.discard, sealed.deny_delete, sealed.deny_purge) == (0, "new", True, True)


def test_the_notes_of_a_server_make_no_difference() -> None:
    assert stream_rules.same(apply_defaults(), apply_defaults(metadata={"_nats.ver": "2.9.1"}))
    assert not stream_rules.same(apply_defaults(), apply_defaults(metadata={"a": "b"}))
