"""Plain clients without a detour: their sockets live in the core, in one set for all protocols that the loop watches.

    accepted          ─→ the protocol's client, with a `SocketTransport` in the place of asyncio's
    set readable      ─→ pump: all clients' bytes to their front ends, one turn, flush: one send per client
                      ─→ look a little longer while that pays (`Spin`), then back to the loop

Everything a protocol wants of its transport is there, so that a client does not know the difference. TLS and WebSocket
clients keep asyncio's transports, and so do all clients where there is no epoll.
"""

from __future__ import annotations

import asyncio
import socket
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.server.runner import EngineRunner


class Notice(IntEnum):
    """What the sockets have to say of a connection beyond bytes."""

    ASKING = 1
    """It waits for a decision."""
    REFUSED = 2
    """What it sent was refused: send what is left and close."""
    GONE = 3
    """The connection is over."""
    STALLED = 4
    """It does not read what it gets."""
    FLOWING = 5
    """It has caught up."""
    OVERRUN = 6
    """More waits for it than may."""


class SocketClient(Protocol):
    """A client with a socket in the set."""

    slot: int
    """Its number at its front end."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        ...


class SocketTransport(asyncio.Transport):
    """One socket of the set, as a transport."""

    def __init__(
        self, runner: EngineRunner, front_end: int, sock: socket.socket, peer: Any, pending_max: int
    ) -> None:
        super().__init__({"peername": peer})
        assert runner.sockets is not None
        self._runner, self._sockets, self._front_end = runner, runner.sockets, front_end
        self._sock, self._pending_max = sock, pending_max
        self._client: SocketClient | None = None
        self._slot = -1
        self._over = False

    def start(self, client: SocketClient) -> None:
        """The client has its number at the front end: from now on bytes flow."""
        self._client, self._slot = client, client.slot
        self._sockets.add(self._front_end, client.slot, self._sock.detach())
        self._runner.plain_clients += 1

    @property
    def active_ns(self) -> int:
        """When bytes came last."""
        return self._sockets.active_ns(self._front_end, self._slot)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are the core's."""

    def get_write_buffer_size(self) -> int:
        return self._sockets.waiting_bytes(self._front_end, self._slot)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        notices = self._sockets.write(self._front_end, self._slot, bytes(data), self._pending_max)
        if notices is not None:
            self._runner.handle_notices(notices)

    def pause_reading(self) -> None:
        self._sockets.set_reading(self._front_end, self._slot, False)

    def resume_reading(self) -> None:
        self._sockets.set_reading(self._front_end, self._slot, True)

    def is_closing(self) -> bool:
        return self._over

    def close(self) -> None:
        """Send what waits, then end."""
        if not self._over and self._sockets.end(self._front_end, self._slot):
            self.lost()

    def abort(self) -> None:
        """End at once."""
        self.lost()

    def lost(self) -> None:
        """The connection is over; the client is notified by the loop, soon."""
        if self._over:
            return
        self._over = True
        self._sockets.remove(self._front_end, self._slot)
        if self._client is not None:
            self._runner.plain_clients -= 1
            self._runner.left(self._client)
