"""A real nats-streaming-server, and a small client that speaks its protocol over a plain socket.

    with StreamingServer(tmp_path / "ds") as server, StanClient(server.port, "me") as client:
        client.publish("orders", b"data")
        client.read_all("orders")            # [(sequence, data, redelivered)]

The client is written from the protocol's description (fields by number), for tests only.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.layouts.nats_streaming.protos import split_fields
from headrace.layouts.varint import put_uvarint
from tests.support.peers import PeerFailed, find_peer, free_port

VERSION = "0.25.6"
CLUSTER = "test-cluster"
LIMIT_S = 30.0
FIRST, SEQUENCE = 4, 3


def proto(fields: dict[int, int | bytes | str]) -> bytes:
    out = bytearray()
    for number, value in sorted(fields.items()):
        if not value:
            continue
        if isinstance(value, int):
            put_uvarint(out, number << 3)
            put_uvarint(out, value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            put_uvarint(out, number << 3 | 2)
            put_uvarint(out, len(raw))
            out += raw
    return bytes(out)


class StreamingServer:
    """A server over `store`; extra flags may be given. It is ended by its process id."""

    def __init__(self, store: Path, *flags: str, cwd: Path | None = None) -> None:
        self.store, self.flags, self.cwd = store, flags, cwd
        self.port = free_port()
        self._log_path = store.parent / f"{store.name}.stan.log"
        self._process: subprocess.Popen[bytes] | None = None

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else "(no log)"

    def command(self) -> list[str]:
        program = find_peer("nats-streaming-server", VERSION)
        own = [
            str(program),
            "-a",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-store",
            "file",
            "-dir",
            str(self.store),
        ]
        return [*own, "-cid", CLUSTER, *self.flags]

    def start(self) -> Self:
        self._log_path.write_bytes(b"")
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.cwd,
                start_new_session=True,
            )
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if "Streaming Server is ready" in self.log():
                return self
            time.sleep(0.02)
        self.kill()
        raise PeerFailed(f"nats-streaming-server did not start:\n{self.log()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(how)
            process.wait(LIMIT_S)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"nats-streaming-server's log:\n{self.log()[-3000:]}")
        self.stop()


class StanClient:
    """One client. Calls wait for their answer; deliveries are kept until they are asked for."""

    def __init__(self, port: int, client_id: str) -> None:
        self.id, self.conn_id = client_id, uuid.uuid4().hex[:16].encode()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self._buffer, self._sids = b"", 0
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._messages: list[tuple[str, str | None, bytes]] = []
        self._send(b'CONNECT {"verbose":false,"headers":false}\r\n')
        self._subscribe(f"{self._inbox}.>")
        heartbeat = f"{self._inbox}.hb"
        answer = self.request(
            f"_STAN.discover.{CLUSTER}",
            proto({1: client_id, 2: heartbeat, 3: 1, 4: self.conn_id, 5: 5, 6: 88}),
        )
        if 5 in answer:
            raise PeerFailed(f"connect: {answer[5]!r}")
        text = {number: value.decode() for number, value in answer.items() if isinstance(value, bytes)}
        self._pub, self._sub, self._unsub, self._close, self._sub_close = (
            *(text[1], text[2], text[3], text[4], text[6]),
        )

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _subscribe(self, subject: str) -> None:
        self._sids += 1
        self._send(f"SUB {subject} {self._sids}\r\n".encode())

    def _publish(self, subject: str, reply: str, data: bytes) -> None:
        head = f"PUB {subject} {reply} {len(data)}\r\n" if reply else f"PUB {subject} {len(data)}\r\n"
        self._send(head.encode() + data + b"\r\n")

    def _fill(self, deadline: float) -> bool:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            piece = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        if not piece:
            raise PeerFailed("the server closed the connection")
        self._buffer += piece
        return True

    def _take(self, deadline: float) -> tuple[str, str | None, bytes] | None:
        """The next message, or None when the time is over."""
        while True:
            end = self._buffer.find(b"\r\n")
            line = self._buffer[: end if end >= 0 else 0].decode()
            if end >= 0 and not line.startswith("MSG "):
                self._buffer = self._buffer[end + 2 :]
                if line == "PING":
                    self._send(b"PONG\r\n")
                elif line.startswith("-ERR"):
                    raise PeerFailed(line)
                continue
            if end >= 0:
                parts = line.split(" ")
                size, reply = int(parts[-1]), parts[3] if len(parts) == 5 else None
                if len(self._buffer) >= end + 2 + size + 2:
                    data = self._buffer[end + 2 : end + 2 + size]
                    self._buffer = self._buffer[end + 4 + size :]
                    if parts[1].endswith(".hb"):
                        self._publish(reply or "", "", b"")
                        continue
                    return parts[1], reply, data
            if not self._fill(deadline):
                return None

    def _wait(self, subject: str, seconds: float = LIMIT_S) -> bytes:
        deadline = time.monotonic() + seconds
        while True:
            for at, (found, _, data) in enumerate(self._messages):
                if found == subject:
                    del self._messages[at]
                    return data
            got = self._take(deadline)
            if got is None:
                raise PeerFailed(f"no answer on {subject}")
            self._messages.append(got)

    def request(self, subject: str, data: bytes) -> dict[int, int | bytes]:
        reply = f"{self._inbox}.{uuid.uuid4().hex}"
        self._publish(subject, reply, data)
        return split_fields(self._wait(reply))

    def publish(self, channel: str, data: bytes, reply: str = "") -> None:
        """Publish and wait for the ack; PeerFailed with the server's text when it is refused."""
        self.publish_many(channel, [data], reply)

    def publish_many(self, channel: str, items: Sequence[bytes], reply: str = "") -> None:
        answers: list[str] = []
        for item in items:
            answer = f"{self._inbox}.{uuid.uuid4().hex}"
            message = {1: self.id, 2: uuid.uuid4().hex, 3: channel, 4: reply, 5: item, 6: self.conn_id}
            self._publish(f"{self._pub}.{channel}", answer, proto(message))
            answers.append(answer)
        for answer in answers:
            error = split_fields(self._wait(answer)).get(2)
            if error:
                raise PeerFailed(bytes(error).decode())  # type: ignore[arg-type]

    def subscribe(
        self, channel: str, *, durable: str = "", group: str = "", start: int = FIRST, sequence: int = 0,
        ack_wait: int = 30, in_flight: int = 1024,
    ) -> tuple[str, str]:  # fmt: skip
        """(where deliveries come, where acks go)"""
        inbox = f"{self._inbox}.{uuid.uuid4().hex}"
        answer = self.request(
            self._sub,
            proto(
                {1: self.id, 2: channel, 3: group, 4: inbox, 5: in_flight, 6: ack_wait, 7: durable,
                 10: start, 11: sequence}
            ),
        )  # fmt: skip
        if answer.get(3):
            raise PeerFailed(bytes(answer[3]).decode())  # type: ignore[arg-type]
        return inbox, bytes(answer[2]).decode()  # type: ignore[arg-type]

    def close_subscription(self, channel: str, ack_inbox: str) -> None:
        self.request(self._sub_close, proto({1: self.id, 2: channel, 3: ack_inbox}))

    def deliveries(self, inbox: str, quiet_s: float = 0.5) -> Iterator[tuple[int, bytes, bool]]:
        """(sequence, data, redelivered) until nothing comes for a while."""
        while True:
            try:
                found = split_fields(self._wait(inbox, quiet_s))
            except PeerFailed:
                return
            yield int(found.get(1, 0)), bytes(found.get(4, b"")), bool(found.get(6))  # type: ignore[arg-type]

    def ack(self, ack_inbox: str, channel: str, sequence: int) -> None:
        self._publish(ack_inbox, "", proto({1: channel, 2: sequence}))

    def read_all(self, channel: str, sequence: int = 0) -> list[tuple[int, bytes]]:
        """Every message from the first (or a sequence) on, acknowledged."""
        inbox, acks = self.subscribe(channel, start=SEQUENCE if sequence else FIRST, sequence=sequence)
        found: list[tuple[int, bytes]] = []
        for seq, data, _ in self.deliveries(inbox):
            self.ack(acks, channel, seq)
            found.append((seq, data))
        return found

    def close(self) -> None:
        self.request(self._close, proto({1: self.id}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(PeerFailed, OSError):
            self.close()
        self._socket.close()
