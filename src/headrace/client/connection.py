"""One connection to a NATS server: blocking, for one thread, over the core's intake.

    Connection(access)      the first server that answers; TLS, credentials, PING/PONG
      .request(subject, …)  one question, one answer
      .api(name, …)         the same for JetStream: JSON in, JSON out, ServerRefused for its errors
      .ask(name, …)         api() that waits for a server that restarts and for a cluster that elects
      .reconnect()          another server (or the same again); subscriptions are the caller's to renew

Servers of a cluster name each other's addresses (INFO, connect_urls): those are tried too when ours are gone.

Users keep their own clients: this one is for Spark's workers, pipelines and tools, which move whole batches.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from headrace.client._kernels import Intake, __version__
from headrace.client.access import Access
from headrace.client.retrying import RetryDeadline, passing
from headrace.client.transport import PlainTransport, TlsTransport, Transport
from headrace.errors import BadInput, ConnectionLost, ServerRefused
from headrace.nkeys import sign
from headrace.randomness import random_hex

CONNECT_S = 5.0
REQUEST_S = 10.0
ASK_S = 5.0
ROUNDS = 3
LEARNT_MAX = 64
PAUSE_S = 0.5
NO_RESPONDERS = "503"


class Message(NamedTuple):
    """What came on a subscription."""

    sid: int
    subject: str
    reply: str
    headers: bytes
    payload: bytes

    @property
    def status(self) -> str:
        """The code of a status message ("404"), empty for others."""
        line = self.headers.partition(b"\r\n")[0].decode(errors="replace").split(" ", 2)
        return line[1] if len(line) > 1 else ""

    @property
    def status_text(self) -> str:
        line = self.headers.partition(b"\r\n")[0].decode(errors="replace").split(" ", 2)
        return line[2].strip() if len(line) > 2 else ""


class Connection:
    """A connected client."""

    def __init__(self, access: Access, name: str = "headrace", *, patient: bool = False) -> None:
        """`patient`: wait for a server that is not there yet. A wrong address should be said at once."""
        self.access, self._name = access, name
        self.intake = Intake()
        self.info: dict[str, Any] = {}
        self._transport: Transport | None = None
        self._sids = itertools.count(1)
        self._inbox = ""
        self._inbox_sid = 0
        self._questions = itertools.count(1)
        self._kept: list[Message] = []
        self._turn = 0
        self._learnt: list[tuple[str, int]] = []
        retry = RetryDeadline()
        while True:
            try:
                self.reconnect()
                break
            except ConnectionLost as problem:
                if not patient:
                    raise
                retry.pause(problem, "connecting")

    # Life

    def reconnect(self) -> None:
        """Connect to the next server that answers; a few rounds over all of them."""
        self.close()
        problems: dict[str, str] = {}
        servers = self._servers()
        for attempt in range(ROUNDS * len(servers)):
            host, port = servers[self._turn % len(servers)]
            self._turn += 1
            if attempt and attempt % len(servers) == 0:
                time.sleep(PAUSE_S * attempt / len(servers))
            try:
                self._connect(host, port)
            except (OSError, ConnectionLost) as problem:
                problems[f"{host}:{port}"] = str(problem)
                self.close()
            else:
                self._turn -= 1  # the next one only when this one fails
                self._learn(self.info)
                return
        self._turn += 1
        reasons = "; ".join(f"{where}: {text}" for where, text in problems.items())
        raise ConnectionLost(
            f"no NATS server can be reached ({reasons}); is it running, and is the address right?"
        )

    def _servers(self) -> list[tuple[str, int]]:
        """Those that the user named, then those that servers named."""
        return list(dict.fromkeys([*self.access.servers, *self._learnt]))

    def _learn(self, info: dict[str, Any]) -> None:
        for text in (info.get("connect_urls") or ())[:LEARNT_MAX]:
            host, _, port = str(text).rpartition(":")
            if host and port.isdecimal():
                where = (host.strip("[]"), int(port))
                if where not in self._learnt and len(self._learnt) < LEARNT_MAX:
                    self._learnt.append(where)

    def _connect(self, host: str, port: int) -> None:
        access = self.access
        sock = socket.create_connection((host, port), CONNECT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.intake.reset()
        self._kept.clear()
        try:
            if access.tls_first:
                sock = access.tls_context().wrap_socket(sock, server_hostname=host)
            self._use(sock)
            self.info = self._await_info()
            if not access.tls_first and (access.tls or self.info.get("tls_required")):
                sock.settimeout(CONNECT_S)
                sock = access.tls_context().wrap_socket(sock, server_hostname=host)
                self._use(sock)
        except ssl.SSLError as problem:
            sock.close()
            raise ConnectionLost(f"TLS: {problem}") from None
        self._inbox = f"_INBOX.{random_hex(11)}"
        self._inbox_sid = next(self._sids)
        hello = b"CONNECT " + msgspec.json.encode(self._connect_options()) + b"\r\n"
        self.send(hello + f"SUB {self._inbox}.* {self._inbox_sid}\r\nPING\r\n".encode())
        self._await_pong()

    def _use(self, sock: socket.socket) -> None:
        made = TlsTransport if isinstance(sock, ssl.SSLSocket) else PlainTransport
        self._transport = made(sock, self.intake)  # type: ignore[arg-type]

    def _await_info(self) -> dict[str, Any]:
        for kind, *_, payload in self._events(CONNECT_S):
            if kind == "INFO":
                return msgspec.json.decode(payload)
        raise ConnectionLost("the server sent no INFO: is that a NATS server?")

    def _await_pong(self) -> None:
        until = time.monotonic() + CONNECT_S
        while time.monotonic() < until:
            for kind, *_, payload in self._events(until - time.monotonic()):
                if kind == "PONG":
                    return
                if kind == "ERR":
                    text = payload.decode(errors="replace")
                    raise ServerRefused(f"{self.access.place}: the server refused the connection: {text}")
        raise ConnectionLost("the server did not answer a PING")

    def _connect_options(self) -> dict[str, Any]:
        access = self.access
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "lang": "headrace",
            "version": __version__,
            "name": f"{self._name}-{os.getpid()}",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "echo": False,
            "tls_required": access.tls,
        }
        if access.seed is not None:
            nonce = self.info.get("nonce")
            if not nonce:
                raise BadInput(f"{access.place}: an nkey was given, but the server asks for none")
            nkey, options["sig"] = sign(access.seed, str(nonce).encode())
            options["jwt" if access.jwt else "nkey"] = access.jwt or nkey
        if access.token is not None:
            options["auth_token"] = access.token
        if access.user is not None:
            options["user"], options["pass"] = access.user, access.password or ""
        return options

    def close(self) -> None:
        """Give up the socket; `reconnect` makes another one."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Facts

    @property
    def is_headrace(self) -> bool:
        """Does the server keep marks of producers?"""
        return "headrace" in self.info

    @property
    def max_payload(self) -> int:
        return int(self.info.get("max_payload", 1 << 20))

    @property
    def version(self) -> tuple[int, ...]:
        """Of nats-server, or of the one whose features are served."""
        parts = str(self.info.get("version", "0")).split("-")[0].split(".")
        return tuple(int(part) for part in parts if part.isdigit())

    # Talk

    def send(self, data: bytes, timeout: float = REQUEST_S) -> None:
        """All of it, or ConnectionLost."""
        if self._transport is None:
            raise ConnectionLost("the connection is closed")
        self._transport.send(data, timeout)

    def subscribe(self, subject: str) -> int:
        """The number of a new subscription; sent with the next flush of the socket."""
        sid = next(self._sids)
        self.send(f"SUB {subject} {sid}\r\n".encode())
        return sid

    def new_inbox(self) -> str:
        """A subject of our own."""
        return f"_INBOX.{random_hex(11)}"

    def _events(self, timeout: float, messages: int = 1 << 30, size: int = 1 << 30, floor: int = 0) -> Any:
        if self._transport is None:
            raise ConnectionLost("the connection is closed")
        self._transport.receive(messages, size, floor, max(timeout, 0))
        return self.intake.events()

    def receive(
        self, timeout: float, messages: int = 1 << 30, size: int = 1 << 30, floor: int = 0
    ) -> list[Message]:
        """Wait for messages that are not of the batch (or for the batch, or the acks); PING is answered here."""
        if self._kept:
            kept, self._kept = self._kept, []
            return kept
        found: list[Message] = []
        for kind, sid, subject, reply, headers, payload in self._events(timeout, messages, size, floor):
            if kind == "MSG":
                found.append(
                    Message(
                        sid,
                        subject.decode(errors="replace"),
                        reply.decode(errors="replace"),
                        headers,
                        payload,
                    )
                )
            elif kind == "PING":
                self.send(b"PONG\r\n")
            elif kind == "INFO":
                self._changed(msgspec.json.decode(payload))
            elif kind == "ERR":
                self._raise_error(payload.decode(errors="replace"))
        return found

    def _changed(self, info: dict[str, Any]) -> None:
        self.info |= info
        self._learn(info)
        if info.get("ldm"):
            raise ConnectionLost("the server is about to stop")

    def _raise_error(self, text: str) -> None:
        if "permissions violation" in text.lower():
            raise ServerRefused(f"{self.access.place}: {text}")
        raise ConnectionLost(f"the server says: {text}")

    def request(self, subject: str, payload: bytes = b"", timeout: float = REQUEST_S) -> Message:
        """The answer to one question. ServerRefused when nobody is there to answer."""
        reply = f"{self._inbox}.{next(self._questions)}"
        self.send(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")
        until, others = time.monotonic() + timeout, list[Message]()
        try:
            while (left := until - time.monotonic()) > 0:
                for message in self.receive(left):
                    if message.subject == reply:
                        if message.status == NO_RESPONDERS:
                            raise ServerRefused(
                                f"{self.access.place}: nobody answers {subject} (is JetStream on, may this user ask?)",
                                503,
                            )
                        return message
                    if message.sid != self._inbox_sid:
                        others.append(message)
        finally:
            self._kept += others
        raise ConnectionLost(f"no answer to {subject} in {timeout:g} s")

    def api(self, name: str, body: Any = None, timeout: float = REQUEST_S) -> dict[str, Any]:
        """A call of the JetStream API. ServerRefused has the server's text and code."""
        payload = b"" if body is None else msgspec.json.encode(body)
        answer: dict[str, Any] = msgspec.json.decode(
            self.request(f"{self.access.api}.{name}", payload, timeout).payload
        )
        if "error" in answer:
            error = answer["error"]
            raise ServerRefused(
                f"{name}: {error.get('description', error)}",
                int(error.get("err_code") or error.get("code") or 0),
            )
        return answer

    def ask(self, name: str, body: Any = None) -> dict[str, Any]:
        """api(), again on another connection while the server restarts or its cluster has no leader. For calls that may be
        made twice."""
        retry = RetryDeadline()
        while True:
            try:
                return self.api(name, body, ASK_S)
            except ServerRefused as refusal:
                # Nobody answers at a server that has no JetStream: that will not pass.
                if not passing(refusal) or (refusal.code == 503 and not self.info.get("jetstream")):
                    raise
                problem = ConnectionLost(str(refusal))
            except ConnectionLost as lost:
                problem = lost
            retry.pause(problem, name)
            try:
                self.reconnect()
            except ConnectionLost:
                pass  # the next call says so again
