"""A server that stops: what clients are told before the connection ends, and which consumers are there afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

from headrace.testing.server import TestServer
from tests.support.peers import NatsServer
from tests.support.rawclient import RawClient

Server = TestServer | NatsServer
LIMIT_S = 20
LAME_DUCK = 'lame_duck_grace_period: "100ms"\nlame_duck_duration: "30s"\n'


@pytest.fixture(params=["headrace", "nats-server"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    started: Server = (
        TestServer(tmp_path / "ours")
        if request.param == "headrace"
        else NatsServer("2.15.2", tmp_path / "theirs")
    )
    with started:
        yield started


def api(client: RawClient, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = json.loads(client.request_many(f"$JS.API.{subject}", json.dumps(body).encode())[0].data)
    assert "error" not in answer, answer
    return answer


def make_consumer(client: RawClient, name: str = "c", **config: Any) -> None:
    settings = {"durable_name": name, "ack_policy": "explicit", **config}
    api(client, f"CONSUMER.DURABLE.CREATE.S.{name}", {"stream_name": "S", "config": settings})


class Waiting:
    """A client with pull requests that wait."""

    def __init__(self, port: int, name: str, count: int = 3) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        connect = b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":1}\r\n'
        self.sock.sendall(connect + f"SUB _P.{name}.* 1\r\n".encode())
        for number in range(count):
            body = json.dumps({"batch": 5 + number, "expires": 60 * 10**9}).encode()
            line = f"PUB $JS.API.CONSUMER.MSG.NEXT.S.c _P.{name}.{number} {len(body)}\r\n"
            self.sock.sendall(line.encode() + body + b"\r\n")
        self.sock.sendall(b"PING\r\n")
        self.received = b""
        self.read_until(b"PONG\r\n")

    def read_until(self, ending: bytes) -> bytes:
        while ending not in self.received:
            data = self.sock.recv(1 << 16)
            if not data:
                break
            self.received += data
        received, self.received = self.received, b""
        return received

    def rest(self) -> bytes:
        """Everything until the connection ends."""
        return self.read_until(b"\0 never \0")


def notices(received: bytes) -> list[bytes]:
    """The status messages, in order of their requests."""
    return sorted(re.findall(rb"HMSG (?:.*\r\n){4}\r\n", received))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_waiting_requests_hear_of_the_stop(server: Server, how: signal.Signals) -> None:
    with RawClient(server.port) as client:
        api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        make_consumer(client)
    waiting = Waiting(server.port, "x")
    server._process.send_signal(how)  # pyright: ignore
    found = notices(waiting.rest())
    expected = [
        f"HMSG _P.x.{number} 1 81 81\r\nNATS/1.0 409 Server Shutdown\r\n"
        f"Nats-Pending-Messages: {5 + number}\r\nNats-Pending-Bytes: 0\r\n\r\n".encode()
        for number in range(3)
    ]
    assert found == expected


def test_in_lame_duck_each_client_hears_it_when_its_turn_comes(tmp_path: Path) -> None:
    with TestServer(tmp_path / "store", config=LAME_DUCK + "jetstream: enabled\n") as server:
        with RawClient(server.port) as client:
            api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            make_consumer(client)
        clients = [Waiting(server.port, name) for name in "ab"]
        server.signal(signal.SIGUSR2)
        first, second = (each.rest() for each in clients)
        assert all(b'"ldm":true' in each for each in (first, second))
        assert [len(notices(each)) for each in (first, second)] == [3, 3]
        assert b"_P.b" not in first and b"_P.a" not in second
        assert server.wait(LIMIT_S) == 0


def test_answers_of_the_last_moment_arrive(tmp_path: Path) -> None:
    """What was read before the stop is stored, and whoever asked hears it before the connection ends."""
    with TestServer(tmp_path / "store") as server:
        with RawClient(server.port) as client:
            api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as sock:
            sock.sendall(b'CONNECT {"verbose":false}\r\nSUB _I 1\r\n' + b"PUB s _I 1\r\nx\r\n" * 1000)
            received = b""
            while b'"seq":1}' not in received:
                received += sock.recv(1 << 16)
            server.signal(signal.SIGINT)
            while data := sock.recv(1 << 16):
                received += data
        assert server.wait(LIMIT_S) == 0
        confirmed = received.count(b'"seq":')
        server.start()
        with RawClient(server.port) as client:
            stored = api(client, "STREAM.INFO.S", {})["state"]["messages"]
        assert stored == confirmed


def test_a_stop_with_many_streams_takes_two_seconds_at_most(tmp_path: Path) -> None:
    """Their last syncs share the disk's commits: tests/layouts/test_jetstream_volume.py holds that."""

    async def fill(server: TestServer) -> None:
        client = await nats.connect(server.url)
        turns = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with turns:
                config = json.dumps({"name": f"S{number}", "subjects": [f"s.{number}"]}).encode()
                await client.request(f"$JS.API.STREAM.CREATE.S{number}", config, timeout=LIMIT_S)
                await client.request(f"s.{number}", b"x", timeout=LIMIT_S)

        await asyncio.gather(*(one(number) for number in range(200)))
        await client.close()

    server = TestServer(tmp_path / "store").start()
    asyncio.run(fill(server))
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(LIMIT_S) == 0
    assert time.monotonic() - began < 2
    server.start()
    with RawClient(server.port) as client:
        listed = api(client, "INFO", {})
    server.stop()
    assert listed["streams"] == 200


def open_files(server: TestServer) -> list[str]:
    """Files of the store that the server has open."""
    found: list[str] = []
    for number in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            found.append(str(number.readlink()))
        except FileNotFoundError:  # closed while we looked
            continue
    return sorted(path for path in found if path.startswith(str(server.store_dir)))


def test_deleted_streams_leave_no_file_open(tmp_path: Path) -> None:
    async def run(server: TestServer) -> None:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        before = open_files(server)
        for number in range(5):
            await stream.add_stream(name=f"S{number}", subjects=[f"s.{number}"])
            for _ in range(20):
                await stream.publish(f"s.{number}", b"x")
            puller = await stream.pull_subscribe(f"s.{number}", "c", stream=f"S{number}")
            for message in await puller.fetch(10, timeout=LIMIT_S):
                await message.ack_sync(LIMIT_S)
            await stream.get_msg(f"S{number}", 15)
        assert len(open_files(server)) >= len(before) + 10
        for number in range(5):
            await stream.delete_stream(f"S{number}")
        assert open_files(server) == before
        await client.close()

    with TestServer(tmp_path / "store") as server:
        asyncio.run(run(server))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_consumers_in_memory_end_with_the_server(server: Server, how: str) -> None:
    with RawClient(server.port) as client:
        api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        make_consumer(client, "file")
        make_consumer(client, "memory", mem_storage=True)
        names = api(client, "CONSUMER.NAMES.S", {})["consumers"]
        assert sorted(names) == ["file", "memory"]
        api(client, "CONSUMER.INFO.S.memory", {})
    assert not list(server.store_dir.rglob("obs/memory")), "nothing of it is in files"
    getattr(server, how)()
    server.start()
    with RawClient(server.port) as client:
        assert api(client, "CONSUMER.NAMES.S", {})["consumers"] == ["file"]


def test_a_consumer_in_memory_works_like_any_other(server: Server) -> None:
    async def run() -> None:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        await stream.add_stream(name="W", subjects=["w"], retention="workqueue")
        for _ in range(20):
            await stream.publish("w", b"x")
        config = ConsumerConfig(durable_name="m", mem_storage=True, ack_wait=60)
        puller = await stream.pull_subscribe("w", "m", stream="W", config=config)
        for message in await puller.fetch(15, timeout=LIMIT_S):
            await message.ack_sync(LIMIT_S)
        assert (await stream.stream_info("W")).state.messages == 5
        info = await stream.consumer_info("W", "m")
        assert (info.ack_floor.stream_seq, info.num_pending, info.config.mem_storage) == (15, 5, True)
        assert await stream.delete_consumer("W", "m")
        with pytest.raises(NotFoundError):
            await stream.consumer_info("W", "m")
        await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_ordered_consumers_of_clients_go_on_after_a_restart(server: Server, how: str) -> None:
    async def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.01)

    seen: list[int] = []

    async def on_message(message: Any) -> None:
        seen.append(message.metadata.sequence.stream)

    async def quiet(_: Exception) -> None:
        """Lost connections are the point here."""

    async def run() -> None:
        again = asyncio.Event()

        async def reconnected() -> None:
            again.set()

        client = await nats.connect(
            server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, reconnected_cb=reconnected,
            error_cb=quiet,
        )  # fmt: skip
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s"])
        await stream.subscribe("s", ordered_consumer=True, cb=on_message, idle_heartbeat=0.5)
        for _ in range(20):
            await stream.publish("s", b"x")
        await until(lambda: len(seen) == 20)
        await asyncio.to_thread(getattr(server, how))
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(again.wait(), LIMIT_S)
        for _ in range(20):
            await stream.publish("s", b"x", timeout=LIMIT_S)
        await until(lambda: len(seen) >= 40)
        await client.close()

    asyncio.run(run())
    assert seen == list(range(1, 41)), "each once, in order"
