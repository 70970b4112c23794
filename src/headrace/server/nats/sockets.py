"""Plain clients without a detour: their sockets live in the core, in one set that the loop watches.

    listener readable ─→ accept ─→ Client, with a `SocketTransport` in the place of asyncio's
    set readable      ─→ pump: all clients' bytes to the exchange, one turn, flush: one send per client
                      ─→ look a little longer while that pays (`Spin`), then back to the loop

Everything a protocol asks of its transport is there, so that `Client` does not know the difference. TLS and WebSocket
clients keep asyncio's transports, and so do all clients where there is no epoll.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

from headrace.server.nats._kernels import Sockets
from headrace.server.nats.client import Client

if TYPE_CHECKING:
    from headrace.server.nats.server import NatsServer

ASKING, REFUSED, GONE, STALLED, FLOWING, OVERRUN = 1, 2, 3, 4, 5, 6
ACCEPTS_MAX = 64
REST_S = 1.0
OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class SocketTransport(asyncio.Transport):
    """One socket of the set, as a transport."""

    def __init__(self, server: NatsServer, sockets: Sockets, sock: socket.socket, peer: Any) -> None:
        super().__init__({"peername": peer})
        self._server, self._sockets, self._sock = server, sockets, sock
        self._client: Client | None = None
        self._slot = -1
        self._over = False

    def start(self, client: Client) -> None:
        """The client has its place on the exchange: from now on bytes flow."""
        self._client, self._slot = client, client.slot
        self._sockets.add(client.slot, self._sock.detach())

    @property
    def active_ns(self) -> int:
        """When bytes came last."""
        return self._sockets.active_ns(self._slot)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are the core's."""

    def get_write_buffer_size(self) -> int:
        return self._sockets.waiting_bytes(self._slot)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        told = self._sockets.write(self._slot, bytes(data), self._server.options.max_pending)
        if told is not None:
            self._server.attend(told)

    def pause_reading(self) -> None:
        self._sockets.set_reading(self._slot, False)

    def resume_reading(self) -> None:
        self._sockets.set_reading(self._slot, True)

    def is_closing(self) -> bool:
        return self._over

    def close(self) -> None:
        """Send what waits, then end."""
        if not self._over and self._sockets.end(self._slot):
            self.lost()

    def abort(self) -> None:
        """End at once."""
        self.lost()

    def lost(self) -> None:
        """The connection is over: the client is told, soon."""
        if self._over:
            return
        self._over = True
        self._sockets.remove(self._slot)
        if self._client is not None:
            self._server.left(self._client)


class Listener:
    """Listening sockets; new clients go to the set."""

    def __init__(self, server: NatsServer, sockets: Sockets) -> None:
        self._server, self._sockets = server, sockets
        self.listening: list[socket.socket] = []
        self._accepting = False

    async def bind(self, host: str, port: int, backlog: int) -> int:
        """Take the port on every address of the host; returns it. OSError when it is taken."""
        loop = self._server.loop
        flags = socket.AI_PASSIVE
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, kind, proto, _, address in dict.fromkeys(found):
                if port == 0 and self.listening:
                    address = (address[0], self.listening[0].getsockname()[1], *address[2:])
                self.listening.append(_listen(family, kind, proto, address, backlog))
        except OSError:
            self.close()
            raise
        return int(self.listening[0].getsockname()[1])

    def start(self) -> None:
        """Let clients in."""
        self._accepting = True
        for each in self.listening:
            self._server.loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """No new clients."""
        for each in self.listening:
            if self._accepting:
                self._server.loop.remove_reader(each)
            each.close()
        self.listening.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in OUT_OF:
                    self._rest(listening, error)
                    return
                raise
            sock.setblocking(False)
            transport = SocketTransport(self._server, self._sockets, sock, peer)
            client = Client(self._server)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.connection_made(transport)

    def _rest(self, listening: socket.socket, error: OSError) -> None:
        """Out of descriptors or memory: those who are here are served; new ones are asked in later."""
        self._server.log.error("cannot accept clients: %s; trying again in %g s", error, REST_S)
        loop = self._server.loop
        loop.remove_reader(listening)

        def again() -> None:
            if listening in self.listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(REST_S, again)


def _listen(family: int, kind: int, proto: int, address: Any, backlog: int) -> socket.socket:
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"error while attempting to bind on address {address}: {error.strerror}"
        ) from None
    return sock
