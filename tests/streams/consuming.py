"""A server without sockets whose time stands still until a test moves it, and short words for what consumers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.streams.engine import StreamEngine
from tests.support.model import Client, Model, Msg

SECOND = 1_000_000_000
MS = 1_000_000
NEXT = "$JS.API.CONSUMER.MSG.NEXT."


class World:
    """A model over a directory, with one client and a clock."""

    def __init__(self, place: Path, **options: Any) -> None:
        self.place, self.options = place, options
        self.time = 1_800_000_000 * SECOND
        self.model: Model
        self.client: Client
        self.start()

    def start(self) -> None:
        started = self.time - 5 * SECOND

        def engine(*given: Any, **options: Any) -> StreamEngine:
            return StreamEngine(*given, **{**options, "now": lambda: self.time - started})

        with patch("tests.support.model.StreamEngine", engine):
            self.model = Model(self.place, clock=lambda: self.time, **self.options)
        self.client = self.model.client()

    def restart(self) -> None:
        """A clean stop, and the same directory again."""
        self.model.__exit__(None, None, None)
        self.start()

    def pass_time(self, seconds: float) -> list[Msg]:
        """Let time pass in small steps; returns what arrived meanwhile."""
        end = self.time + int(seconds * SECOND)
        while self.time < end:
            self.time = min(self.time + 20 * MS, end)
            self.model.run()
        return self.client.take()

    def listener(self, subject: str = "", queue: str = "") -> Client:
        """Another client, which hears nothing but that subject."""
        client = self.model.client()
        client.unsubscribe_all()
        if subject:
            client.subscribe(subject, queue)
        return client

    # Streams and consumers

    def stream(self, name: str = "S", **config: Any) -> None:
        wanted = {"name": name, "subjects": [f"{name.lower()}.*"], **config}
        answer = self.client.api(f"STREAM.CREATE.{name}", wanted)
        assert "error" not in answer, answer

    def put(self, *subjects: str, data: bytes = b"xx") -> None:
        for subject in subjects:
            assert self.client.request(subject, data) is not None

    def consumer(self, name: str = "c", stream: str = "S", **config: Any) -> dict[str, Any]:
        wanted: dict[str, Any] = {"durable_name": name, "ack_policy": "explicit", **config}
        if not wanted["durable_name"]:
            del wanted["durable_name"]
        body = {"stream_name": stream, "config": {"name": name, **wanted}}
        answer = self.client.api(f"CONSUMER.CREATE.{stream}.{name}", body)
        assert "error" not in answer, answer
        return answer

    def info(self, name: str = "c", stream: str = "S") -> dict[str, Any]:
        return self.client.api(f"CONSUMER.INFO.{stream}.{name}")

    def numbers(self, name: str = "c", stream: str = "S") -> tuple[int, ...]:
        """delivered (consumer, stream), floor (consumer, stream), ack pending, redelivered, pending"""
        info = self.info(name, stream)
        pairs = [
            info[pair][number]
            for pair in ("delivered", "ack_floor")
            for number in ("consumer_seq", "stream_seq")
        ]
        return (*pairs, info["num_ack_pending"], info["num_redelivered"], info["num_pending"])

    # Messages

    def pull(
        self, name: str = "c", stream: str = "S", *, inbox: str = "_INBOX.p", **request: Any
    ) -> list[Msg]:
        """A pull request and everything that arrived at once."""
        body = json.dumps({"batch": 1, **request}).encode()
        return self.ask(body, name, stream, inbox=inbox)

    def ask(self, body: bytes, name: str = "c", stream: str = "S", *, inbox: str = "_INBOX.p") -> list[Msg]:
        self.client.publish(f"{NEXT}{stream}.{name}", body, inbox)
        return self.client.take()

    def fetch(self, count: int, name: str = "c", stream: str = "S") -> list[Msg]:
        """Messages only, without waiting."""
        got = self.pull(name, stream, batch=count, no_wait=True)
        return [msg for msg in got if msg.reply]

    def ack(self, msg: Msg, body: bytes = b"") -> list[Msg]:
        self.client.publish(msg.reply, body)
        return self.client.take()

    def status(self, msgs: list[Msg]) -> list[str]:
        """Status lines with their headers, by `|`."""
        statuses = (msg.headers.decode() for msg in msgs if msg.headers and not msg.reply)
        return [text.removeprefix("NATS/1.0 ").rstrip().replace("\r\n", "|") for text in statuses]


def seqs(msgs: list[Msg]) -> list[int]:
    """The stream sequences of messages, out of their ack subjects."""
    return [int(msg.reply.split(".")[5]) for msg in msgs if msg.reply.startswith("$JS.ACK")]


def ack_numbers(msg: Msg) -> tuple[int, ...]:
    """deliveries, stream sequence, consumer sequence, pending"""
    parts = msg.reply.split(".")
    return int(parts[4]), int(parts[5]), int(parts[6]), int(parts[8])
