"""What goes by itself, on nats-server 2.15.2 and on Headrace: TTLs, max_age, delete markers, a start after the time.

Each case publishes the same to both and says what must be left; both are waited for, so the real server judges the case.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import TestServer
from tests.support.peers import NatsServer
from tests.support.rawclient import RawClient

SECOND = 10**9
LIMIT_S = 20.0
MARKER = "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: {}\r\nNats-Rollup: sub\r\n\r\n"
Left = list[tuple[int, str, str]]


class Side:
    """One server and a client on it."""

    def __init__(self, server: NatsServer | TestServer) -> None:
        self.server, self.client = server, RawClient(server.port)

    def call(self, endpoint: str, body: Any = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads(self.client.request_many(f"$JS.API.{endpoint}", data)[0].data)

    def publish(self, subject: str, headers: str = "") -> None:
        block = f"NATS/1.0\r\n{headers}\r\n\r\n".encode() if headers else None
        answer = json.loads(self.client.request_many(subject, b"x", block)[0].data)
        assert "error" not in answer, answer

    def left(self) -> Left:
        """(sequence, subject, headers) of every message."""
        state = self.call("STREAM.INFO.S")["state"]
        found: Left = []
        for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1):
            answer = self.call("STREAM.MSG.GET.S", {"seq": seq})
            if "message" in answer:
                message = answer["message"]
                found.append((seq, message["subject"], base64.b64decode(message.get("hdrs", "")).decode()))
        return found

    def restart(self, away_s: float) -> None:
        self.server.stop()
        time.sleep(away_s)  # nobody is there meanwhile: that is the case
        self.server.start()
        self.client = RawClient(self.server.port)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    place: Path = tmp_path_factory.mktemp("expiry")
    with ExitStack() as stack:
        real = stack.enter_context(NatsServer("2.15.2", place / "real"))
        ours = stack.enter_context(TestServer(place / "ours"))
        yield [Side(real), Side(ours)]


def create(sides: list[Side], **config: Any) -> None:
    for side in sides:
        side.call("STREAM.DELETE.S")
        answer = side.call("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **config})
        assert "error" not in answer, answer


def expect(sides: list[Side], expected: Left) -> None:
    for side in sides:
        deadline = time.monotonic() + LIMIT_S
        while (found := side.left()) != expected:
            who = "nats-server" if isinstance(side.server, NatsServer) else "Headrace"
            assert time.monotonic() < deadline, f"{who} has {found}, expected {expected}"
            time.sleep(0.05)


def test_max_age_leaves_markers_which_go_in_turn(sides: list[Side]) -> None:
    create(sides, max_age=2 * SECOND, subject_delete_marker_ttl=3 * SECOND)
    for side in sides:
        for subject in ("s.a", "s.b", "s.a"):
            side.publish(subject)
    expect(sides, [(4, "s.b", MARKER.format("3s")), (5, "s.a", MARKER.format("3s"))])
    expect(sides, [])
    assert [side.call("STREAM.INFO.S")["state"]["last_seq"] for side in sides] == [5, 5]


def test_a_ttl_leaves_a_marker_of_the_last_message_only(sides: list[Side]) -> None:
    create(sides, allow_msg_ttl=True, subject_delete_marker_ttl=90 * SECOND, max_msgs_per_subject=1)
    for side in sides:
        side.publish("s.stays")
        side.publish("s.goes", "Nats-TTL: 1s")
        side.publish("s.purged", "Nats-TTL: 1s\r\nKV-Operation: PURGE")
    expect(sides, [(1, "s.stays", ""), (4, "s.goes", MARKER.format("1m30s"))])


def test_a_ttl_is_never_shorter_than_that_of_markers(sides: list[Side]) -> None:
    create(sides, allow_msg_ttl=True, subject_delete_marker_ttl=100 * SECOND)
    for side in sides:
        side.publish("s.a", "A: 1\r\nNats-TTL: 1s\r\nB: 2")
    expect(sides, [(1, "s.a", "NATS/1.0\r\nA: 1\r\nB: 2\r\nNats-TTL: 100\r\n\r\n")])


def test_never_outlives_max_age(sides: list[Side]) -> None:
    create(sides, max_age=1 * SECOND, allow_msg_ttl=True)
    for side in sides:
        side.publish("s.a")
        side.publish("s.b", "Nats-TTL: never")
        side.publish("s.c", "Nats-TTL: 1h")
    expect(sides, [(2, "s.b", "NATS/1.0\r\nNats-TTL: never\r\n\r\n")])
    ours = sides[1]  # nats-server 2.15.2 forgets that at a restart, and the message goes
    ours.restart(0)
    expect([ours], [(2, "s.b", "NATS/1.0\r\nNats-TTL: never\r\n\r\n")])


def test_no_markers_for_purge_delete_and_limits(sides: list[Side]) -> None:
    create(sides, max_age=3600 * SECOND, subject_delete_marker_ttl=60 * SECOND, max_msgs=2)
    for side in sides:
        for subject in ("s.a", "s.b", "s.c", "s.d"):
            side.publish(subject)
        assert side.call("STREAM.MSG.DELETE.S", {"seq": 3})["success"]
    expect(sides, [(4, "s.d", "")])
    for side in sides:
        assert side.call("STREAM.PURGE.S", {"filter": "s.d"})["purged"] == 1
    expect(sides, [])


def test_what_was_due_while_the_server_was_down_leaves_markers(sides: list[Side]) -> None:
    create(sides, max_age=3 * SECOND, subject_delete_marker_ttl=3600 * SECOND)
    marker = MARKER.format("1h0m0s")
    for side in sides:
        for subject in ("s.a", "s.b", "s.a"):
            side.publish(subject)
        side.restart(3.5)
        expect([side], [(4, "s.b", marker), (5, "s.a", marker)])  # before max_age takes these too


def test_an_update_that_allows_ttls_finds_those_stored_before(sides: list[Side]) -> None:
    create(sides, max_age=3600 * SECOND)
    for side in sides:
        side.publish("s.a")
        config = side.call("STREAM.INFO.S")["config"]
        answer = side.call("STREAM.UPDATE.S", {**config, "allow_msg_ttl": True})
        assert "error" not in answer, answer
        side.publish("s.b", "Nats-TTL: 1s")
    expect(sides, [(1, "s.a", "")])
