"""The live form with nats-server 2.15.2: our directory opened there, theirs opened here, there and back.

Every message, header, time and gap is compared through the server's API, every consumer's position too, and its
log must hold no complaint about what it found.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.ops.look import verify
from tests.support.jsapi import Api
from tests.support.peers import NatsServer
from tests.support.stores import (
    HEADER,
    build,
    check_there,
    create_there,
    in_their_terms,
    look,
    publish_on,
    stream_state,
    unexpected,
)

NatsServers = Callable[..., NatsServer]
VERSION = "2.15.2"


@pytest.mark.parametrize("index", ["index", "no index"])
def test_our_directory_opens_there_with_everything(
    nats_server: NatsServers, tmp_path: Path, index: str
) -> None:
    volume = build(tmp_path / "js")
    expected = look(volume)
    volume.close()
    if index == "no index":
        for file in (tmp_path / "js").rglob("index.db"):
            file.unlink()
        # A limit leaves no tombstones: without the index the server applies it anew, which here gives the same.
    server = nats_server(VERSION, tmp_path / "js")
    with Api(server.url) as api:
        check_there(api, expected)
        assert unexpected(server) == []
        publish_on(api, expected)


def test_there_and_back_and_there_again(nats_server: NatsServers, tmp_path: Path) -> None:
    path = tmp_path / "js"
    volume = build(path)
    expected = look(volume)
    volume.close()
    server = nats_server(VERSION, path)
    for hop in range(3):
        with Api(server.url) as api:
            check_there(api, expected)
            publish_on(api, expected)
            api.remove("PLAIN", expected["PLAIN"].state.first_seq)
            api.remove("CUT", 50 + hop, erase=True)
            api.purge("LIMITS", filter=f"limits.{hop}")
            taken = api.pull("QUEUE", "WORKER", 2)
            api.ack(taken[0][1])
            api.ack(api.pull("PLAIN", "READER", 1)[0][1])
            states = {name: stream_state(api, name) for name in expected}
            positions = {
                (name, each): api.consumer_position(name, each)
                for name, seen in expected.items()
                for each in seen.consumers
            }
        assert unexpected(server) == []
        server.stop() if hop != 1 else server.kill()
        volume = JetStreamVolume(str(path), mode="rw")
        assert volume.damage() == []
        expected = look(volume)
        for name, seen in expected.items():
            wanted = in_their_terms(seen.state)
            if seen.state.num_deleted > 10_000:
                wanted["deleted"] = states[name]["deleted"] = []
            assert wanted == states[name], (hop, name)
            for consumer, position in seen.consumers.items():
                if hop != 1:  # killed: their o.dat may be a little behind
                    assert position == positions[name, consumer], (hop, name, consumer)
        for name in expected:
            store = volume.open(name)
            seq, _ = store.store_msg(f"{name.lower()}.ours", HEADER, b"and back")
            assert seq == expected[name].state.last_seq + 1
        volume.open("PACKED").erase_msg(expected["PACKED"].state.first_seq)
        expected = look(volume)
        volume.close()
        server.start()
    with Api(server.url) as api:
        check_there(api, expected)
        assert unexpected(server) == []


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_their_directory_opens_here(nats_server: NatsServers, tmp_path: Path, end: str, mode: str) -> None:
    server = nats_server(VERSION, tmp_path / "js")
    with Api(server.url) as api:
        positions = create_there(api)
        states = {name: stream_state(api, name) for name in api.names()}
        messages = {name: api.messages(name) for name in states}
    server.stop() if end == "stop" else server.kill()
    with JetStreamVolume(str(tmp_path / "js"), mode=mode) as volume:
        assert volume.damage() == []
        found = look(volume)
        assert sorted(found) == sorted(states)
        for name, seen in found.items():
            assert in_their_terms(seen.state) == states[name], name
            theirs = {s: (m.subject, m.headers, m.data, m.time_ns) for s, m in messages[name].items()}
            assert seen.messages == theirs, name
        for (name, each), position in positions.items():
            if end == "stop":
                assert found[name].consumers[each] == position, (name, each)


WRITER = """
import sys
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.ops.look import verify
volume = JetStreamVolume(sys.argv[1], mode="rw", create=True)
store = volume.create("K", subjects=["k.>"], max_msgs=3000)
store.block_bytes = 20_000
number = 0
while True:
    ticket = store.append(__import__("headrace").batch(f"k.{number % 9}", [b"%d" % n for n in range(number, number + 50)]))
    number += 50
    store.remove([ticket.first + 3, ticket.first + 20])
    if number % 500 == 0:
        store.erase_msg(ticket.first + 7)
    volume.commit([ticket])
    print(ticket.next - 1, flush=True)
"""


def test_after_our_kill_the_server_opens_the_directory(nats_server: NatsServers, tmp_path: Path) -> None:
    path = tmp_path / "js"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = 0
    while acknowledged < 6000:
        acknowledged = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
    writer.wait()
    writer.stdout.close()
    server = nats_server(VERSION, path)
    with Api(server.url) as api:
        state = stream_state(api, "K")
        assert state["last_seq"] >= acknowledged
        assert state["lost"] is None
        # The checkpoint of a killed writer is older than its blocks; the server says so and scans.
        assert unexpected(server, "prior state", "Stream state outdated") == []
        found = api.messages("K")
        assert all(message.data == b"%d" % (seq - 1) for seq, message in found.items())
        assert len(found) == state["messages"] <= 3000
        assert api.publish("k.more", b"on") == state["last_seq"] + 1
    server.stop()
    with JetStreamVolume(str(path), mode="rw") as volume:
        assert volume.open("K").state().last_seq == state["last_seq"] + 1
        assert volume.damage() == []


KILLED = """
import os, sys, headrace
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.ops.look import verify
volume = JetStreamVolume(sys.argv[1], mode="rw", create=True, block_bytes=5000)
store = volume.create("S", subjects=["s.>"])
for _ in range(30):
    volume.commit([store.append(headrace.batch("s.a", [b"x" * 100] * 10))])
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("end", "purge"),
    [("stop", {}), ("kill", {}), ("stop", {"seq": 150}), ("kill", {"seq": 150}), ("stop", {"filter": "s.a"})],
)
def test_what_the_real_server_removes_is_no_loss(
    nats_server: NatsServers, tmp_path: Path, end: str, purge: dict[str, object]
) -> None:
    """It knows nothing of our guards and marks, and leaves them behind."""
    path = tmp_path / "js"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    server = nats_server(VERSION, path)
    with Api(server.url) as api:
        api.purge("S", **purge)
    getattr(server, end)()
    assert verify(str(path)).sound
    with JetStreamVolume(str(path), mode="rw") as volume:
        assert volume.damage() == []
        assert volume.open("S").store_msg("s.a", None, b"next")[0] == 301
