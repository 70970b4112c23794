"""Mirrors and sources beside nats-server 2.15.2: the same messages, headers and states, and either goes on with what
the other one left."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.testing import TestServer
from tests.support.jsapi import Api, Message
from tests.support.peers import NatsServer

WAIT_S = 20.0
PARTS = ["messages", "bytes", "first_seq", "last_seq", "num_subjects", "num_deleted", "deleted"]
LIMITS_OPEN = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}
TRANSFORMS = [
    {"src": "a.0.>", "dest": "zero.>"},
    {"src": "a.1.*", "dest": "one.{{wildcard(1)}}"},
]
FOLLOWERS: dict[str, dict[str, Any]] = {
    "MIRROR": {"mirror": {"name": "A"}},
    "OPEN_MIRROR": {"mirror": {"name": "A"}, **LIMITS_OPEN},
    "FILTERED": {"mirror": {"name": "A", "filter_subject": "a.0.>"}, "max_msgs": 3},
    "MOVED": {
        "mirror": {"name": "A", "subject_transforms": TRANSFORMS[:1]},
        "subject_transform": {"src": "zero.>", "dest": "nought.>"},
    },
    "LATE": {"mirror": {"name": "A", "opt_start_seq": 6}},
    "LAST": {"mirror": {"name": "A"}, "max_msgs_per_subject": 1},
    "SOURCED": {"sources": [{"name": "A", "subject_transforms": TRANSFORMS}]},
    "PLAIN": {"sources": [{"name": "A"}], "first_seq": 100, **LIMITS_OPEN},
    "PART": {"sources": [{"name": "A", "filter_subject": "a.1.>", "opt_start_seq": 3}], "subjects": ["own"]},
    "CHAIN": {"sources": [{"name": "SOURCED"}], "subject_transform": {"src": "zero.>", "dest": "end.>"}},
    "FULL": {"sources": [{"name": "A"}], "max_msgs": 2, "discard": "new"},
}


def _wait(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def _masked(message: Message) -> tuple[object, ...]:
    """Without the times that differ from run to run, and the identity that is made of one."""
    headers = message.headers
    if headers is not None:
        headers = re.sub(rb"(Nats-Stream-Source: [^\r]*) \w{8}\r", rb"\1 IDENTITY\r", headers)
    return message.seq, message.subject, headers, message.data


def _seen(api: Api, name: str) -> tuple[object, ...]:
    state = api.state(name)
    return {key: state.get(key) for key in PARTS}, [_masked(each) for each in api.messages(name).values()]


def _publish_some(api: Api) -> None:
    for number in range(8):
        api.publish(f"a.{number % 2}.x", b"%d" % number, {"Nats-Msg-Id": f"m{number}", "X": "y"})
    for seq in (1, 3, 4, 8):
        api.remove("A", seq)


def _publish_more(api: Api) -> None:
    api.publish("a.0.x", b"rollup", {"Nats-Rollup": "sub"})
    api.publish("a.0.y", b"ttl", {"Nats-TTL": "1h"})
    expected = {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Stream": "A"}
    api.publish("a.1.z", b"expected", expected)
    api.publish("a.2.z", b"", {"Between": "1", **expected, "Behind": "2"})


def _scenario(api: Api) -> dict[str, object]:
    api.ask("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"], **LIMITS_OPEN})
    _publish_some(api)
    for name, config in FOLLOWERS.items():
        api.ask(f"STREAM.CREATE.{name}", {"name": name, **config})
    # Wait for everybody: what is published then must not overtake what is there.
    counts = {"MIRROR": 4, "OPEN_MIRROR": 4, "FILTERED": 2, "MOVED": 2, "LATE": 2, "LAST": 2}
    counts |= {"SOURCED": 4, "PLAIN": 4, "PART": 1, "CHAIN": 4, "FULL": 2}
    _wait(lambda: all(api.state(name)["messages"] == count for name, count in counts.items()))
    _publish_more(api)
    last = {"MIRROR": 12, "OPEN_MIRROR": 12, "FILTERED": 10, "MOVED": 10, "LATE": 12, "LAST": 12}
    last |= {"SOURCED": 7, "PLAIN": 107, "PART": 2, "CHAIN": 7, "FULL": 2}
    _wait(lambda: all(api.state(name)["last_seq"] == seq for name, seq in last.items()))
    times = {seq: each.time_ns for seq, each in api.messages("A").items()}
    for name in ("MIRROR", "LATE"):
        mirrored = api.messages(name)
        assert all(mirrored[seq].time_ns == time_ns for seq, time_ns in times.items() if seq in mirrored)
    found: dict[str, object] = {name: _seen(api, name) for name in ("A", *FOLLOWERS)}
    for name in ("MOVED", "SOURCED", "PART"):
        info = api.ask(f"STREAM.INFO.{name}")
        shown = info.get("sources", [info.get("mirror")])[0]
        assert shown.pop("active") > 0
        found[f"{name} info"] = json.dumps(shown)
    return found


def test_same_as_the_real_server(tmp_path: Path) -> None:
    with NatsServer("2.15.2", tmp_path / "theirs") as server, Api(server.url) as api:
        theirs = _scenario(api)
    with TestServer(tmp_path / "ours") as server, Api(server.url) as api:
        ours = _scenario(api)
    for name, expected in theirs.items():
        assert ours[name] == expected, name


def test_each_goes_on_with_what_the_other_left(tmp_path: Path) -> None:
    """Positions are found in the other's files: nothing is lost, nothing taken twice, by neither server."""
    place, sent = tmp_path / "store", 0

    def visit(server: NatsServer | TestServer, api: Api, count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            api.publish("a.1", b"%d" % sent)
        _wait(lambda: all(api.state(name)["last_seq"] == sent for name in ("M", "S")))
        for name in ("M", "S"):
            data = [int(each.data) for each in api.messages(name).values()]
            assert data == [*range(1, sent + 1)], (name, server)

    with NatsServer("2.15.2", place) as server, Api(server.url) as api:
        api.ask("STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"]})
        api.ask("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "A"}})
        api.ask("STREAM.CREATE.S", {"name": "S", "sources": [{"name": "A", "filter_subject": "a.1"}]})
        visit(server, api, 5)
    with TestServer(place / "jetstream") as ours:
        with Api(ours.url) as api:
            visit(ours, api, 5)
        ours.kill()
        ours.start()
        with Api(ours.url) as api:
            visit(ours, api, 1)
    with NatsServer("2.15.2", place) as server, Api(server.url) as api:
        visit(server, api, 5)
    with TestServer(place / "jetstream") as ours, Api(ours.url) as api:
        visit(ours, api, 1)
