"""From an accepted socket to a client on a transport of asyncio: TLS, or plain where the core has no sockets.

    plain                           transport
    TLS                             INFO in clear → TLS → transport
    TLS, handshake first            TLS → transport → INFO
    handshake first, with a delay   nothing came in that time → INFO in clear → TLS → transport
    TLS, `allow_non_tls`            INFO in clear → look at the first byte → TLS or plain → transport

Nothing is read from the socket before it belongs to the transport that understands its bytes, and nothing is written
in clear once TLS may have begun: what a client sends right behind INFO is the first record of its handshake.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from headrace.server.nats.client import Client
from headrace.server.tls import log_handshake

if TYPE_CHECKING:
    from headrace.server.nats.server import NatsServer

TLS_RECORD = b"\x16"


class EarlyTransport(asyncio.Transport):
    """A socket before TLS: INFO leaves in clear, nothing is read, what else is written is dropped."""

    def __init__(self, server: NatsServer, sock: socket.socket, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        self._server, self.sock = server, sock
        self._open = True
        self._over = False
        self.client: Client | None = None
        self.task: asyncio.Task[None] | None = None

    def hand_over(self) -> None:
        """From now on the bytes are somebody else's."""
        self._open = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """INFO fits into any socket."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._open:
            try:
                self.sock.send(data)
            except OSError:  # it is gone; whoever reads finds that out
                pass

    def pause_reading(self) -> None:
        """Nobody reads."""

    def resume_reading(self) -> None:
        """Not yet."""

    def is_closing(self) -> bool:
        return self._over

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._over:
            return
        self._over, self._open = True, False
        if self.task is not None and not self.task.done():
            self.task.cancel()
            self.task.add_done_callback(lambda _: self.sock.close())
        else:
            self.sock.close()
        if self.client is not None:
            self._server.loop.call_soon(self.client.connection_lost, None)


def accept_transport(server: NatsServer, sock: socket.socket, peer: tuple[str, int]) -> None:
    """A new connection of a listener with TLS, or of one without the core's sockets."""
    early, client = EarlyTransport(server, sock, peer), Client(server)
    early.client = client
    client.connection_made(early)
    if not client.closing:
        early.task = server.keep(_open(server, early, client))


async def _open(server: NatsServer, early: EarlyTransport, client: Client) -> None:
    tls, loop = server.tls, server.loop
    context = None
    if tls is not None:
        options, context = tls.options, tls.context
        wait_ns = options.handshake_first_fallback_ns
        first = options.handshake_first
        if first and wait_ns and not await _first_byte(loop, early.sock, wait_ns / 1e9):
            first = False
        if not first:
            server.greet(client)
            if client.closing:
                return
            if server.options.allow_non_tls:
                byte = await _first_byte(loop, early.sock, options.timeout_ns / 1e9)
                context = context if byte == TLS_RECORD else None
    early.hand_over()
    try:
        await loop.connect_accepted_socket(
            lambda: client,
            early.sock,
            ssl=context,
            ssl_handshake_timeout=tls.options.timeout_ns / 1e9 if tls is not None and context else None,
        )
    except (OSError, TimeoutError) as error:
        if not client.closing:
            log_handshake(server.log, f"{client} - TLS handshake error", error)
            client.abort("TLS Handshake Failure")


async def _first_byte(loop: asyncio.AbstractEventLoop, sock: socket.socket, seconds: float) -> bytes:
    """What the client sends first, left in the socket; nothing when the time is over or the client is gone."""
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, lambda: came.done() or came.set_result(None))
    try:
        await asyncio.wait_for(came, seconds)
        return sock.recv(1, socket.MSG_PEEK)
    except (OSError, TimeoutError):
        return b""
    finally:
        loop.remove_reader(sock)
