"""A plain protocol client for tests that compare bytes: what a server sent is what is returned."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from tests.support.model import CONNECT, Msg

ANSWER_S = 5.0


class RawClient:
    """A connection to a server on the loopback interface."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._pending = b""
        self._line()
        self._count = 0
        self.timeout_s = ANSWER_S
        self._socket.sendall(CONNECT)
        self.subscribe("_INBOX.>")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def subscribe(self, subject: str) -> None:
        self._count += 1
        self._socket.sendall(f"SUB {subject} {self._count}\r\nPING\r\n".encode())
        while self._line() != b"PONG":
            pass

    def publish(self, subject: str, data: bytes = b"", reply: str = "", headers: bytes | None = None) -> None:
        if headers is None:
            line = f"PUB {subject} {reply} {len(data)}\r\n".encode()
        else:
            line = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(data)}\r\n".encode() + headers
        self._socket.sendall(line + data + b"\r\n")

    def request_many(self, subject: str, data: bytes = b"", headers: bytes | None = None) -> list[Msg]:
        self._count += 1
        inbox = f"_INBOX.{self._count}"
        self.publish(subject, data, inbox, headers)
        # Direct gets of many messages end with a status; everything else has one answer.
        many = ".DIRECT.GET." in subject and (b'"batch"' in data or b'"multi_last"' in data)
        found: list[Msg] = []
        while (msg := self.next(self.timeout_s)) is not None:
            if msg.subject == inbox:
                found.append(msg)
                if not many or (msg.headers or b"").startswith(b"NATS/1.0 "):
                    break
        return found

    def next(self, wait_s: float) -> Msg | None:
        """The next message, if one comes in that time."""
        while True:
            line = self._line(wait_s)
            if line is None:
                return None
            if line == b"PING":
                self._socket.sendall(b"PONG\r\n")
            words = line.decode().split(" ")
            if words[0] not in ("MSG", "HMSG"):
                continue
            with_headers = words[0] == "HMSG"
            size, block = int(words[-1]), int(words[-2]) if with_headers else 0
            body = self._exactly(size + 2)
            reply = words[3] if len(words) == (6 if with_headers else 5) else ""
            return Msg(words[1], reply, body[:block] if with_headers else None, body[block:-2])

    def _line(self, wait_s: float = ANSWER_S) -> bytes | None:
        while b"\r\n" not in self._pending:
            if not self._more(wait_s):
                return None
        line, _, self._pending = self._pending.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._pending) < size:
            assert self._more(ANSWER_S), "a message stopped half way"
        data, self._pending = self._pending[:size], self._pending[size:]
        return data

    def _more(self, wait_s: float) -> bool:
        self._socket.settimeout(wait_s)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        assert data, "the server closed the connection"
        self._pending += data
        return True
