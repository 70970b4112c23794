"""Traced messages: the report that goes to `Nats-Trace-Dest`, as nats-server 2.15.2 sends it from a single server.

The exchange finds out who gets a message (or would, with `Nats-Trace-Only`) and calls here; a report has an event for its
arrival, one for the stream that stores it, and one for each client that it goes to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.server.nats.server import NatsServer

CLIENT_KIND = 0


class Tracing:
    """Reports of one server. `server_info` is how it introduces itself."""

    def __init__(self, server: NatsServer, server_info: Callable[[], dict[str, Any]]) -> None:
        self._server, self._server_info = server, server_info
        server.exchange.set_tracer(server.engine.register_call(self._on_traced))

    def _on_traced(
        self,
        conn: int | None,
        subject: str,
        dest: bytes | None,
        headers: bytes | None,
        data: bytes,
        account: int,
    ) -> None:
        client = self._server.clients.get(conn) if conn is not None else None
        if client is None or dest is None:
            return
        size, *receivers = data.decode(errors="replace").splitlines()
        now, where = format_time_ns(time.time_ns()), client.account or "$G"
        arrived = {"type": "in", "ts": now, "kind": CLIENT_KIND, "cid": client.cid}
        arrived |= {"name": client.name} if client.name else {}
        arrived |= {"acc": where, "subj": subject}
        document = {
            "server": self._server_info(),
            "request": {"header": _header_lists(headers or b""), "msgsize": int(size)},
            "events": [arrived, *self._events(receivers, subject, now)],
        }
        self._server.exchange.publish(account, dest, None, None, msgspec.json.encode(document))

    def _events(self, receivers: list[str], subject: str, now: str) -> Iterator[dict[str, Any]]:
        for _, number, *_ in (line.split(" ") for line in receivers if line.startswith("stream ")):
            stream = self._server.engine.streams.get(int(number))
            if stream is not None:
                event = {"type": "js", "ts": now, "stream": stream.name, "subject": subject}
                yield event | ({"nointerest": True} if stream.nobody_interested else {})
        for line in receivers:
            kind, number, *rest = line.split(" ")
            client = self._server.clients.get(int(number)) if kind == "client" else None
            if client is not None:
                event: dict[str, Any] = {"type": "eg", "ts": now, "kind": CLIENT_KIND, "cid": client.cid}
                event |= {"name": client.name} if client.name else {}
                event |= {"sub": rest[0]}
                yield event | ({"queue": rest[1]} if len(rest) > 1 else {})


def _header_lists(headers: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in headers.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, []).append(value.strip())
    return found
