"""Two protocols on one engine: two listeners, one set of sockets, one turn, one commit group.

The second protocol is as small as one can be: a request (its length in front) is a message for a log, the answer is its
position, sent when it is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import headrace
from headrace._core import Request, Requests
from headrace.engine.commits import Group
from headrace.engine.engine import Engine
from headrace.server.config.options import JetStreamOptions, ServerOptions
from headrace.server.jetstream import start_jetstream, stop_jetstream
from headrace.server.listener import Listener
from headrace.server.nats.server import NatsServer, new_exchange
from headrace.server.runner import EngineRunner
from headrace.server.sockets import Notice, SocketTransport
from headrace.streams.engine import StreamEngine

TURN_BYTES = 64 << 10
LIMIT_S = 30.0
LOG = logging.getLogger("test")


class LogClient:
    """One connection of the second protocol."""

    def __init__(self, front_end: LogFrontEnd, transport: SocketTransport) -> None:
        self.front_end, self.transport = front_end, transport
        self.slot = front_end.kernel.open(True)
        front_end.clients[self.slot] = self
        transport.start(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del self.front_end.clients[self.slot]
        self.front_end.kernel.close(self.slot)


class LogFrontEnd:
    """Requests that are appended to a log, answers with their position."""

    has_transports = False

    def __init__(self, engine: Engine, runner: EngineRunner, store: Any) -> None:
        self.engine, self.runner, self.store = engine, runner, store
        self.kernel = Requests(1 << 10, 1 << 20, 100, 1 << 20)
        self.number = runner.add_front_end(self)
        engine.sources.append(self)
        self.clients: dict[int, LogClient] = {}
        self.listener = Listener(runner.loop, LOG, self._accepted)
        self.served = 0

    def _accepted(self, sock: Any, peer: tuple[str, int]) -> None:
        LogClient(self, SocketTransport(self.runner, self.number, sock, peer, 1 << 20))

    def on_notice(self, slot: int, notice: int) -> None:
        client = self.clients.get(slot)
        if client is not None and notice == Notice.GONE:
            client.transport.lost()
        elif client is not None and notice == Notice.REFUSED:
            client.transport.close()

    def send_to_transports(self) -> None:
        """All its clients are in the core."""

    def serve(self, now: int) -> bool:
        requests = self.kernel.take(TURN_BYTES)
        if requests:
            ticket = self.store.append(headrace.batch("other.x", [request.body for request in requests]))
            self.engine.after(self.store, ticket.mark, partial(self._answer, requests, ticket.first))
        return self.kernel.has_arrived

    def _answer(self, requests: list[Request], first: int) -> None:
        self.served += len(requests)
        for position, request in enumerate(requests, first):
            self.kernel.answer(request.conn, request.number, struct.pack(">q", position))
        # Places that became free may have let in what was read before.
        if self.kernel.has_arrived:
            self.engine.host.wake_loop()


class Withholding:
    """A committer that keeps groups back until it is let."""

    def __init__(self, committer: Any) -> None:
        self._committer = committer
        self.groups: list[Group] = []
        self.held: list[Group] | None = None

    def submit(self, group: Group) -> None:
        self.groups.append(group)
        if self.held is not None:
            self.held.append(group)
        else:
            self._committer.submit(group)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for group in held:
            self._committer.submit(group)


class Scene:
    """Both front ends, a client of each."""

    def __init__(self, server: NatsServer, other: LogFrontEnd, committer: Withholding) -> None:
        self.server, self.other, self.committer = server, other, committer
        self.engine = server.engine
        self.nats: tuple[asyncio.StreamReader, asyncio.StreamWriter]
        self.log: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    def publish(self, body: bytes) -> None:
        self.nats[1].write(b"PUB orders.x _INBOX.1 %d\r\n%b\r\n" % (len(body), body))

    def append(self, body: bytes) -> None:
        self.log[1].write(struct.pack(">i", len(body)) + body)

    async def nats_line(self, start: bytes) -> bytes:
        while not (line := await asyncio.wait_for(self.nats[0].readline(), LIMIT_S)).startswith(start):
            assert line, "closed"
        return line

    async def position(self) -> int:
        answer = await asyncio.wait_for(self.log[0].readexactly(12), LIMIT_S)
        assert answer[:4] == struct.pack(">i", 8)
        return int.from_bytes(answer[4:], "big")


@asynccontextmanager
async def scene(path: Path) -> AsyncGenerator[Scene]:
    with (
        headrace.open(str(path / "jetstream"), mode="rw", create=True, layout="jetstream") as streams,
        headrace.open(str(path / "other"), mode="rw", create=True, layout="jetstream") as logs,
    ):
        store = logs.create("OTHER", subjects=["other.>"])
        options = ServerOptions(host="127.0.0.1", port=-1, jetstream=JetStreamOptions(enabled=True))
        engine = StreamEngine(new_exchange(options), streams)
        runner = EngineRunner(engine)
        server = NatsServer(options, engine, runner, LOG)
        other = LogFrontEnd(engine, runner, store)
        committer = Withholding(runner.committer)
        engine.committer = committer
        start_jetstream(server, streams)
        await server.bind()
        port = await other.listener.bind("127.0.0.1", 0)
        await server.listen()
        other.listener.start()
        made = Scene(server, other, committer)
        made.nats = await asyncio.open_connection("127.0.0.1", server.port)
        made.log = await asyncio.open_connection("127.0.0.1", port)
        create = b'{"name":"ORDERS","subjects":["orders.>"]}'
        made.nats[1].write(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.> 1\r\n'
            b"PUB $JS.API.STREAM.CREATE.ORDERS _INBOX.0 %d\r\n%b\r\n" % (len(create), create)
        )
        await made.nats_line(b"MSG _INBOX.0")
        try:
            yield made
        finally:
            committer.release()
            for _, writer in (made.nats, made.log):
                writer.close()
            other.listener.close()
            await server.close()
            await runner.close()
            await stop_jetstream(server, streams)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def test_two_protocols_share_a_commit_group(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as made:
            committer = made.committer
            before = len(committer.groups)
            committer.held = []
            made.publish(b"first")
            await until(lambda: len(committer.groups) == before + 1)
            # The group of the first is being written: what comes now shares the next one.
            made.publish(b"second")
            made.append(b"of the other protocol")
            waiting = made.engine._group  # pyright: ignore[reportPrivateUsage]
            await until(lambda: len(waiting.releases) == 2)
            assert len(committer.groups) == before + 1
            assert made.other.served == 0, "answered before it was on disk"
            committer.release()
            assert b"_INBOX.1" in await made.nats_line(b"MSG _INBOX.1")
            assert await made.position() == 1
            assert b"_INBOX.1" in await made.nats_line(b"MSG _INBOX.1")
            shared = committer.groups[before + 1]
            targets = {target for target, _ in shared.marks.values()}
            assert len(targets) == 2 and made.other.store in targets

    asyncio.run(run())
    with headrace.open(str(tmp_path / "other")) as logs:
        assert [record.data for record in logs["OTHER"]] == [b"of the other protocol"]
    with headrace.open(str(tmp_path / "jetstream")) as streams:
        assert [record.data for record in streams["ORDERS"]] == [b"first", b"second"]


def test_much_work_of_one_protocol_does_not_hold_up_the_other(tmp_path: Path) -> None:
    """More than many turns may take is asked for at once; a PING is answered long before it is done."""
    requests, body = 2_000, b"x" * 5_000

    async def run() -> None:
        async with scene(tmp_path) as made:
            for _ in range(requests):
                made.append(body)
            await until(lambda: made.other.served > 0)
            made.nats[1].write(b"PING\r\n")
            await made.nats_line(b"PONG")
            assert made.other.served < requests, "nothing of the work was left to hold anybody up"
            positions = [await made.position() for _ in range(requests)]
            assert positions == list(range(1, requests + 1))

    asyncio.run(run())


def test_a_connection_ends_alone(tmp_path: Path) -> None:
    """A length that may not be ends the connection that sent it; one of the other protocol with its number stays."""

    async def run() -> None:
        async with scene(tmp_path) as made:
            made.log[1].write(struct.pack(">i", -1))
            assert await asyncio.wait_for(made.log[0].read(), LIMIT_S) == b""
            await until(lambda: not made.other.clients)
            made.nats[1].write(b"PING\r\n")
            await made.nats_line(b"PONG")
            assert len(made.server.clients) == 1

    asyncio.run(run())
