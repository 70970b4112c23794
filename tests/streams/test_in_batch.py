"""Publishes that depend on each other and arrive in one piece: answered as if each had come alone.

The same requests go to three servers: to one in a single buffer, to one one by one, and to one in a single buffer that
stores every message alone, as it does with rollups. Answers, messages and state are equal; for the named cases the
answers are also what nats-server 2.15.2 says to the single ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._core import Disk, Plan
from headrace.streams.stream.plan import checks
from tests.support.memory_model import MemoryModel, Publish, StillClock, headers_of
from tests.support.peers import NatsServer
from tests.support.rawclient import RawClient

Answer = tuple[int, str]
"""The sequence, and `duplicate` or the error's description."""
ID, LAST, LAST_HERE = "Nats_Msg_Id", "Nats_Expected_Last_Sequence", "Nats_Expected_Last_Subject_Sequence"
LAST_ID, ROLLUP = "Nats_Expected_Last_Msg_Id", "Nats_Rollup"
ELSEWHERE, STREAM, TTL = "Nats_Expected_Last_Subject_Sequence_Subject", "Nats_Expected_Stream", "Nats_TTL"
PRODUCER, NUMBERS = "Headrace_Producer", "Headrace_Producer_Seq"


def pub(subject: str, data: bytes = b"x", **headers: object) -> Publish:
    return subject, headers_of(**headers), data


class Server:
    """A stream S over s.*, with some consumers."""

    def __init__(
        self, config: dict[str, Any], filters: tuple[str, ...], durability: str = "interval"
    ) -> None:
        self.model = MemoryModel(Disk.memory(), StillClock(), durability=durability)
        self.wire = self.model.wire()
        answer = self.wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], **config})
        assert "error" not in answer, answer
        for number, filter in enumerate(filters):
            consumer: dict[str, Any] = {"durable_name": f"c{number}", "ack_policy": "explicit"}
            if filter:
                consumer["filter_subject"] = filter
            body = {"stream_name": "S", "config": consumer}
            answer = self.wire.api(f"CONSUMER.DURABLE.CREATE.S.c{number}", body)
            assert "error" not in answer, answer

    def store_each_alone(self) -> None:
        """No message is stored by the kernel with those around it, as if the store were nearly full."""
        stream = self.model.account().streams["S"]
        stream.plan = Plan([*checks(stream.config), ("limits", 0, 0)])

    def ask(self, requests: list[Publish]) -> list[Answer]:
        return [short(msg.json() if msg else None) for msg in self.wire.ask(requests)]

    def content(self) -> tuple[Any, ...]:
        """Messages, the stream's numbers, the consumers' numbers."""
        store = self.model.account().streams["S"].store
        messages = [
            (record.seq, record.subject, record.headers, record.data) for record in store.read(1, 1000)
        ]
        state = self.wire.api("STREAM.INFO.S")["state"]
        listed = self.wire.api("CONSUMER.LIST.S")["consumers"]
        return messages, state, [(each["num_pending"], each["delivered"]) for each in listed]


def short(answer: dict[str, Any] | None) -> Answer:
    assert answer is not None, "a publish was not answered"
    if "error" in answer:
        return answer["seq"], answer["error"]["description"]
    return answer["seq"], "duplicate" if answer.get("duplicate") else ""


def both_ways(
    requests: list[Publish], config: dict[str, Any], filters: tuple[str, ...] = (), before: int = 0
) -> list[Answer]:
    """The answers to one buffer, which are those to single requests and to messages that are stored alone."""
    servers = together, single, alone = [Server(config, filters) for _ in range(3)]
    try:
        alone.store_each_alone()
        first, rest = requests[:before], requests[before:]
        for server in servers:
            for each in first:
                server.ask([each])
        answers = together.ask(rest)
        assert answers == [server_answer for each in rest for server_answer in single.ask([each])]
        assert together.content() == single.content()
        assert answers == alone.ask(rest)
        assert together.content() == alone.content()
        return answers
    finally:
        for server in servers:
            server.model.close()


WRONG = "wrong last sequence: {}"
FULL = "maximum messages exceeded"
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], list[Publish], list[Answer]]] = {
    "one id twice": (
        {},
        (),
        [pub("s.a", **{ID: "x"}), pub("s.b", **{ID: "x"}), pub("s.a", **{ID: "y"}), pub("s.a", **{ID: "x"})],
        [(1, ""), (1, "duplicate"), (2, ""), (1, "duplicate")],
    ),
    "an id that was refused first": (
        {},
        (),
        [pub("s.a", **{ID: "x", LAST: 7}), pub("s.a", **{ID: "x"}), pub("s.a", **{ID: "x", LAST: 1})],
        [(0, WRONG.format(0)), (1, ""), (1, "duplicate")],
    ),
    "a chain of last sequences": (
        {},
        (),
        [pub("s.a", **{LAST: 0}), pub("s.b", **{LAST: 1}), pub("s.a", **{LAST: 1}), pub("s.c", **{LAST: 2})],
        [(1, ""), (2, ""), (0, WRONG.format(2)), (3, "")],
    ),
    "a chain on subjects": (
        {},
        (),
        [
            *[pub("s.a", **{LAST_HERE: 0}), pub("s.b", **{LAST_HERE: 0}), pub("s.a", **{LAST_HERE: 1})],
            *[
                pub("s.a", **{LAST_HERE: 1}),
                pub("s.b", **{LAST_HERE: 2}),
                pub("s.a", **{LAST_HERE: 3, LAST: 3}),
            ],
            pub("s.a", **{LAST_HERE: 3, LAST: 4}),
        ],
        [
            *[(1, ""), (2, ""), (3, ""), (0, WRONG.format(3)), (4, ""), (0, WRONG.format(4)), (5, "")],
        ],
    ),
    "the sequence of another subject": (
        {},
        (),
        [
            pub("s.a"),
            pub("s.b", **{LAST_HERE: 1, ELSEWHERE: "s.a"}),
            pub("s.a", **{LAST_HERE: 1, ELSEWHERE: "s.*"}),
            pub("s.a", **{LAST_HERE: 2, ELSEWHERE: "s.*", LAST: 1}),
            pub("s.a", **{LAST_HERE: 2, ELSEWHERE: "s.*", LAST: 2}),
        ],
        [(1, ""), (2, ""), (0, WRONG.format(2)), (0, WRONG.format(2)), (3, "")],
    ),
    "the id before": (
        {},
        (),
        [
            pub("s.a", **{ID: "x"}),
            pub("s.a", **{ID: "y", LAST_ID: "x"}),
            pub("s.a", **{LAST_ID: "x"}),
            pub("s.a", **{LAST_ID: "y"}),
            pub("s.a", **{ID: "z", LAST_ID: "y"}),
        ],
        [(1, ""), (2, ""), (0, "wrong last msg ID: y"), (3, ""), (0, "wrong last msg ID: ")],
    ),
    "a rollup in the middle": (
        {"allow_rollup_hdrs": True},
        (),
        [
            *[
                pub("s.a"),
                pub("s.b"),
                pub("s.a", **{ROLLUP: "sub"}),
                pub("s.a", **{LAST_HERE: 3}),
                pub("s.b"),
            ],
            *[pub("s.c", **{ROLLUP: "all"}), pub("s.a", **{LAST_HERE: 0}), pub("s.b", **{ROLLUP: "some"})],
        ],
        [
            *[(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, ""), (7, "")],
            (0, 'rollup value invalid: "some"'),
        ],
    ),
    "several things are wrong": (
        {},
        (),
        [
            pub("s.a", **{ID: "x"}),
            pub("s.a", **{STREAM: "other", LAST_HERE: 7, ID: "x"}),
            pub("s.a", **{TTL: "5", LAST: 7}),
            pub("s.a", **{LAST: 7, ID: "x", ROLLUP: "sub"}),
            pub("s.a", **{ELSEWHERE: "s.b", LAST: 7}),
            pub("s.a", **{ID: "x", LAST_ID: "z", ROLLUP: "sub"}),
            pub("s.a", **{ID: "y", LAST_ID: "z", ROLLUP: "sub"}),
            pub("s.a", **{ID: "y", LAST_ID: "x", ROLLUP: "sub"}),
            pub("s.a", **{ID: "y", LAST_ID: "x"}),
        ],
        [
            (1, ""),
            (0, "expected stream does not match"),
            (0, "per-message TTL is disabled"),
            (0, WRONG.format(1)),
            (0, "missing sequence for expected last sequence per subject"),
            (1, "duplicate"),
            (0, "wrong last msg ID: x"),
            (0, "rollup not permitted"),
            (2, ""),
        ],
    ),
    "not quite a number": (
        {},
        (),
        [
            pub("s.a"),
            *[
                pub("s.a", **{header: value})
                for header in (LAST, LAST_HERE)
                for value in ("+1", "-1", "1x", "x")
            ],
            pub("s.a", **{LAST: "01"}),
            pub("s.a", **{LAST_HERE: "  2"}),
        ],
        [(1, ""), *[(0, WRONG.format(1))] * 8, (2, ""), (3, "")],
    ),
    "an empty header": (
        {},
        (),
        [
            pub("s.a"),
            pub("s.a", **{LAST: ""}),
            pub("s.a", **{LAST_HERE: ""}),
            pub("s.a", **{ID: "", LAST_ID: ""}),
        ],
        [(1, ""), (2, ""), (3, ""), (4, "")],
    ),
    "one that is refused is not the one before": (
        {"max_msgs": 1, "discard": "new", "allow_rollup_hdrs": True},
        (),
        [
            pub("s.a", **{ID: "x"}),
            pub("s.b", **{ID: "y"}),
            pub("s.a", **{LAST_ID: "y"}),
            pub("s.a", **{LAST_ID: "x"}),
        ],
        [(1, ""), (0, FULL), (0, "wrong last msg ID: x"), (0, FULL)],
    ),
    "full in the middle": (
        {"max_msgs": 2, "discard": "new"},
        (),
        [
            pub("s.a"),
            pub("s.b", **{ID: "x"}),
            pub("s.c", **{ID: "y"}),
            pub("s.a", **{ID: "x"}),
            pub("s.a", **{ID: "y"}),
        ],
        [(1, ""), (2, ""), (0, FULL), (2, "duplicate"), (0, FULL)],
    ),
    "a subject that makes room for itself": (
        {"max_msgs": 2, "discard": "new", "max_msgs_per_subject": 1},
        (),
        [pub("s.a"), pub("s.b"), pub("s.c"), pub("s.a", **{LAST_HERE: 1}), pub("s.c")],
        [(1, ""), (2, ""), (0, FULL), (3, ""), (0, FULL)],
    ),
    "a subject that is full": (
        {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        (),
        [pub("s.a"), pub("s.b"), pub("s.a"), pub("s.c")],
        [(1, ""), (2, ""), (0, "maximum messages per subject exceeded"), (3, "")],
    ),
    "too large in the middle": (
        {"max_msg_size": 4},
        (),
        [pub("s.a"), pub("s.a", b"too large"), pub("s.b"), pub("s.a", b"four")],
        [(1, ""), (0, "message size exceeds maximum allowed"), (2, ""), (3, "")],
    ),
    "pushed out by the next one": (
        {"max_msgs": 1},
        (),
        [pub("s.a"), pub("s.b"), pub("s.a", **{LAST_HERE: 1}), pub("s.a", **{LAST_HERE: 0})],
        [(1, ""), (2, ""), (0, WRONG.format(0)), (3, "")],
    ),
    "nobody is interested": (
        {"retention": "interest"},
        (),
        [pub("s.a"), pub("s.a", **{LAST_HERE: 1}), pub("s.a", **{LAST_HERE: 0, LAST: 1})],
        [(1, ""), (0, WRONG.format(0)), (2, "")],
    ),
    "some are of no interest": (
        {"retention": "interest", "max_msgs": 2},
        ("s.a", "s.b"),
        [
            pub("s.a"),
            pub("s.c"),
            pub("s.b"),
            pub("s.c"),
            pub("s.c", **{LAST_HERE: 0}),
            pub("s.a", **{LAST_HERE: 1}),
        ],
        [(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, "")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_named(name: str) -> None:
    config, filters, requests, wanted = CASES[name]
    assert both_ways(requests, config, filters) == wanted


configs = st.fixed_dictionaries(
    {"allow_rollup_hdrs": st.booleans(), "allow_msg_ttl": st.booleans()},
    optional={
        "max_msgs": st.integers(1, 5),
        "max_bytes": st.sampled_from([150, 400]),
        "max_msgs_per_subject": st.integers(1, 3),
        "discard": st.sampled_from(["old", "new"]),
        "max_msg_size": st.just(60),
        "retention": st.sampled_from(["limits", "interest", "workqueue"]),
    },
)
numbers = st.one_of(st.integers(0, 8), st.integers(0, 8), st.sampled_from(["+1", "x", ""]))
headers = st.fixed_dictionaries(
    {},
    optional={
        ID: st.sampled_from("xyz"),
        LAST: numbers,
        LAST_HERE: numbers,
        ELSEWHERE: st.sampled_from(["s.a", "s.b", "s.*", ">", "other"]),
        LAST_ID: st.sampled_from("xyz"),
        ROLLUP: st.sampled_from(["sub", "all", "bad"]),
        STREAM: st.sampled_from(["S", "S", "other"]),
        TTL: st.sampled_from(["5", "never", "bad"]),
        PRODUCER: st.sampled_from(["p", "q"]),
        NUMBERS: st.sampled_from(["1", "2", "2-3", "1-4", "bad"]),
    },
)
# Many plain ones among those that ask for something: that is where runs are long.
publishes = st.builds(
    lambda subject, size, plain, more: pub(subject, b"x" * size, **({} if plain else more)),
    st.sampled_from(["s.a", "s.b", "s.c"]),
    st.sampled_from([0, 1, 30, 70]),
    st.booleans(),
    headers,
)


def test_what_a_later_message_replaces_is_in_the_way_of_an_earlier_one() -> None:
    """Bytes are full with the second message: the first one goes, although the third replaces the second."""
    large, small = pub("s.b", b"x" * 30), pub("s.b", b"")
    config = {"max_bytes": 150, "max_msgs_per_subject": 1}
    answers = both_ways([pub("s.a", b"x" * 30, Nats_Msg_Id="x"), large, small], config)
    assert [sequence for sequence, _ in answers] == [1, 2, 3]


@settings(max_examples=300)
@given(
    config=configs,
    filters=st.sampled_from([(), ("",), ("s.a",), ("s.a", "s.b")]),
    requests=st.lists(publishes, min_size=2, max_size=14),
    before=st.integers(0, 3),
)
def test_any(config: dict[str, Any], filters: tuple[str, ...], requests: list[Publish], before: int) -> None:
    both_ways(requests, config, filters, before)


def test_the_named_answers_are_those_of_nats_server(nats_server: Callable[..., NatsServer]) -> None:
    """One by one. Each case has a stream name of its own: a name that is used again right after its stream was deleted
    sometimes goes on with the old sequences there."""
    with RawClient(nats_server("2.15.2").port) as client:

        def ask(subject: str, data: bytes, block: bytes | None = None) -> dict[str, Any]:
            (msg,) = client.request_many(subject, data, block)
            return msg.json()

        def api(endpoint: str, body: object) -> None:
            answer = ask(f"$JS.API.{endpoint}", json.dumps(body).encode())
            assert "error" not in answer, answer

        for number, (name, (config, filters, requests, wanted)) in enumerate(CASES.items()):
            stream = f"S{number}"
            api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": ["s.*"], "storage": "file", **config})
            for at, filter in enumerate(filters):
                consumer = {"durable_name": f"c{at}", "ack_policy": "explicit", "filter_subject": filter}
                api(f"CONSUMER.DURABLE.CREATE.{stream}.c{at}", {"stream_name": stream, "config": consumer})
            assert [short(ask(subject, data, block)) for subject, block, data in requests] == wanted, name
            api(f"STREAM.DELETE.{stream}", {})
