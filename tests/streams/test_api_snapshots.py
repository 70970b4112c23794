"""Snapshots over the wire: chunks and windows, the way back, and transfers that go wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.api.advisories import short_id
from headrace.streams.api.snapshots import HEAD_START_NS
from tests.support.model import Client, Model, Msg

PREFIX = "$JS.API."


def fill(client: Client, name: str = "S", count: int = 300, **config: Any) -> None:
    client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"], **config})
    for number in range(count):
        client.request(f"{name.lower()}.{number % 5}", os.urandom(2000))
    client.api(f"STREAM.MSG.DELETE.{name}", {"seq": count})
    body = {"stream_name": name, "config": {"durable_name": "c", "ack_policy": "explicit"}}
    assert "error" not in client.api(f"CONSUMER.CREATE.{name}.c", body)


def take(
    client: Client, name: str = "S", answering: bool = True, **request: Any
) -> tuple[dict[str, Any], list[Msg]]:
    """A snapshot: the answer and all that came, chunks answered as they come."""
    inbox = f"snap.{short_id()}"
    client.subscribe(inbox)
    answer = client.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": inbox, **request})
    client.model.advance(HEAD_START_NS)
    got: list[Msg] = []
    while msgs := [each for each in client.take() if each.subject == inbox]:
        got += msgs
        for msg in msgs:
            if msg.reply and answering:
                client.publish(msg.reply)
    return answer, got


def give(client: Client, name: str, config: Any, data: bytes, chunk: int = 60_000) -> dict[str, Any]:
    """A restore; the last answer."""
    began = client.api(f"STREAM.RESTORE.{name}", {"config": config, "state": {}})
    if "error" in began:
        return began
    for at in range(0, len(data), chunk):
        answer = client.request(began["deliver_subject"], data[at : at + chunk])
        assert answer is not None and answer.data == b"" and answer.headers is None
    last = client.request(began["deliver_subject"], b"")
    assert last is not None
    return last.json()


def content(client: Client, name: str) -> list[Any]:
    state = client.api(f"STREAM.INFO.{name}", {"deleted_details": True})["state"]
    state.pop("bytes")
    seqs = range(1, state["last_seq"] + 1)
    return [state, [client.api(f"STREAM.MSG.GET.{name}", {"seq": seq}).get("message") for seq in seqs]]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_there_and_back(tmp_path: Path, storage: str) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        fill(client, storage=storage)
        before, config = content(client, "S"), client.api("STREAM.INFO.S")["config"]
        answer, got = take(client)
        assert answer["config"]["name"] == "S" and answer["state"]["messages"] == 299
        *chunks, partial, end = got
        assert {len(each.data) for each in chunks} == {128 << 10}
        assert [each.reply.split(".")[-2:] for each in chunks] == [
            [str(128 << 10), str(number)] for number in range(1, len(chunks) + 1)
        ]
        assert partial.reply == "" and (end.data, end.headers) == (b"", b"NATS/1.0 204\r\n\r\n")
        client.api("STREAM.DELETE.S")
        restored = give(client, "S", config, b"".join(each.data for each in got))
        assert restored["type"].endswith("stream_create_response") and restored["state"]["messages"] == 299
        assert content(client, "S") == before
        assert client.api("CONSUMER.NAMES.S")["consumers"] == ["c"]
        answer = client.request("s.1", b"x")
        assert answer is not None and answer.json()["seq"] == 301, (
            "the deleted last one is not given out again"
        )
        assert not [each for each in tmp_path.iterdir() if each.name.startswith("headrace-restore")]


def test_chunks_and_windows_are_bounded(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        fill(client)
        _, small = take(client, chunk_size=1)
        assert len(small[0].data) == 1024
        client.api("STREAM.DELETE.S")
        fill(client, count=10)
        _, few = take(client)
        assert [bool(each.data) for each in few] == [True, False] and few[-1].headers is None


def test_a_receiver_that_does_not_answer(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        fill(client)
        _, got = take(client, answering=False, chunk_size=65536, window_size=200_000)
        assert [len(each.data) for each in got] == [65536] * 3, "no more than the window"
        model.advance(6 * 10**9)
        assert [each.headers for each in client.take()] == [b"NATS/1.0 408 No Flow Response\r\n\r\n"]


@pytest.mark.parametrize("data", [b"", b"garbage" * 1000, None], ids=["nothing", "garbage", "cut"])
def test_a_bad_snapshot_leaves_nothing(tmp_path: Path, data: bytes | None) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        fill(client, count=20)
        config = client.api("STREAM.INFO.S")["config"]
        whole = b"".join(each.data for each in take(client)[1])
        client.api("STREAM.DELETE.S")
        answer = give(client, "S", config, whole[: len(whole) // 2] if data is None else data)
        assert answer["error"]["err_code"] == 10062
        assert client.api("STREAM.NAMES")["streams"] is None
        assert give(client, "S", config, whole)["state"]["messages"] == 19


def test_a_restore_meets_the_same_rules_as_a_create(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        fill(client, count=20)
        config = client.api("STREAM.INFO.S")["config"]
        data = b"".join(each.data for each in take(client)[1])
        assert give(client, "S", config, data)["error"]["err_code"] == 10130
        assert give(client, "X", config, data)["error"]["err_code"] == 10056
        assert give(client, "X", {"name": "X", "max_age": 5}, data)["error"]["err_code"] == 10052
        answer = give(client, "X", {**config, "name": "X"}, data)
        assert "subjects overlap" in answer["error"]["description"]
        other = give(client, "X", {**config, "name": "X", "subjects": ["x.>"]}, data)
        assert (other["config"]["name"], other["state"]["messages"]) == ("X", 19)


def test_a_restore_that_stops_is_forgotten(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        began = client.api("STREAM.RESTORE.S", {"config": {"name": "S"}, "state": {}})
        client.request(began["deliver_subject"], b"some")
        assert [each for each in tmp_path.iterdir() if each.name.startswith("headrace-restore")]
        model.advance(60 * 10**9)
        assert not [each for each in tmp_path.iterdir() if each.name.startswith("headrace-restore")]
        answer = client.request(began["deliver_subject"], b"more")
        assert (
            answer is not None and answer.headers is not None and answer.headers.startswith(b"NATS/1.0 503")
        )


def test_nobody_to_send_to(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        fill(client)
        client.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
        assert "error" not in client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})
        model.advance(HEAD_START_NS)
        assert [
            json.loads(each.data)["stream"] for each in client.take() if each.subject.startswith("$JS")
        ] == ["S"]
