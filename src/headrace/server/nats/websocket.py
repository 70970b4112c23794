"""The WebSocket listener: the same clients and the same bytes, in frames.

    connection_made → (TLS) → HTTP request → origin allowed? → 101 → a client like any other, INFO in its first frame
    data_received   → frames → their payloads, one after the other → exchange.feed; where frames begin means nothing
    send            → one binary frame

The frames are those of the package `websockets`, without its I/O. Compression is not offered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from headrace.server.listener import Listener, join_address
from headrace.server.nats.client import Client
from headrace.server.tls import Tls, log_handshake

if TYPE_CHECKING:
    import socket

    from headrace.server.config.options import WebsocketOptions
    from headrace.server.nats.server import NatsServer

LOG = logging.getLogger("headrace.websocket")
LOG.setLevel(logging.WARNING)  # below that the package logs each connection; the server does so itself

FRAME_BYTES_BEFORE_AUTH = 64 << 10
FRAME_BYTES_MIN = 8 << 20
"""Clients put what they kept while they were disconnected into one frame: it may be larger than a message."""

PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
CLOSE_CODES = {
    "Client Closed": CloseCode.NORMAL_CLOSURE,
    "Protocol Violation": CloseCode.PROTOCOL_ERROR,
    "Bad CONNECT": CloseCode.PROTOCOL_ERROR,
    "Server Shutdown": CloseCode.GOING_AWAY,
    "Stale Connection": CloseCode.GOING_AWAY,
}
"""Everything else is a matter of policy: who may connect, and how many."""


async def bind_websocket(server: NatsServer, options: WebsocketOptions) -> Listener:
    """Take the WebSocket port, without answering yet; OSError when it is taken."""
    server.websocket_tls = Tls(options.tls) if options.tls is not None else None

    def accepted(sock: socket.socket, peer: tuple[str, int]) -> None:
        server.keep(_open(server, options, sock, peer))

    listener = Listener(server.loop, server.log, accepted)
    server.websocket_port = await listener.bind(options.host, max(options.port, 0))
    return listener


async def _open(
    server: NatsServer, options: WebsocketOptions, sock: socket.socket, peer: tuple[str, int]
) -> None:
    """TLS, if there is any, with the certificates of the last reload; the request comes then."""
    tls = server.websocket_tls
    try:
        await server.loop.connect_accepted_socket(
            lambda: WebsocketClient(server, options),
            sock,
            ssl=tls.context if tls is not None else None,
            ssl_handshake_timeout=tls.options.timeout_ns / 1e9 if tls is not None else None,
        )
    except (OSError, TimeoutError) as error:
        log_handshake(server.log, f"websocket: TLS handshake error from {join_address(*peer)}", error)


class WebsocketClient(Client):
    """A client behind an HTTP upgrade."""

    kind = "websocket"

    def __init__(self, server: NatsServer, options: WebsocketOptions) -> None:
        super().__init__(server)
        self._options = options
        self._frames = ServerProtocol(max_size=(None, FRAME_BYTES_BEFORE_AUTH), logger=LOG)
        self._timer: asyncio.TimerHandle | None = None

    # The upgrade

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection; a client only after the upgrade."""
        self.transport = cast("asyncio.Transport", transport)
        self._timer = self.server.loop.call_later(self._options.handshake_timeout_ns / 1e9, self._no_request)

    def _no_request(self) -> None:
        self._timer = None
        self.abort("WebSocket Handshake Timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _upgrade(self, request: Request) -> None:
        self._stop_timer()
        frames = self._frames
        response = frames.accept(request)
        if response.status_code == 101:
            problem = origin_problem(self._options, request.headers)
            if problem is not None:
                self.server.log.error("websocket handshake refused: %s", problem)
                response = frames.reject(403, f"{problem}\n")
        if response.status_code == 101:
            for name, value in self._options.headers:
                response.headers[name] = value
        frames.send_response(response)
        self._write()
        if response.status_code == 101:
            super().connection_made(self.transport)

    # Frames

    def data_received(self, data: bytes) -> None:
        """Bytes of the connection: a request at first, then frames."""
        if self.closing:
            return
        frames = self._frames
        if self.connected:
            frames.max_fragment_size = max(
                FRAME_BYTES_MIN, self.server.options.max_payload + FRAME_BYTES_BEFORE_AUTH
            )
        frames.receive_data(data)
        for event in frames.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif isinstance(event, Frame) and event.opcode in DATA and not self.closing:
                super().data_received(bytes(event.data))
        self._write()

    def _write(self) -> None:
        """What the frames' protocol has to say: the answer to the upgrade, pongs, the end."""
        for data in self._frames.data_to_send():
            if data != SEND_EOF:
                super().send(data)
            else:
                self._stop_timer()
                super().close(self.reason)

    def send(self, data: bytes) -> None:
        """Bytes for the client."""
        if self.closing or self._frames.state is not State.OPEN:
            return
        self._frames.send_binary(data)
        super().send(b"".join(self._frames.data_to_send()))

    def close(self, reason: str = "") -> None:
        """Send what is there and why, then close."""
        if self.closing:
            return
        self.server.flush()
        if not self.closing and self._frames.state is State.OPEN:
            reason = reason or self.reason
            self._frames.send_close(CLOSE_CODES.get(reason, CloseCode.POLICY_VIOLATION), reason[:120])
            self.transport.write(b"".join(self._frames.data_to_send()))
        super().close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, perhaps before it was a client."""
        self._stop_timer()
        super().connection_lost(exc)


def origin_problem(options: WebsocketOptions, headers: Headers) -> str | None:
    """Why a page of that origin may not connect; None if it may, or if this is no browser (no origin)."""
    if not options.same_origin and not options.origins:
        return None
    origins = headers.get_all("Origin")
    if not origins:
        return None
    origin = _address(origins[0])
    if len(origins) > 1 or origin is None:
        return f"origin {', '.join(origins)!r} cannot be understood"
    if options.same_origin:
        scheme = "https" if options.tls is not None else "http"
        own = _address(f"{scheme}://{''.join(headers.get_all('Host'))}")
        if own is None or origin[1:] != own[1:]:
            return f"origin {origins[0]!r} is not that of this server"
    if options.origins and origin not in [_address(allowed) for allowed in options.origins]:
        return f"origin {origins[0]!r} is not allowed"
    return None


def _address(url: str) -> tuple[str, str, int] | None:
    """(scheme, host, port) of an origin."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (KeyError, ValueError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None
