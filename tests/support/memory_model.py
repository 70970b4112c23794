"""The JetStream model over a disk in memory and a clock that stands still: what state machines and power cuts drive.

model = MemoryModel(Disk.memory(), clock)
wire = model.wire()
wire.ask([("s.a", None, b"1"), ("s.b", None, b"2")])      several requests in one buffer, one answer each
wire.fetch("S", "c", 5)                                   (messages, statuses)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace._core import Disk
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.streams._kernels import Exchange
from headrace.streams.account import JsAccount
from headrace.streams.api.service import Service
from headrace.streams.engine import StreamEngine
from headrace.streams.limits import AccountLimits, ServerFacts
from headrace.streams.stream.stream import Stream
from tests.support.model import Client, Model, Msg

ROOT = "/store"
SECOND = 1_000_000_000
START_NS = 1_800_000_000 * SECOND
BLOCK_BYTES = 600

Publish = tuple[str, bytes | None, bytes]
"""Subject, headers, payload."""


class StillClock:
    """Wall time that moves when told to; the monotonic clock of an engine follows it."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns

    def since_start(self) -> int:
        return self.now_ns - START_NS + SECOND


class Got(NamedTuple):
    """A delivered message and the numbers in its ack subject."""

    deliveries: int
    seq: int
    consumer_seq: int
    pending: int
    msg: Msg

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self[:4]


def delivered(msg: Msg) -> Got:
    parts = msg.reply.split(".")
    return Got(int(parts[4]), int(parts[5]), int(parts[6]), int(parts[8]), msg)


def headers_of(**values: object) -> bytes | None:
    """`headers_of(Nats_Msg_Id="a")`: a header block, None where there is nothing to say."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in values.items() if value is not None]
    return ("NATS/1.0\r\n" + "".join(lines) + "\r\n").encode() if lines else None


def line_of(subject: str, reply: str, headers: bytes | None, data: bytes) -> bytes:
    """PUB or HPUB as a client writes it."""
    if headers is None:
        return f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n"
    sizes = f"{len(headers)} {len(headers) + len(data)}"
    return f"HPUB {subject} {reply} {sizes}\r\n".encode() + headers + data + b"\r\n"


class Wire(Client):
    """A client that puts several requests into one buffer."""

    def send(self, data: bytes) -> None:
        self._feed(data)

    def ask(self, requests: Sequence[Publish]) -> list[Msg | None]:
        """The answers to requests that arrive in one piece, in their order; None where none came."""
        inboxes: list[str] = []
        lines: list[bytes] = []
        for subject, headers, data in requests:
            self._count += 1
            inboxes.append(f"_INBOX.{self._count}")
            lines.append(line_of(subject, inboxes[-1], headers, data))
        self.send(b"".join(lines))
        found = {msg.subject: msg for msg in self._inbox}
        self._inbox = [msg for msg in self._inbox if msg.subject not in inboxes]
        return [found.get(inbox) for inbox in inboxes]

    def fetch(self, stream: str, consumer: str, batch: int, **more: object) -> tuple[list[Got], list[str]]:
        """What a request that does not wait gets, and its status lines. Afterwards nobody listens for it."""
        self._count += 1
        inbox, body = f"fetch.{self._count}", {"batch": batch, "no_wait": True, **more}
        request = line_of(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", inbox, None, json.dumps(body).encode()
        )
        self.send(f"SUB {inbox} {self._count}\r\n".encode() + request)
        self.send(f"UNSUB {self._count}\r\n".encode())
        msgs = self.take()
        statuses = [
            each.headers.decode().split("\r\n")[0] for each in msgs if not each.reply and each.headers
        ]
        return [delivered(each) for each in msgs if each.reply.startswith("$JS.ACK.")], statuses


class MemoryModel(Model):
    """A server without sockets over a disk in memory."""

    def __init__(
        self,
        disk: Disk,
        clock: StillClock,
        *,
        durability: Any = "sync",
        engine_class: Callable[..., StreamEngine] = StreamEngine,
    ) -> None:
        self.volume = JetStreamVolume(
            ROOT,
            mode="rw",
            create=True,
            durability=durability,
            disk=disk,
            clock=clock,
            block_bytes=BLOCK_BYTES,
            maintenance=False,
        )
        self.exchange = Exchange(1 << 20, 4096, 0, 7)
        self.clock = clock
        self.engine = engine_class(self.exchange, self.volume, clock=clock, now=clock.since_start)
        self.facts = ServerFacts()
        self.service = Service(self.engine, self.facts, lambda conn: {"id": conn})
        self._clients: dict[int, Client] = {}
        account = JsAccount(self.engine, "$G", Stream, limits=AccountLimits(), facts=self.facts)
        self.engine.accounts["$G"] = account
        self.service.add(account)
        account.recover()

    def wire(self) -> Wire:
        return Wire(self, "$G")

    def pass_time(self, ns: int) -> None:
        """Time goes on in one step: the volume's upkeep, then whatever is due."""
        self.clock.now_ns += ns
        for stream in self.account().streams.values():
            stream.store.tick()
        self.run()

    def close(self) -> None:
        self.__exit__(None, None, None)
