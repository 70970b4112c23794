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
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from headrace.server.auth.users import Authenticator, Identity
from headrace.server.nats._kernels import SOCKETS, Exchange, Sockets
from headrace.server.nats.client import Client
from headrace.server.nats.committer import ThreadCommitter
from headrace.server.nats.handshake import Handshake
from headrace.server.nats.listener import Listener
from headrace.server.nats.opening import EarlyTransport, accept_transport
from headrace.server.nats.sockets import (
    ASKING,
    FLOWING,
    GONE,
    REFUSED,
    STALLED,
    SocketTransport,
    accept_plain,
)
from headrace.server.nats.spin import LOOK_NS, SYNC_LOOK_NS, Spin
from headrace.server.tls import Tls
from headrace.streams.engine import StreamEngine

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from headrace.layouts.stream_store import StreamVolume
    from headrace.server.config.options import Options

CLOSED_KEPT = 10_000
FIRST_PING_S = 2.0
WORKERS = 16
"""Threads for what is not done on the loop. They mostly wait for syncs, which the file system does for all at once."""
SLICE_NS = 4_000_000
"""So long the sockets are served without going back to the loop, where new clients and monitoring wait."""
SHARED_SLICE_NS = 1_000_000
"""The same where the loop has clients of its own to serve."""
INFO_PROTOCOL = 1
"""What a client says in CONNECT if it takes INFO at any time."""
COMMIT_WAIT_S, DRAIN_S, LOOK_S = 1.0, 0.5, 0.002
"""At the end: how long answers may wait for the disk, how long clients may take to read the last bytes; how often to look."""
NAME_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class NatsServer:
    """One server on one event loop."""

    def __init__(self, options: Options, volume: StreamVolume | None, log: logging.Logger) -> None:
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
        self.engine = StreamEngine(self.exchange, volume)
        in_core = SOCKETS and options.tls is None and not options.log.trace
        self.sockets = Sockets() if in_core else None
        self.engine.committer = self.committer = ThreadCommitter(self.loop, self._released, self.sockets)
        self.engine.host = self
        self._workers = ThreadPoolExecutor(WORKERS, "headrace-work")
        self._notices: list[tuple[int, int]] = []
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
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._spin = Spin()
        self._leaving = False
        if self.sockets is not None:
            self.loop.add_reader(self.sockets.fileno(), self._ready)
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
        if self.sockets is not None:
            accept_plain(self, self.sockets, sock, peer)
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

    # The turn

    def wake_loop(self) -> None:
        """The engine has work."""
        self.schedule()

    def schedule(self) -> None:
        """Have a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = True  # what this turn wakes is served in it
        self.engine.turn()
        self._scheduled = False
        if self.engine.has_work:
            self.schedule()
        self.flush()
        self._set_timer()

    def _released(self, group: Any) -> None:
        self.engine.released(group)
        self.flush()
        self._set_timer()

    def send_early(self) -> None:
        """In the middle of a turn, where sockets are the core's: what they have to say waits for its end."""
        if self.sockets is None:
            return
        _, notices = self.sockets.flush(self.exchange)
        if notices is not None:
            self._notices += notices

    def flush(self) -> None:
        """Send what is there."""
        if self.sockets is not None:
            others, notices = self.sockets.flush(self.exchange)
            if self._notices:
                notices, self._notices = self._notices + (notices or []), []
            if notices is not None:
                self.handle_notices(notices)
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
            found = sockets.seek(exchange, SYNC_LOOK_NS if self.engine.commit_runs else LOOK_NS)
            if found is None:
                spin.miss()
                return
            self._serve(*found)
            spin.hit()

    def left(self, client: Client) -> None:
        """The socket is closed; the loop takes the client off the exchange, before it looks at sockets again."""
        self._leaving = True
        self.loop.call_soon(client.connection_lost, None)

    def _serve(self, woken: bool, notices: list[tuple[int, int]] | None) -> None:
        if notices is not None:
            self.handle_notices(notices)
        if woken:
            self.committer.take()
        self._turn()

    def handle_notices(self, notices: list[tuple[int, int]]) -> None:
        """What the sockets have to say beyond bytes."""
        for slot, notice in notices:
            client = self.clients.get(slot)
            if client is None or not isinstance(client.transport, SocketTransport):
                continue
            if notice in (ASKING, REFUSED):
                client.on_notice(notice)
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

    def run_off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Work of the engine on a thread; the result comes back on the loop."""

        def guarded() -> Any:
            try:
                return work()
            except Exception as error:
                return error

        def back(result: Any) -> None:
            done(result)
            self.schedule()

        task = self.loop.run_in_executor(self._workers, guarded)
        task.add_done_callback(lambda finished: back(finished.result()))

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
        await self.loop.run_in_executor(None, self._workers.shutdown)
        await self.loop.run_in_executor(None, self.committer.wait)
        self.committer.close()
        if self.sockets is not None:
            self.loop.remove_reader(self.sockets.fileno())
        if self._timer is not None:
            self._timer.cancel()

    async def _until(self, done: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not done() and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
