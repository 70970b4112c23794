"""Plain clients without a detour: their sockets live in the core, in one set that the loop watches.

    accepted          ─→ Client, with a `SocketTransport` in the place of asyncio's
    set readable      ─→ pump: all clients' bytes to the exchange, one turn, flush: one send per client
                      ─→ look a little longer while that pays (`Spin`), then back to the loop

Everything a protocol asks of its transport is there, so that `Client` does not know the difference. TLS and WebSocket
clients keep asyncio's transports, and so do all clients where there is no epoll.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from headrace.server.nats._kernels import Sockets
from headrace.server.nats.client import Client

if TYPE_CHECKING:
    from headrace.server.nats.server import NatsServer

ASKING, REFUSED, GONE, STALLED, FLOWING, OVERRUN = 1, 2, 3, 4, 5, 6


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
        notices = self._sockets.write(self._slot, bytes(data), self._server.options.max_pending)
        if notices is not None:
            self._server.handle_notices(notices)

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
        """The connection is over: the client is notices, soon."""
        if self._over:
            return
        self._over = True
        self._sockets.remove(self._slot)
        if self._client is not None:
            self._server.left(self._client)


def accept_plain(server: NatsServer, sockets: Sockets, sock: socket.socket, peer: tuple[str, int]) -> None:
    """A new connection of a listener without TLS."""
    Client(server).connection_made(SocketTransport(server, sockets, sock, peer))
