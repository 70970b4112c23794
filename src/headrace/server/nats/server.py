"""`NatsServer`: the front end for NATS clients: listeners, connections and their life.

plain clients    sockets of the core, fed and flushed by the `EngineRunner`
TLS, WebSocket   data_received → exchange.feed → schedule; flush → send_to_transports
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.randomness import random_bits, random_text
from headrace.server._kernels import Exchange
from headrace.server.auth.users import Authenticator, Identity
from headrace.server.listener import Listener
from headrace.server.nats.client import Client
from headrace.server.nats.handshake import Handshake
from headrace.server.nats.opening import EarlyTransport, accept_transport
from headrace.server.sockets import Notice, SocketTransport
from headrace.server.tls import Tls
from headrace.streams.engine import StreamEngine

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from headrace.server.config.options import ServerOptions
    from headrace.server.runner import EngineRunner

CLOSED_KEPT = 10_000
FIRST_PING_S = 2.0
INFO_PROTOCOL = 1
"""What a client says in CONNECT if it takes INFO at any time."""
COMMIT_WAIT_S, DRAIN_S, LOOK_S = 1.0, 0.5, 0.002
"""At the end: how long answers may wait for the disk, how long clients may take to read the last bytes; how often to look."""
NAME_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def new_exchange(options: ServerOptions) -> Exchange:
    """Where the connections, subscriptions and runs of a server are, with the limits of its options."""
    return Exchange(
        options.max_payload,
        options.max_control_line,
        options.max_subscriptions,
        random_bits(63),
        options.max_pending,
    )


class NatsServer:
    """The NATS clients of one server."""

    def __init__(
        self, options: ServerOptions, engine: StreamEngine, runner: EngineRunner, log: logging.Logger
    ) -> None:
        self.options, self.engine, self.runner, self.log = options, engine, runner, log
        self.exchange = self.kernel = engine.exchange
        self.loop = runner.loop
        self.id = "N" + random_text(NAME_LETTERS, 55)
        self.name = options.server_name or self.id
        self.started_ns, self.started = time.time_ns(), time.monotonic()
        self._in_core = runner.sockets is not None and options.tls is None and not options.log.trace
        self._front_end = runner.add_front_end(self)
        engine.connections = self
        self.handshake = Handshake(self, Authenticator(options))
        self.tls = Tls(options.tls) if options.tls is not None else None
        self.clients: dict[int, Client] = {}
        self.gone: deque[Any] = deque(maxlen=CLOSED_KEPT)
        self.total_connections = self.slow_consumers = self.stale_connections = 0
        self.lame_duck = False
        self.view: Any = None
        self.websocket_port: int | None = None
        self.websocket_tls: Tls | None = None
        self.port = options.port
        self._listener = Listener(self.loop, log, self._accepted)
        self._websocket: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._bound = False
        self._cid = 0
        self._pinger = self.loop.call_later(options.ping_interval_ns / 1e9, self._ping_all)
        self.on_describe: Callable[[Client], Any] = lambda _client: None

    # Listening

    async def bind(self) -> None:
        """Take the client port, without answering yet; OSError when it is taken."""
        options = self.options
        self.port = await self._listener.bind(options.host, max(options.port, 0))
        if options.websocket is not None:
            from headrace.server.nats.websocket import bind_websocket  # few have one, and it takes a while

            self._websocket = await bind_websocket(self, options.websocket)
        self._bound = True

    async def listen(self) -> None:
        """Let clients in."""
        if not self._bound:
            await self.bind()
        self._listener.start()
        if self._websocket is not None:
            self._websocket.start()

    def stop_listening(self) -> None:
        """No new clients."""
        self._listener.close()
        if self._websocket is not None:
            self._websocket.close()

    def _accepted(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        if self._in_core:
            transport = SocketTransport(self.runner, self._front_end, sock, peer, self.options.max_pending)
            Client(self).connection_made(transport)
        else:
            accept_transport(self, sock, peer)

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it beside the clients; the loop alone would forget it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Clients

    def opened(self, client: Client) -> None:
        """A new connection: number, slot on the exchange. It is ready at once unless TLS comes before."""
        self._cid += 1
        client.cid = self._cid
        self.total_connections += 1
        locked = not self.handshake.authenticator.is_open
        client.slot = self.exchange.open(self.exchange.account("$G"), locked)
        self.clients[client.slot] = client
        self.log.debug("%s - %s connection created", client, client.label)
        if isinstance(client.transport, SocketTransport):
            client.transport.start(client)
        if not isinstance(client.transport, EarlyTransport):
            self.ready(client)

    def greet(self, client: Client) -> None:
        """INFO, and a place if there is one left."""
        client.greeted = True
        client.send(self.handshake.info_line(client))
        if len(self.clients) > self.options.max_connections > 0:
            self.exchange.refuse(client.slot, "maximum connections exceeded")
            client.close("maximum connections exceeded")

    def ready(self, client: Client) -> None:
        """Bytes may flow: INFO if it was not sent in clear before TLS, and the clock for CONNECT."""
        if not client.greeted:
            self.greet(client)
        if not client.closing and not self.handshake.authenticator.is_open:
            client.set_auth_timer(self.options.auth_timeout_ns / 1e9)

    def admit(self, client: Client, identity: Identity) -> str | None:
        """May one more connection of that account stay? The text that refuses it, or None."""
        limit = next(
            (each.max_connections for each in self.options.accounts if each.name == identity.account), -1
        )
        if limit >= 0:
            others = sum(1 for each in self.clients.values() if each.account == identity.account)
            if others >= limit:
                return "maximum account active connections exceeded"
        return None

    def closed(self, client: Client) -> None:
        """A connection is gone."""
        if self.clients.get(client.slot) is client:
            description = self.on_describe(client)
            if description is not None:
                self.gone.append(description)
            del self.clients[client.slot]
            self.exchange.close(client.slot)
            self.schedule()

    def stalled(self, client: Client) -> None:
        """Its buffers are full: if it does not read within the deadline it goes."""
        self.exchange.set_congested(client.slot, True)
        deadline = self.options.write_deadline_ns / 1e9
        self.loop.call_later(deadline, self._check_stalled, client, client.stalled_since)

    def _check_stalled(self, client: Client, since: float | None) -> None:
        if client.stalled_since is not None and client.stalled_since == since and not client.closing:
            self.drop_slow(client, "write deadline")

    def drop_slow(self, client: Client, why: str) -> None:
        """A client that does not read is dropped, so that nobody waits for it."""
        self.slow_consumers += 1
        self.log.warning("%s - Slow Consumer Detected: %s exceeded", client, why)
        client.abort(f"Slow Consumer ({'Pending Bytes' if why == 'pending bytes' else 'Write Deadline'})")

    def caught_up(self, client: Client) -> None:
        """A client that was behind reads again: consumers may push to it."""
        self.exchange.set_congested(client.slot, False)
        self.engine.wake_stalled()
        self.schedule()

    def backlog(self, conn: int) -> int:
        """Bytes that a client has not taken yet."""
        client = self.clients.get(conn)
        return client.waiting_bytes() if client is not None else 0

    # Bytes

    @property
    def has_transports(self) -> bool:
        """Whether clients are on asyncio's transports."""
        return not self._in_core or self.websocket_port is not None

    def schedule(self) -> None:
        """Have a turn soon: a transport fed the exchange."""
        self.runner.schedule()

    def flush(self) -> None:
        """Send what is there."""
        self.runner.flush()

    def send_to_transports(self) -> None:
        """Send what is there for clients whose sockets are not in the core."""
        for slot, data in self.exchange.take_output():
            client = self.clients.get(slot)
            if client is None:
                continue
            if data:
                client.send(data)
            elif not client.closing:
                self.drop_slow(client, "pending bytes")

    def on_notice(self, slot: int, notice: int) -> None:
        """What the sockets have to say of a client beyond bytes."""
        client = self.clients.get(slot)
        if client is None or not isinstance(client.transport, SocketTransport):
            return
        if notice in (Notice.ASKING, Notice.REFUSED):
            client.on_notice(notice)
        elif notice == Notice.GONE:
            client.transport.lost()
        elif notice == Notice.STALLED:
            client.pause_writing()
        elif notice == Notice.FLOWING:
            client.resume_writing()
        elif not client.closing:
            self.drop_slow(client, "pending bytes")

    # Pings

    def _ping_all(self) -> None:
        """PING to everybody who was silent; who owes too many answers is stale."""
        self._pinger = self.loop.call_later(self.options.ping_interval_ns / 1e9, self._ping_all)
        for client in list(self.clients.values()):
            if client.closing or isinstance(client.transport, EarlyTransport):
                continue
            pongs = self.exchange.pongs(client.slot)
            if pongs > client.pongs_seen:
                client.pongs_seen, client.pings_out = pongs, 0
            if client.pings_out >= self.options.ping_max:
                self.stale_connections += 1
                self.exchange.refuse(client.slot, "Stale Connection")
                client.close("Stale Connection")
                continue
            client.pings_out += 1
            self.exchange.ping(client.slot)
        self.flush()

    def first_ping(self, client: Client) -> None:
        """Soon after CONNECT, so that the time of a round trip is known; nats-server waits as long."""
        self.loop.call_later(min(FIRST_PING_S, self.options.ping_interval_ns / 1e9), self._ping_first, client)

    def _ping_first(self, client: Client) -> None:
        if not client.closing and self.exchange.rtt_ns(client.slot) == 0:
            self.exchange.ping(client.slot)
            self.flush()

    # Life

    def send_info(self) -> None:
        """Tell everybody who listens to INFO what changed (lame duck, new addresses)."""
        for client in list(self.clients.values()):
            if client.connected and client.protocol >= INFO_PROTOCOL:
                client.send(self.handshake.info_line(client))

    async def close(self, before: Callable[[], Any] = lambda: None) -> None:
        """End: no new clients, nothing more is read, what was read is answered, then all are closed.

        `before` is called when everything that arrived has been served: the last word to waiting clients.
        """
        self._pinger.cancel()
        self.stop_listening()
        for client in self.clients.values():
            if not client.closing:
                client.transport.pause_reading()
        self.engine.turn()
        await self._until(lambda: not self.engine.waits, COMMIT_WAIT_S)
        before()
        self.flush()
        for client in list(self.clients.values()):
            client.close("Server Shutdown")
        await self._until(lambda: not self.clients, DRAIN_S)

    async def _until(self, done: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not done() and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
