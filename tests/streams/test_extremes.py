"""Requests at the ends of what their fields can hold, and what an error tells a client."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DiskFault
from headrace.streams.errors import MISTAKE, api_error, client_text
from headrace.streams.limits import FIRST_SEQ_MAX, ServerFacts
from headrace.units import format_time_ns, parse_time_ns
from tests.support.model import Client, Model

MS, SECOND = 1_000_000, 1_000_000_000
LARGEST = (1 << 63) - 1
TIMES = [
    "9999-12-31T23:59:59.999999999Z",
    "2262-04-12T00:00:00Z",
    "1677-09-21T00:12:43Z",
    "0000-01-01T00:00:00Z",
]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    with Model(tmp_path / "a store", facts=ServerFacts(origins=True)) as model:
        yield model


@pytest.fixture
def client(model: Model) -> Client:
    client = model.client()
    assert "error" not in client.api(
        "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True}
    )
    for _ in range(3):
        client.request("s", b"x")
    return client


def consumer(client: Client, name: str, **config: Any) -> dict[str, Any]:
    settings = {"name": name, "ack_policy": "explicit", **config}
    return client.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": settings})


def pull(client: Client, name: str, **fields: Any) -> list[bytes]:
    client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", json.dumps(fields).encode(), "_INBOX.p")
    return [msg.data or msg.headers or b"" for msg in client.take()]


@pytest.mark.parametrize("when", TIMES)
def test_any_year(client: Client, when: str) -> None:
    ahead = when > "2026"
    made = consumer(client, "c", deliver_policy="by_start_time", opt_start_time=when)
    assert made["config"]["opt_start_time"] == when
    assert made["num_pending"] == (0 if ahead else 3)
    paused = client.api("CONSUMER.PAUSE.S.c", {"pause_until": when})
    assert (paused["paused"], paused["pause_until"]) == (ahead, when)
    assert 0 <= paused.get("pause_remaining", 0) <= LARGEST
    shown = client.api("CONSUMER.INFO.S.c")
    assert 0 <= shown.get("pause_remaining", 0) <= LARGEST
    found = client.request("$JS.API.DIRECT.GET.S", json.dumps({"start_time": when}).encode())
    assert found is not None and (found.headers or b"").startswith(b"NATS/1.0 404") == ahead
    listed = client.request_many(
        "$JS.API.DIRECT.GET.S", json.dumps({"multi_last": ["s"], "up_to_time": when}).encode()
    )
    assert (listed[0].headers or b"").startswith(b"NATS/1.0 404") != ahead
    mirror = client.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S", "opt_start_time": when}})
    assert "error" not in mirror
    assert format_time_ns(parse_time_ns(when)) == when


def test_requests_that_wait_for_ever_are_served(model: Model, client: Client) -> None:
    consumer(client, "c", ack_wait=LARGEST, inactive_threshold=LARGEST)
    assert pull(client, "c", batch=3, expires=LARGEST, idle_heartbeat=LARGEST // 2) == [b"x"] * 3
    assert pull(client, "c", batch=LARGEST, expires=LARGEST, max_bytes=LARGEST) == []
    client.publish("s", b"y")
    assert client.take()[-1].data == b"y"
    model.advance(3600 * SECOND)
    assert client.api("CONSUMER.INFO.S.c")["num_waiting"] == 1


def test_heartbeats_come_ten_times_a_second_at_most(model: Model, client: Client) -> None:
    consumer(client, "c", deliver_policy="new")
    assert pull(client, "c", batch=1, expires=10 * SECOND, idle_heartbeat=1) == []
    came = 0
    for _ in range(100):
        model.advance(10 * MS)
        came += len(client.take())
    assert 5 <= came <= 11


def test_a_stream_begins_where_there_is_something_left(client: Client) -> None:
    """From 2^62 on the file format has no sequences: a stream that begins there could store nothing."""
    for first in (FIRST_SEQ_MAX + 1, 1 << 62, LARGEST, (1 << 64) - 1):
        refused = client.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f"], "first_seq": first})
        assert refused["error"]["err_code"] == 10052
        refused = client.api("STREAM.PURGE.S", {"seq": first})
        assert refused["error"]["err_code"] == 10110
    made = client.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f"], "first_seq": FIRST_SEQ_MAX})
    assert "error" not in made
    stored = client.request("f", b"x")
    assert stored is not None and stored.json()["seq"] == FIRST_SEQ_MAX
    assert client.api("STREAM.PURGE.S", {"seq": FIRST_SEQ_MAX})["purged"] == 3
    stored = client.request("s", b"x")
    assert stored is not None and stored.json()["seq"] == FIRST_SEQ_MAX


def test_clients_do_not_learn_where_the_store_is(
    model: Model, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the directory of a new stream would be: the answer says so, the path is in the log alone."""
    place = tmp_path / "a store" / "jetstream" / "$G" / "streams" / "T"
    place.write_text("in the way")
    with caplog.at_level(logging.ERROR):
        answer = client.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    assert str(tmp_path) not in json.dumps(answer) and "streams/" not in json.dumps(answer)
    assert answer["error"]["code"] == 500 and str(place) in caplog.text


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            DiskFault("/data/my store/$G/streams/S/msgs/1.blk: cannot write: I/O error"),
            "1.blk: cannot write: I/O error",
        ),
        (DiskFault("cannot sync /data/x/1.blk, and not '/data/x/y'"), "cannot sync 1.blk, and not 'y'"),
        (DiskFault("two\nlines a/b 1/2"), "two lines a/b 1/2"),
        (OverflowError("Python int too large to convert to C long"), MISTAKE),
    ],
)
def test_what_a_client_may_know(problem: Exception, said: str) -> None:
    assert client_text(problem) == said
    assert said in api_error("JSStreamGeneralErrorF", err=problem).description
