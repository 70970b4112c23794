"""A real server's JetStream API for tests, without `async` in them: one call, one answer.

with Api(server.url) as api:
    api.create(config); api.publish("s.1", b"data"); api.messages("S")
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import nats
from nats.aio.client import Client

from headrace.config.meta_json import Era, encode_config
from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.layouts.base import ConsumerState
from headrace.units import parse_time_ns
from tests.support.peers import NatsServer

ANSWER_S = 10.0
AT_ONCE = 200
T = TypeVar("T")
# What a server says while it opens a directory that it does not like.
_COMPLAINT = re.compile(r"\[(WRN|ERR|FTL)\].*")
# Said of every directory, or of the machine.
_USUAL = re.compile(r"Filesystem|file descriptors|open files|TLS|password|System memory|account")


class Refused(Exception):
    """The server answered with an error; `code` is the stable number."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.code = error.get("err_code", 0)
        super().__init__(str(error))


@dataclass(frozen=True)
class Message:
    """A message as the API gives it."""

    seq: int
    subject: str
    headers: bytes | None
    data: bytes
    time_ns: int


class Api:
    """A connection to one server."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.client: Client = self.run(nats.connect(url, allow_reconnect=False))

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(self.client.close())
        self._runner.close()

    # Asking

    async def _ask(self, subject: str, body: bytes) -> dict[str, Any]:
        answer = json.loads((await self.client.request(f"$JS.API.{subject}", body, timeout=ANSWER_S)).data)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        """One API call below `$JS.API.`; Refused if the answer is an error."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.run(self._ask(subject, data))

    # Streams

    def create(self, config: StreamConfig, era: Era = "2.15") -> dict[str, Any]:
        return self.ask(f"STREAM.CREATE.{config.name}", _for_api(encode_config(config, era)))

    def update(self, config: StreamConfig, era: Era = "2.15") -> dict[str, Any]:
        return self.ask(f"STREAM.UPDATE.{config.name}", _for_api(encode_config(config, era)))

    def names(self) -> list[str]:
        return self.ask("STREAM.NAMES")["streams"] or []

    def state(self, stream: str, subjects_filter: str = "") -> dict[str, Any]:
        body: dict[str, Any] = {"deleted_details": True}
        if subjects_filter:
            body["subjects_filter"] = subjects_filter
        return self.ask(f"STREAM.INFO.{stream}", body)["state"]

    def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        """One message; returns its sequence."""
        return self.publish_many([(subject, data, headers)])[0]

    def publish_many(self, batch: Iterable[tuple[str, bytes, dict[str, str] | None]]) -> list[int]:
        """Messages in order; returns their sequences."""

        async def send() -> list[int]:
            seqs: list[int] = []
            for subject, data, headers in batch:
                answer = await self.client.request(subject, data, timeout=ANSWER_S, headers=headers)
                ack = json.loads(answer.data)
                if "error" in ack:
                    raise Refused(ack["error"])
                seqs.append(ack["seq"])
            return seqs

        return self.run(send())

    def get(self, stream: str, body: dict[str, Any]) -> Message:
        return _message(self.ask(f"STREAM.MSG.GET.{stream}", body)["message"])

    def get_many(self, stream: str, seqs: Sequence[int]) -> dict[int, Message | None]:
        """Each of the sequences by MSG.GET; None for one that is not there."""

        async def one(seq: int) -> tuple[int, Message | None]:
            try:
                answer = await self._ask(f"STREAM.MSG.GET.{stream}", b'{"seq":%d}' % seq)
            except Refused as refused:
                assert refused.code == 10037, refused
                return seq, None
            return seq, _message(answer["message"])

        async def all_of_them() -> dict[int, Message | None]:
            found: dict[int, Message | None] = {}
            for at in range(0, len(seqs), AT_ONCE):
                found.update(await asyncio.gather(*(one(seq) for seq in seqs[at : at + AT_ONCE])))
            return found

        return self.run(all_of_them())

    def messages(self, stream: str) -> dict[int, Message]:
        """Every message from first to last, asked for one by one."""
        state = self.state(stream)
        wanted = range(max(state["first_seq"], 1), state["last_seq"] + 1)
        return {seq: found for seq, found in self.get_many(stream, wanted).items() if found is not None}

    def remove(self, stream: str, seq: int, erase: bool = False) -> None:
        self.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": not erase})

    def purge(self, stream: str, **options: Any) -> int:
        return self.ask(f"STREAM.PURGE.{stream}", options)["purged"]

    # Consumers

    def consumer(self, stream: str, config: ConsumerConfig, era: Era = "2.15") -> dict[str, Any]:
        body = b'{"stream_name":"%s","config":%s}' % (stream.encode(), _for_api(encode_config(config, era)))
        return self.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{config.durable_name}", body)

    def consumer_position(self, stream: str, consumer: str) -> tuple[int, ...]:
        """Delivered and ack floor (consumer, stream), then how many are pending and redelivered."""
        info = self.ask(f"CONSUMER.INFO.{stream}.{consumer}")
        pairs = (info["delivered"], info["ack_floor"])
        numbers = [pair[key] for pair in pairs for key in ("consumer_seq", "stream_seq")]
        return (*numbers, info["num_ack_pending"], info["num_redelivered"])

    def pull(self, stream: str, consumer: str, count: int) -> list[tuple[int, str]]:
        """Take messages; returns (stream sequence, subject that acknowledges it) of each."""

        async def take() -> list[tuple[int, str]]:
            inbox = self.client.new_inbox()
            replies = await self.client.subscribe(inbox)
            await self.client.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", b"%d" % count, reply=inbox
            )
            taken: list[tuple[int, str]] = []
            while len(taken) < count:
                message = await replies.next_msg(timeout=ANSWER_S)
                taken.append((int(message.reply.split(".")[5]), message.reply))
            await replies.unsubscribe()
            return taken

        return self.run(take())

    def ack(self, ack_subject: str, how: bytes = b"+ACK") -> None:
        """Acknowledge and wait until the server has taken it."""
        self.run(self.client.request(ack_subject, how, timeout=ANSWER_S))

    # Snapshots

    def snapshot(self, stream: str) -> tuple[dict[str, Any], bytes]:
        """(the answer with config and state, all bytes of the snapshot)"""

        async def take() -> tuple[dict[str, Any], bytes]:
            inbox = self.client.new_inbox()
            chunks = await self.client.subscribe(inbox)
            await self.client.flush()
            body = json.dumps({"deliver_subject": inbox}).encode()
            answer, data = await self._ask(f"STREAM.SNAPSHOT.{stream}", body), b""
            while chunk := (await chunks.next_msg(timeout=ANSWER_S)):
                if not chunk.data:
                    break
                data += chunk.data
                if chunk.reply:
                    await self.client.publish(chunk.reply, b"")
            return answer, data

        return self.run(take())

    def restore(self, config: bytes, state: bytes, chunks: Iterable[bytes]) -> dict[str, Any]:
        """Give a snapshot to the server; returns its answer, a stream info."""

        async def give() -> dict[str, Any]:
            name = json.loads(config)["name"]
            request = b'{"config":%s,"state":%s}' % (config, state)
            target = (await self._ask(f"STREAM.RESTORE.{name}", request))["deliver_subject"]
            data = b"".join(chunks)
            for at in range(0, len(data), 64 << 10):
                answer = await self.client.request(target, data[at : at + (64 << 10)], timeout=ANSWER_S)
                assert answer.data == b"", answer.data
            restored = json.loads((await self.client.request(target, b"", timeout=ANSWER_S)).data)
            if "error" in restored:
                raise Refused(restored["error"])
            return restored

        return self.run(give())


def position_of(state: ConsumerState) -> tuple[int, ...]:
    """The same six numbers as `Api.consumer_position`, of a state of ours."""
    pairs = (state.delivered, state.ack_floor)
    numbers = [number for pair in pairs for number in (pair.consumer, pair.stream)]
    return (*numbers, len(state.pending), len(state.redelivered))


def complaints(server: NatsServer) -> list[str]:
    """Warnings and errors of the server's log that are about what it found in its directory."""
    found = (match[0] for match in map(_COMPLAINT.search, server.log(2000).splitlines()) if match)
    return [line for line in found if not _USUAL.search(line)]


def _for_api(config: bytes) -> bytes:
    """A configuration without what the server adds by itself."""
    document = json.loads(config)
    metadata = {
        key: text for key, text in document.get("metadata", {}).items() if not key.startswith("_nats.")
    }
    document.pop("metadata", None)
    return json.dumps({**document, "metadata": metadata} if metadata else document).encode()


def _message(answer: dict[str, Any]) -> Message:
    headers = base64.b64decode(answer["hdrs"]) if "hdrs" in answer else None
    data = base64.b64decode(answer.get("data", ""))
    return Message(answer["seq"], answer["subject"], headers, data, parse_time_ns(answer["time"]))
