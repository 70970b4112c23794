"""The JetStream model in this process, without sockets: engine, exchange and API over a volume, and clients on it.

with Model(tmp_path) as model:
    client = model.client()
    client.api("STREAM.CREATE.S", {"name": "S"})      one API call, the answer as a dictionary
    client.request("s.1", b"data")                    one request, the first answer as a Letter
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.streams._kernels import Exchange
from headrace.streams.account import JsAccount
from headrace.streams.api.service import Service
from headrace.streams.engine import StreamEngine
from headrace.streams.limits import AccountLimits, ServerFacts
from headrace.streams.stream.stream import Stream

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"echo":true,"headers":true,"no_responders":true}\r\n'
TURNS_MAX = 1000


@dataclass(frozen=True)
class Msg:
    """A message that a client received."""

    subject: str
    reply: str
    headers: bytes | None
    data: bytes

    def json(self) -> Any:
        return json.loads(self.data)


class Client:
    """A connection: writes protocol lines, reads what came back."""

    def __init__(self, model: Model, account: str) -> None:
        self.model, self._exchange = model, model.exchange
        number = self._exchange.account(account)
        self._conn = self._exchange.open(number, False)
        assert self._exchange.feed(self._conn, CONNECT) == 1
        self._exchange.accept(self._conn, number, False, False, True, True, True)
        self._count = 0
        self._inbox: list[Msg] = []
        self._pending = b""
        model.register(self._conn, self)
        self.subscribe("_INBOX.>")

    def subscribe(self, subject: str, queue: str = "") -> None:
        self._count += 1
        self._feed(f"SUB {subject} {queue} {self._count}\r\n".encode())

    def unsubscribe_all(self) -> None:
        for number in range(1, self._count + 1):
            self._feed(f"UNSUB {number}\r\n".encode())

    def publish(self, subject: str, data: bytes = b"", reply: str = "", headers: bytes | None = None) -> None:
        if headers is None:
            line = f"PUB {subject} {reply} {len(data)}\r\n".encode()
        else:
            line = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(data)}\r\n".encode() + headers
        self._feed(line + data + b"\r\n")

    def _feed(self, data: bytes) -> None:
        assert self._exchange.feed(self._conn, data) == 0
        self.model.run()

    def request_many(self, subject: str, data: bytes = b"", headers: bytes | None = None) -> list[Msg]:
        """Everything that came back until nothing is left to do."""
        self._count += 1
        inbox = f"_INBOX.{self._count}"
        self.publish(subject, data, inbox, headers)
        if ".DIRECT.GET." in subject:  # sent in slices, one per turn
            while (due := self.model.engine.timers.next_ns()) is not None and due <= self.model.engine.now():
                self.model.run()
        found = [msg for msg in self._inbox if msg.subject == inbox]
        self._inbox = [msg for msg in self._inbox if msg.subject != inbox]
        return found

    def request(self, subject: str, data: bytes = b"", headers: bytes | None = None) -> Msg | None:
        return next(iter(self.request_many(subject, data, headers)), None)

    def api_raw(self, endpoint: str, body: Any = None, headers: bytes | None = None) -> Msg | None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.request(f"$JS.API.{endpoint}", data, headers)

    def api(self, endpoint: str, body: Any = None, headers: bytes | None = None) -> dict[str, Any]:
        answer = self.api_raw(endpoint, body, headers)
        assert answer is not None, f"no answer to {endpoint}"
        return answer.json()

    def take(self) -> list[Msg]:
        """What arrived on subscriptions since the last time."""
        found, self._inbox = self._inbox, []
        return found

    def receive(self, data: bytes) -> None:
        self._pending += data
        self._inbox.extend(self._msgs())

    def _msgs(self) -> Iterator[Msg]:
        while b"\r\n" in self._pending:
            line, _, rest = self._pending.partition(b"\r\n")
            words = line.decode().split(" ")
            if words[0] not in ("MSG", "HMSG"):
                self._pending = rest
                continue
            size = int(words[-1])
            if len(rest) < size + 2:
                return
            block = int(words[-2]) if words[0] == "HMSG" else 0
            with_reply = len(words) == (6 if words[0] == "HMSG" else 5)
            self._pending = rest[size + 2 :]
            headers = rest[:block] if words[0] == "HMSG" else None
            yield Msg(words[1], words[3] if with_reply else "", headers, rest[block:size])


class Model:
    """A server without sockets over the store in a directory."""

    def __init__(
        self,
        place: Path,
        *,
        factory: Callable[..., Any] = Stream,
        facts: ServerFacts | None = None,
        limits: dict[str, AccountLimits] | None = None,
        durability: Any = "interval",
        clock: Callable[[], int] = time.time_ns,
        **options: Any,
    ) -> None:
        """`options` are the volume's."""
        self.volume = JetStreamVolume(
            str(place),
            mode="rw",
            create=True,
            durability=durability,
            maintenance=False,
            clock=clock,
            **options,
        )
        self.exchange = Exchange(1 << 20, 4096, 0, 7)
        self._ahead_ns = 0
        self.engine = StreamEngine(
            self.exchange, self.volume, clock=clock, now=lambda: time.monotonic_ns() + self._ahead_ns
        )
        self.facts = facts or ServerFacts()
        self.service = Service(self.engine, self.facts, lambda conn: {"id": conn})
        self._clients: dict[int, Client] = {}
        for name, allowed in (limits or {"$G": AccountLimits()}).items():
            account = JsAccount(self.engine, name, factory, limits=allowed, facts=self.facts)
            self.engine.accounts[name] = account
            self.service.add(account)
            account.recover()

    def account(self, name: str = "$G") -> JsAccount:
        return self.engine.accounts[name]

    def client(self, account: str = "$G") -> Client:
        return Client(self, account)

    def run(self) -> None:
        """Turns until nothing more happens."""
        for _ in range(TURNS_MAX):
            self.engine.turn()
            if not self.deliver() and not self.engine.has_work:
                return
        raise AssertionError("the model does not come to rest")

    def advance(self, ns: int) -> None:
        """Let time pass, and do what is due then."""
        self._ahead_ns += ns
        self.run()

    def deliver(self) -> bool:
        """Hand what is to be sent to the clients; whether there was something."""
        output = self.exchange.take_output()
        for conn, data in output:
            client = self._clients.get(conn)
            if client is not None:
                client.receive(data)
        return bool(output)

    def register(self, conn: int, client: Client) -> None:
        self._clients[conn] = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for account in self.engine.accounts.values():
            for stream in list(account.streams.values()):
                stream.stop()
        self.volume.close()
