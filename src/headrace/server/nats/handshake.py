"""INFO and CONNECT: what a client gets, and who it turns out to be."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.randomness import random_text
from headrace.server._kernels import __version__
from headrace.server.auth.users import Authenticator, Identity
from headrace.server.tls import names_in

if TYPE_CHECKING:
    from headrace.server.auth.permissions import Permissions
    from headrace.server.nats.client import Client
    from headrace.server.nats.server import NatsServer

SERVED_VERSION = "2.11.0"
"""The nats-server version whose client features are served; clients decide by it what they may use."""
API_LEVEL = 1
FOREVER = (1 << 62) - 1
NONCE_LETTERS, NONCE_LENGTH = f"{string.ascii_letters}{string.digits}-_", 15
FLAGS = ("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required")
TEXTS = ("name", "lang", "version", "user", "pass", "auth_token", "nkey", "sig", "jwt")


class Handshake:
    """Made anew when the configuration is reloaded."""

    def __init__(self, server: NatsServer, authenticator: Authenticator) -> None:
        self._server = server
        self.authenticator = authenticator

    # INFO

    def info(self, client: Client | None) -> dict[str, Any]:
        """The JSON of INFO for one client."""
        server, options = self._server, self._server.options
        facts: dict[str, Any] = {
            "server_id": server.id,
            "server_name": server.name,
            "version": SERVED_VERSION,
            "proto": 1,
            "go": "",
            "host": options.host,
            "port": server.port,
            "headers": options.header_support,
            "max_payload": options.max_payload,
            "headrace": __version__,
        }
        if self.authenticator.required:
            facts["auth_required"] = True
        if client is None or client.kind == "nats":
            facts |= self._tls_info()
        if options.jetstream.enabled:
            facts |= {"jetstream": True, "api_lvl": API_LEVEL}
            if options.jetstream.domain:
                facts["domain"] = options.jetstream.domain
        if server.lame_duck:
            facts["ldm"] = True
        if options.client_advertise:
            facts["connect_urls"] = [options.client_advertise]
        if client is not None:
            facts |= self._client_info(client)
        return facts

    def _tls_info(self) -> dict[str, Any]:
        options = self._server.options
        if options.tls is None:
            return {}
        kind = "tls_available" if options.allow_non_tls else "tls_required"
        return {kind: True} | ({"tls_verify": True} if options.tls.verify else {})

    def _client_info(self, client: Client) -> dict[str, Any]:
        """What only one client sees: its number and address, and the nonce that it is to sign."""
        facts: dict[str, Any] = {"client_id": client.cid, "client_ip": client.host}
        if self.authenticator.needs_nonce:
            if not client.nonce:
                client.nonce = random_text(NONCE_LETTERS, NONCE_LENGTH).encode()
            facts["nonce"] = client.nonce.decode()
        return facts

    def info_line(self, client: Client) -> bytes:
        """INFO as it is sent; the blank before the end is the protocol's."""
        return b"INFO " + msgspec.json.encode(self.info(client)) + b" \r\n"

    # CONNECT

    def check(self, client: Client) -> bool:
        """Look at the CONNECT that waits. False: the answer comes later (or the client is on its way out)."""
        exchange = self._server.exchange
        connect = parse_connect(exchange.connect_text(client.slot))
        if connect is None:
            client.close("Bad CONNECT")
            return False
        if connect.get("no_responders") and not connect.get("headers"):
            exchange.refuse(client.slot, "no responders requires headers support")
            client.close("Bad CONNECT")
            return False
        if self.authenticator.is_slow and not client.connected:
            client.checking = True
            client.transport.pause_reading()  # what it sends meanwhile waits on its side
            task = self._server.loop.run_in_executor(None, self._identify, client, connect)
            task.add_done_callback(lambda done: self._checked_later(client, connect, done.result()))
            return False
        return self._checked(client, connect, self._identify(client, connect))

    def _identify(self, client: Client, connect: dict[str, Any]) -> Identity | None:
        certificate = client.tls.getpeercert() if client.tls is not None else None
        kind = "WEBSOCKET" if client.kind == "websocket" else "STANDARD"
        return self.authenticator.check(connect, client.nonce, names_in(certificate), kind)

    def _checked_later(self, client: Client, connect: dict[str, Any], identity: Identity | None) -> None:
        client.checking = False
        if client.closing:
            return
        client.transport.resume_reading()
        if self._checked(client, connect, identity):
            client.on_notice(self._server.exchange.feed(client.slot, b""))
        self._server.schedule()

    def _checked(self, client: Client, connect: dict[str, Any], identity: Identity | None) -> bool:
        server = self._server
        exchange = server.exchange
        if identity is None:
            server.log.error("%s - authentication error%s", client, _whose(connect))
            exchange.refuse(client.slot, "Authorization Violation")
            client.close("Authentication Failure")
            return False
        refusal = server.admit(client, identity)
        if refusal is not None:
            exchange.refuse(client.slot, refusal)
            client.close(refusal)
            return False
        client.cancel_auth_timer()
        client.connected, client.identity = True, identity
        client.user, client.account = identity.user, identity.account
        client.name, client.lang = _text(connect, "name"), _text(connect, "lang")
        client.version = _text(connect, "version")
        protocol = connect.get("protocol")
        client.protocol = protocol if isinstance(protocol, int) else 0
        server.first_ping(client)
        exchange.accept(
            client.slot,
            exchange.account(identity.account),
            bool(connect.get("verbose", True)),
            bool(connect.get("pedantic", True)),
            bool(connect.get("echo", True)),
            bool(connect.get("headers", False)) and server.options.header_support,
            bool(connect.get("no_responders", False)),
            permission_lists(identity.permissions),
        )
        return True


def parse_connect(text: bytes) -> dict[str, Any] | None:
    """The fields of a CONNECT; None where one of them is not what the protocol says. What is null was not given."""
    try:
        connect = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):  # no JSON, no UTF-8, too deep
        return None
    connect = {name: value for name, value in connect.items() if value is not None}
    flags_fit = all(isinstance(connect.get(name, True), bool) for name in FLAGS)
    texts_fit = all(isinstance(connect.get(name, ""), str) for name in TEXTS)
    return connect if flags_fit and texts_fit else None


def _text(connect: dict[str, Any], name: str) -> str:
    value = connect.get(name)
    return value[:256] if isinstance(value, str) else ""


def _whose(connect: dict[str, Any]) -> str:
    for name in ("user", "nkey"):
        if value := _text(connect, name):
            return f' - {name.title()} "{value}"'
    return ""


def permission_lists(permissions: Permissions | None) -> Any:
    """The lists as the exchange takes them."""
    if permissions is None:
        return None

    def queued(entries: tuple[str, ...]) -> list[tuple[str, str | None]]:
        parts = (entry.partition(" ") for entry in entries)
        return [(subject, queue.strip() or None) for subject, _, queue in parts]

    responses = permissions.allow_responses
    if responses is not None:
        most, ttl_ns = responses
        responses = (FOREVER if most < 0 else most, ttl_ns or FOREVER)
    allow = permissions.subscribe_allow
    publish = permissions.publish_allow
    return (
        list(publish) if publish is not None else ([] if responses is not None else None),
        list(permissions.publish_deny),
        queued(allow) if allow is not None else None,
        queued(permissions.subscribe_deny),
        responses,
    )
