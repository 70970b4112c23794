"""`NatsServer`: listeners, clients, and the turn of the engine on the event loop.

    plain clients    set of sockets readable → pump → one turn → one flush: a send per client that has something to get
    TLS, WebSocket   data_received … data_received → one turn (soon) → one flush

A turn that served plain clients is followed by a short look at their sockets: the next request of a client that waits
for our answer is often here before the loop could have gone to sleep and woken up (`spin.py`: only while that pays).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.server.auth.users import Authenticator, Identity
from headrace.server.nats._kernels import SOCKETS, Exchange, Sockets
from headrace.server.nats.client import Client
from headrace.server.nats.committer import ThreadCommitter
from headrace.server.nats.handshake import Handshake
from headrace.server.nats.sockets import (
    ASKING,
    FLOWING,
    GONE,
    REFUSED,
    STALLED,
    Listener,
    SocketTransport,
)
from headrace.server.nats.spin import LOOK_NS, Spin
from headrace.server.tls import Tls
from headrace.streams.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.layouts.jetstream.volume import JetStreamVolume
    from headrace.server.config.options import Options

CLOSED_KEPT = 10_000
BACKLOG = 4096
SLICE_NS = 4_000_000
"""So long the sockets are served without going back to the loop, where new clients and monitoring wait."""
SHARED_SLICE_NS = 1_000_000
"""The same where the loop has clients of its own to serve."""
NAME_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class NatsServer:
    """One server on one event loop."""

    def __init__(self, options: Options, volume: JetStreamVolume | None, log: logging.Logger) -> None:
        self.options, self.volume, self.log = options, volume, log
        self.loop = asyncio.get_running_loop()
        self.id = "N" + "".join(secrets.choice(NAME_LETTERS) for _ in range(55))
        self.name = options.server_name or self.id
        self.started_ns, self.started = time.time_ns(), time.monotonic()
        self.exchange = Exchange(
            options.max_payload,
            options.max_control_line,
            options.max_subscriptions,
            secrets.randbits(63),
            options.max_pending,
        )
        self.engine = Engine(self.exchange, volume, options=options)
        self.sockets = Sockets() if SOCKETS and options.tls is None else None
        wake = self.sockets.wake if self.sockets is not None else None
        self.engine.committer = self.committer = ThreadCommitter(self.loop, self._released, wake)
        self.engine.on_work = self.schedule
        self.engine.run_off_loop = self._off_loop
        self.engine.backlog = self._backlog
        if self.sockets is not None:
            self.engine.send_early = self._send_early
        self._told: list[tuple[int, int]] = []
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
        self._servers: list[asyncio.AbstractServer] = []
        self._bound = False
        self._cid = 0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._spin = Spin()
        self._leaving = False
        self._listener = Listener(self, self.sockets) if self.sockets is not None else None
        if self.sockets is not None:
            self.loop.add_reader(self.sockets.fileno(), self._ready)
        self._pinger = self.loop.call_later(options.ping_interval_ns / 1e9, self._ping_all)
        self.on_describe: Callable[[Client], Any] = lambda _client: None

    # Listening

    async def bind(self) -> None:
        """Take the client port, without answering yet; OSError when it is taken."""
        options = self.options
        port = 0 if options.port < 0 else options.port
        if self._listener is not None:
            self.port = await self._listener.bind(options.host, port, BACKLOG)
        else:
            await self._bind_transports(port)
        if options.websocket is not None:
            from headrace.server.nats.websocket import bind_websocket  # few have one, and it takes a while

            self._servers.append(await bind_websocket(self, options.websocket))
        self._bound = True

    async def _bind_transports(self, port: int) -> None:
        options = self.options
        first = self.tls is not None and self.tls.options.handshake_first
        server = await self.loop.create_server(
            lambda: Client(self),
            options.host,
            port,
            backlog=BACKLOG,
            ssl=self.tls.context if first and self.tls is not None else None,
            reuse_address=True,
            start_serving=False,
        )
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]

    async def listen(self) -> None:
        """Let clients in."""
        if not self._bound:
            await self.bind()
        if self._listener is not None:
            self._listener.start()
        for server in self._servers:
            await server.start_serving()

    def stop_listening(self) -> None:
        """No new clients."""
        if self._listener is not None:
            self._listener.close()
        for server in self._servers:
            server.close()

    # Clients

    def opened(self, client: Client) -> None:
        """A new connection: number, room on the exchange, INFO."""
        options = self.options
        self._cid += 1
        client.cid = self._cid
        self.total_connections += 1
        locked = not self.handshake.authenticator.is_open
        client.slot = self.exchange.open(self.exchange.account("$G"), locked)
        self.clients[client.slot] = client
        if isinstance(client.transport, SocketTransport):
            client.transport.start(client)
        client.tls = client.transport.get_extra_info("ssl_object")
        client.send(self.handshake.info_line(client))
        if len(self.clients) > options.max_connections > 0:
            self.exchange.refuse(client.slot, "maximum connections exceeded")
            client.close("maximum connections exceeded")
            return
        if (
            self.tls is not None
            and client.tls is None
            and client.kind == "nats"
            and not options.allow_non_tls
        ):
            client.transport.pause_reading()
            self.loop.create_task(self._upgrade(client))
        if locked:
            client.set_auth_timer(options.auth_timeout_ns / 1e9)

    async def _upgrade(self, client: Client) -> None:
        assert self.tls is not None
        try:
            transport = await self.loop.start_tls(
                client.transport,
                client,
                self.tls.context,
                server_side=True,
                ssl_handshake_timeout=self.tls.options.timeout_ns / 1e9,
            )
        except (OSError, TimeoutError) as error:
            self.log.error("%s - TLS handshake error: %s", client, error)
            client.abort("TLS Handshake Failure")
            return
        if transport is None:
            return
        client.connection_made(transport)

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

    def _backlog(self, slot: int) -> int:
        client = self.clients.get(slot)
        return client.waiting_bytes() if client is not None else 0

    # The turn

    def schedule(self) -> None:
        """Have a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = True  # what this turn wakes is served in it
        self.engine.turn()
        self._scheduled = False
        if self.engine.ready:
            self.schedule()
        self.flush()
        self._set_timer()

    def _released(self, group: Any) -> None:
        self.engine.released(group)
        self.flush()
        self._set_timer()

    def _send_early(self) -> None:
        """In the middle of a turn: what the sockets have to say waits for its end."""
        assert self.sockets is not None
        _, told = self.sockets.flush(self.exchange)
        if told is not None:
            self._told += told

    def flush(self) -> None:
        """Send what is there."""
        if self.sockets is not None:
            others, told = self.sockets.flush(self.exchange)
            if self._told:
                told, self._told = self._told + (told or []), []
            if told is not None:
                self.attend(told)
            if not others:
                return
        for slot, data in self.exchange.take_output():
            client = self.clients.get(slot)
            if client is None:
                continue
            if data:
                client.send(data)
            elif not client.closing:
                self.drop_slow(client, "pending bytes")

    # The sockets of plain clients

    def _ready(self) -> None:
        """Something came. Serve it, and look for more as long as that pays."""
        assert self.sockets is not None
        sockets, exchange, spin = self.sockets, self.exchange, self._spin
        shared = self.websocket_port is not None
        ends = time.monotonic_ns() + (SHARED_SLICE_NS if shared else SLICE_NS)
        self._leaving = False
        self._serve(*sockets.pump(exchange, time.time_ns()))
        # Somebody who left must be off the exchange before the next message is routed.
        while not self._leaving and spin.pays(ends):
            found = sockets.seek(exchange, LOOK_NS)
            if found is None:
                spin.miss()
                return
            self._serve(*found)
            spin.hit()

    def left(self, client: Client) -> None:
        """The socket is closed; the loop takes the client off the exchange, before it looks at sockets again."""
        self._leaving = True
        self.loop.call_soon(client.connection_lost, None)

    def _serve(self, woken: bool, told: list[tuple[int, int]] | None) -> None:
        if told is not None:
            self.attend(told)
        if woken:
            self.committer.take()
        self._turn()

    def attend(self, told: list[tuple[int, int]]) -> None:
        """What the sockets have to say beyond bytes."""
        for slot, notice in told:
            client = self.clients.get(slot)
            if client is None or not isinstance(client.transport, SocketTransport):
                continue
            if notice in (ASKING, REFUSED):
                client.attend(notice)
            elif notice == GONE:
                client.transport.lost()
            elif notice == STALLED:
                client.pause_writing()
            elif notice == FLOWING:
                client.resume_writing()
            elif not client.closing:
                self.drop_slow(client, "pending bytes")

    def _set_timer(self) -> None:
        due = self.engine.timers.next_ns()
        if due is None or (self._timer is not None and self._timer_ns <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due
        self._timer = self.loop.call_later(max(due - self.engine.now(), 0) / 1e9, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._turn()

    def _off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def guarded() -> Any:
            try:
                return work()
            except Exception as error:
                return error

        def back(result: Any) -> None:
            done(result)
            self.schedule()

        task = self.loop.run_in_executor(None, guarded)
        task.add_done_callback(lambda finished: back(finished.result()))

    # Pings

    def _ping_all(self) -> None:
        """PING to everybody who was silent; who owes too many answers is stale."""
        self._pinger = self.loop.call_later(self.options.ping_interval_ns / 1e9, self._ping_all)
        for client in list(self.clients.values()):
            if client.closing:
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
            client.ping_sent = time.monotonic()
            self.exchange.write(client.slot, b"PING\r\n")
        self.flush()

    # Life

    def send_info(self) -> None:
        """Tell everybody who listens to INFO what changed (lame duck, new addresses)."""
        for client in list(self.clients.values()):
            if client.connected:
                client.send(self.handshake.info_line(client))

    async def close(self, before: Callable[[], Any] = lambda: None) -> None:
        """End: no new clients, those that are there are closed, everything handed over is synced.

        `before` is called when everything that arrived has been served: the last word to waiting clients.
        """
        self._pinger.cancel()
        self.stop_listening()
        self.engine.turn()
        before()
        self.flush()
        for client in list(self.clients.values()):
            client.close("Server Shutdown")
        await asyncio.sleep(0)
        await self.loop.run_in_executor(None, self.committer.close)
        self.committer.take()
        if self.sockets is not None:
            self.loop.remove_reader(self.sockets.fileno())
        if self._timer is not None:
            self._timer.cancel()
