"""One client connection: bytes between its transport and the exchange.

connection_made → INFO → (TLS) → CONNECT, checked by `Handshake` → operations
data_received   → exchange.feed; what it asks for beyond that: a check, or the end
pause_writing   → the client reads too slowly: nothing more is pushed to it, and after the deadline it goes
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, cast

from headrace.server.listener import address_of, join_address
from headrace.server.nats.protocol_log import ProtocolLog

if TYPE_CHECKING:
    from headrace.server.auth.users import Identity
    from headrace.server.nats.server import NatsServer

LOG = logging.getLogger("headrace.server")
FINE, ASKING, CLOSE = 0, 1, 2
WRITE_HIGH_BYTES = 1 << 20


class Client(asyncio.Protocol):
    """A connection of the kind STANDARD or WEBSOCKET; `kind` says which."""

    kind = "nats"
    label = "Client"

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.slot = -1
        self.cid = 0
        self.started_ns = time.time_ns()
        self.active_ns = self.started_ns
        self.host, self.port = "", 0
        self.name = self.lang = self.version = self.user = ""
        self.account = ""
        self.protocol = 0
        self.nonce = b""
        self.tls: Any = None
        self.closing = False
        self.greeted = False
        self.connected = False
        self.checking = False
        self.identity: Identity | None = None
        self.pings_out = 0
        self.pongs_seen = 0
        self.stalled_since: float | None = None
        self.reason = "Client Closed"
        self.protocol_log = ProtocolLog(self) if server.options.log.trace else None
        self._auth_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"{join_address(self.host, self.port)} - cid:{self.cid}"

    def described(self) -> str:
        """The same, with what it said of itself and who it is."""
        words = [f"v{self.version}" if self.version else "", self.lang, self.name]
        said = ":".join(word for word in words if word)
        user = f"{self.account}/user:{self.user}" if self.user else ""
        return " - ".join([repr(self), *(f'"{each}"' for each in (said, user) if each)])

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there. Where TLS comes in between it is called a second time, with the transport that stays."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.tls = transport.get_extra_info("ssl_object")
        if self.slot < 0:
            self.host, self.port = address_of(transport.get_extra_info("peername"))
            self.server.opened(self)
        else:
            self.server.ready(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        server = self.server
        self.active_ns = time.time_ns()
        if self.protocol_log is not None:
            self.protocol_log.received(data)
        fed = server.exchange.feed(self.slot, data)
        if fed:
            self.on_notice(fed)
        server.schedule()

    def on_notice(self, fed: int) -> None:
        """What `feed` asks for: check a CONNECT and go on, or the end."""
        while fed == ASKING and not self.closing and not self.checking:
            if not self.server.handshake.check(self):
                return
            fed = self.server.exchange.feed(self.slot, b"")
        if fed == CLOSE:
            self.close("Protocol Violation")

    def send(self, data: bytes) -> None:
        """Bytes for the client."""
        if self.closing:
            return
        if self.protocol_log is not None:
            self.protocol_log.sent(data)
        self.transport.write(data)
        if self.stalled_since is not None:
            waiting = self.transport.get_write_buffer_size()
            if waiting > self.server.options.max_pending:
                self.server.drop_slow(self, "pending bytes")

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.stalled_since = time.monotonic()
        self.server.stalled(self)

    def resume_writing(self) -> None:
        """It has caught up."""
        self.stalled_since = None
        self.server.caught_up(self)

    def waiting_bytes(self) -> int:
        """What it has not taken yet."""
        return 0 if self.closing else self.transport.get_write_buffer_size()

    def last_active_ns(self) -> int:
        """When bytes came last, by wall clock."""
        return max(self.active_ns, getattr(self.transport, "active_ns", 0))

    def close(self, reason: str = "") -> None:
        """Send what is there, then close."""
        if self.closing:
            return
        self.server.flush()
        self.closing = True
        self.reason = reason or self.reason
        if self.transport.get_write_buffer_size():
            # Whoever does not read is not waited for without end.
            deadline = self.server.options.write_deadline_ns / 1e9
            self._end_timer = self.server.loop.call_later(deadline, self.transport.abort)
        self.transport.close()

    def abort(self, reason: str) -> None:
        """Close at once, whatever waits."""
        self.closing = True
        self.reason = reason
        self.transport.abort()

    def eof_received(self) -> bool:
        """The client has nothing more to say."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.closing = True
        self.cancel_auth_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
        LOG.debug("%s - %s connection closed: %s", self.described(), self.label, self.reason)
        self.server.closed(self)

    # Until CONNECT

    def set_auth_timer(self, seconds: float) -> None:
        """A client that does not say who it is in time goes."""
        self._auth_timer = self.server.loop.call_later(seconds, self._too_late)

    def cancel_auth_timer(self) -> None:
        """It said it."""
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None

    def _too_late(self) -> None:
        self._auth_timer = None
        if not self.connected and not self.closing:
            self.server.exchange.refuse(self.slot, "Authentication Timeout")
            self.close("Authentication Timeout")
