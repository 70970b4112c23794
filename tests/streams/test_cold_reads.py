"""The loop reads no block from disk: what is not in memory is read by others, and everything is served all the same.

The thread that runs the turns refuses to read blocks, all the time: whoever did so would fail.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace._core import refuse_block_loads
from headrace.engine.ports import InlineHost
from headrace.streams.limits import ServerFacts
from tests.support.model import Client, Model

BLOCK = 16 << 10
COUNT = 600
SMALL = {"block_bytes": BLOCK, "cache_bytes": BLOCK, "durability": "sync"}


class OnThreads(InlineHost):
    """Work of the engine on a thread, one after the other."""

    def run_off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(work())
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        done(results[0])


def data_of(seq: int) -> bytes:
    return b"%06d" % seq + bytes(200)


def subject_of(seq: int) -> str:
    return f"s.{'rare' if seq in (7, 590) else 'much'}.{seq % 50}"


@pytest.fixture(params=["none", "s2"])
def compression(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(tmp_path: Path, compression: str) -> Iterator[Client]:
    """A client of a server that was started just now: its blocks are on disk, all but the newest one."""
    with Model(tmp_path, **{**SMALL, "durability": "interval"}) as model:
        writer = model.client()
        for name, options in {
            "S": {"allow_direct": True},
            "WORK": {"retention": "workqueue"},
            "BOTH": {"retention": "interest"},
            "FULL": {"max_msgs": COUNT},
        }.items():
            config = {"name": name, "subjects": [f"{name.lower()}.>"], "compression": compression, **options}
            assert "error" not in writer.api(f"STREAM.CREATE.{name}", config)
        for name in ("one", "two"):
            make(writer, "BOTH", name)
        make(writer, "WORK", "worker")
        for seq in range(1, COUNT + 1):
            writer.publish(subject_of(seq), data_of(seq))
            for other in ("work", "both", "full"):
                writer.publish(f"{other}.{seq % 2}", data_of(seq))
    with Model(tmp_path, facts=ServerFacts(origins=True), **SMALL) as model:
        model.engine.host = OnThreads()
        made = model.client()
        before = refuse_block_loads(True)
        try:
            yield made
        finally:
            refuse_block_loads(before)


def make(client: Client, stream: str, name: str, **options: Any) -> dict[str, Any]:
    config = {"durable_name": name, "name": name, "ack_policy": "explicit", "max_ack_pending": -1, **options}
    made = client.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    assert "error" not in made, made
    return made


def fetch(client: Client, stream: str, name: str, count: int) -> list[Any]:
    request = json.dumps({"batch": count, "no_wait": True}).encode()
    client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", request, "_INBOX.fetched")
    return [letter for letter in client.take() if letter.reply]


def sequence(letter: Any) -> int:
    return int(letter.reply.split(".")[5])


def test_a_push_consumer_gets_everything_in_order(client: Client) -> None:
    client.subscribe("deliver")
    make(client, "S", "push", deliver_subject="deliver", ack_policy="none")
    found = client.take()
    assert [letter.data for letter in found] == [data_of(seq) for seq in range(1, COUNT + 1)]
    assert [int(letter.reply.split(".")[8]) for letter in found] == list(range(COUNT - 1, -1, -1))


def test_filters_of_every_width(client: Client) -> None:
    rare = make(client, "S", "rare", filter_subject="s.rare.*")
    assert rare["num_pending"] == 2
    assert [sequence(each) for each in fetch(client, "S", "rare", 10)] == [7, 590]
    wide = [f"s.much.{number}" for number in range(30)]
    expected = [seq for seq in range(1, COUNT + 1) if subject_of(seq) in wide]
    assert make(client, "S", "wide", filter_subjects=wide)["num_pending"] == len(expected)
    assert [sequence(each) for each in fetch(client, "S", "wide", COUNT)] == expected


def test_redeliveries_and_the_newest_of_each_subject(client: Client) -> None:
    make(client, "S", "again")
    first = fetch(client, "S", "again", 300)
    for letter in (first[0], first[150], first[299]):
        client.publish(letter.reply, b"-NAK")
    assert [sequence(each) for each in fetch(client, "S", "again", 3)] == [1, 151, 300]
    newest = make(client, "S", "newest", deliver_policy="last_per_subject", filter_subject="s.much.*")
    assert newest["num_pending"] == 50
    found = [sequence(each) for each in fetch(client, "S", "newest", 100)]
    assert found == sorted(
        max(s for s in range(1, COUNT + 1) if subject_of(s) == f"s.much.{n}") for n in range(50)
    )


def test_single_messages_and_direct_gets(client: Client) -> None:
    get = client.api("STREAM.MSG.GET.S", {"seq": 3})
    assert get["message"]["seq"] == 3
    assert client.api("STREAM.MSG.GET.S", {"last_by_subj": "s.rare.7"})["message"]["seq"] == 7
    assert client.api("STREAM.MSG.GET.S", {"next_by_subj": "s.rare.*", "seq": 8})["message"]["seq"] == 590
    time = client.api("STREAM.MSG.GET.S", {"seq": 300})["message"]["time"]
    assert client.api("STREAM.MSG.GET.S", {"start_time": time, "seq": 0})["message"]["seq"] == 300
    assert client.api("STREAM.MSG.GET.S", {"seq": COUNT + 1})["error"]["err_code"] == 10037

    def direct(**request: Any) -> list[bytes]:
        found = client.request_many("$JS.API.DIRECT.GET.S", json.dumps(request).encode())
        return [letter.data for letter in found if letter.data]

    assert direct(seq=5) == [data_of(5)]
    assert direct(last_by_subj="s.rare.*") == [data_of(590)]
    assert direct(seq=1, batch=COUNT) == [data_of(seq) for seq in range(1, COUNT + 1)]
    assert direct(next_by_subj="s.rare.*", seq=1, batch=5) == [data_of(7), data_of(590)]
    assert direct(multi_last=["s.rare.*"]) == [data_of(7), data_of(590)]
    below = direct(multi_last=["s.much.*"], up_to_seq=100)
    assert len(below) == 50 and below[-1] == data_of(100)


def test_what_is_shown(client: Client) -> None:
    make(client, "S", "half", filter_subject="s.*.2")
    shown = client.api("CONSUMER.INFO.S.half")["num_pending"]
    assert shown == sum(1 for seq in range(1, COUNT + 1) if seq % 50 == 2)
    assert client.api("CONSUMER.LIST.S")["consumers"][0]["num_pending"] == shown
    assert client.api("STREAM.INFO.S")["state"]["messages"] == COUNT
    assert len(client.api("STREAM.LIST")["streams"]) == 4
    assert len(client.api("STREAM.INFO.S", {"subjects_filter": ">"})["state"]["subjects"]) == 52


def test_limits_and_acks_take_messages_from_old_blocks(client: Client) -> None:
    for seq in range(COUNT + 1, COUNT + 101):
        ack = client.request(f"full.{seq % 2}", data_of(seq))
        assert ack is not None and ack.json()["seq"] == seq
    assert client.api("STREAM.INFO.FULL")["state"]["first_seq"] == 101
    for letter in fetch(client, "WORK", "worker", 200):
        client.publish(letter.reply, b"+ACK")
    assert client.api("STREAM.INFO.WORK")["state"]["messages"] == COUNT - 200
    for name in ("one", "two"):
        for letter in fetch(client, "BOTH", name, 150):
            client.publish(letter.reply, b"+ACK")
    assert client.api("STREAM.INFO.BOTH")["state"]["messages"] == COUNT - 150
    client.api("CONSUMER.DELETE.BOTH.two")
    for letter in fetch(client, "BOTH", "one", 50):
        client.publish(letter.reply, b"+ACK")
    assert client.api("STREAM.INFO.BOTH")["state"]["messages"] == COUNT - 200


def test_a_mirror_is_filled(client: Client) -> None:
    assert "error" not in client.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
    for _ in range(100):
        client.model.advance(10_000_000)
        if client.api("STREAM.INFO.M")["state"]["messages"] == COUNT:
            break
    assert client.api("STREAM.INFO.M")["state"]["last_seq"] == COUNT
