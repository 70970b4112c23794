"""A real RabbitMQ for tests, and as much of an AMQP client as they need.

    with RabbitServer(tmp_path / "node") as server:
        client = server.client()
        client.declare("q1"); client.publish("q1", [b"a", b"b"]); client.get_all("q1")
        server.stop()                # or server.kill(): kill -9
        server.data_dir              # what Headrace opens

Node, epmd and all ports are the test's own, on the loopback interface; both are ended by their PID.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.peers import PeerFailed, find_peer, free_port

VERSION = "3.10.8"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
PERSISTENT = b"\x10\x00\x02"


class RabbitServer:
    """One node with its own data directory."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder, self.port = folder, 0
        self._program = find_peer("rabbitmq-server", VERSION)
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def data_dir(self) -> Path:
        """The node's data directory."""
        return self.folder / "mnesia" / "headrace@localhost"

    def log(self) -> str:
        """The tail of the node's output."""
        try:
            return "\n".join((self.folder / "out.log").read_text(errors="replace").splitlines()[-40:])
        except FileNotFoundError:
            return "(no log)"

    def start(self) -> Self:
        """Start and wait until AMQP is served."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, dist_port, epmd_port = free_port(), free_port(), free_port()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "advanced.config").write_text(f"[{{rabbit, [{self._config}]}}].\n")
        root = self._program.parent / "root" / "usr" / "lib" / "erlang"
        env = {
            **os.environ,
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_NODENAME": "headrace@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "no-such-config"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
        }
        with (self.folder / "out.log").open("ab") as log:
            self._epmd = subprocess.Popen(
                [next(root.glob("erts-*/bin/epmd")), "-address", "127.0.0.1", "-port", str(epmd_port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
            )  # fmt: skip
            self._process = subprocess.Popen(
                [self._program], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                Client(self.port).close()
            except (OSError, PeerFailed):
                time.sleep(0.1)
                continue
            self._pid = int((self.folder / "pid").read_text())
            return self
        self.kill()
        raise PeerFailed(f"rabbitmq-server did not serve AMQP within {START_LIMIT_S:.0f} s:\n{self.log()}")

    def client(self) -> Client:
        return Client(self.port)

    def stop(self) -> None:
        """A clean stop."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            pid, self._pid = self._pid or process.pid, 0
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                pass
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.kill(pid, signal.SIGKILL)
                process.kill()
                process.wait()
                raise PeerFailed(f"rabbitmq-server did not stop:\n{self.log()}") from None
            finally:
                self._end_epmd()
        else:
            self._end_epmd()

    def _end_epmd(self) -> None:
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.kill()
            epmd.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"rabbitmq-server, tail of its output:\n{self.log()}")
        self.stop()


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def string_table(fields: dict[str, str | int]) -> bytes:
    """Arguments of a queue, encoded."""
    made = b""
    for name, value in fields.items():
        text = value.encode() if isinstance(value, str) else b""
        typed = (
            b"I" + struct.pack(">i", value) if isinstance(value, int) else b"S" + struct.pack(">I", len(text))
        )
        made += _short(name) + typed + text
    return made


class Client:
    """Synchronous AMQP 0-9-1 over one channel, publisher confirms on."""

    def __init__(self, port: int, vhost: str = "/") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._buffer = b""
        self._published = self._confirmed = 0
        self._acked: set[int] = set()
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(10, 10)
        plain = b"\0guest\0guest"
        self._send(
            0,
            10,
            11,
            struct.pack(">I", 0) + _short("PLAIN") + struct.pack(">I", len(plain)) + plain + _short("en_US"),
        )
        self._expect(10, 30)
        self._send(0, 10, 31, struct.pack(">HIH", 2047, 131072, 0))
        self._send(0, 10, 40, _short(vhost) + b"\0\0")
        self._expect(10, 41)
        self._send(1, 20, 10, b"\0")
        self._expect(20, 11)
        self._send(1, 85, 10, b"\0")
        self._expect(85, 11)

    def _frame(self, kind: int, channel: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"

    def _send(self, channel: int, class_id: int, method: int, arguments: bytes) -> None:
        self._socket.sendall(self._frame(1, channel, struct.pack(">HH", class_id, method) + arguments))

    def _next(self) -> tuple[int, bytes]:
        while True:
            if len(self._buffer) >= 7:
                kind, _, size = struct.unpack(">BHI", self._buffer[:7])
                if len(self._buffer) >= size + 8:
                    payload, self._buffer = self._buffer[7 : 7 + size], self._buffer[8 + size :]
                    return kind, payload
            got = self._socket.recv(1 << 20)
            if not got:
                raise PeerFailed("the broker closed the connection")
            self._buffer += got

    def _expect(self, *wanted: int) -> tuple[int, bytes]:
        """The next method, which must be of one of the (class, method) pairs."""
        pairs = list(zip(wanted[::2], wanted[1::2], strict=True))
        while True:
            kind, payload = self._next()
            if kind != 1:
                continue
            seen = struct.unpack(">HH", payload[:4])
            if seen in pairs:
                return seen[1], payload[4:]
            if seen != (60, 80):
                raise PeerFailed(f"the broker answered {seen}: {payload[4:200]!r}")

    def declare(self, queue: str, arguments: bytes = b"") -> None:
        """A durable queue; `arguments` is an encoded table."""
        self._send(
            1, 50, 10, b"\0\0" + _short(queue) + b"\x02" + struct.pack(">I", len(arguments)) + arguments
        )
        self._expect(50, 11)

    def publish(self, queue: str, bodies: list[bytes], properties: bytes = PERSISTENT) -> None:
        """Through the default exchange; returns when all are confirmed."""
        for body in bodies:
            frames = self._frame(
                1, 1, struct.pack(">HH", 60, 40) + b"\0\0" + _short("") + _short(queue) + b"\0"
            )
            frames += self._frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
            for start in range(0, len(body), 131064):
                frames += self._frame(3, 1, body[start : start + 131064])
            self._socket.sendall(frames)
        self._published += len(bodies)
        while self._confirmed < self._published:
            kind, payload = self._next()
            if kind != 1 or struct.unpack(">HH", payload[:4]) != (60, 80):
                raise PeerFailed(f"waiting for confirms, the broker sent {payload[:80]!r}")
            tag, multiple = struct.unpack(">QB", payload[4:])
            self._acked |= set(range(self._confirmed + 1, tag + 1)) if multiple else {tag}
            while self._confirmed + 1 in self._acked:
                self._confirmed += 1
                self._acked.discard(self._confirmed)

    def get(self, queue: str, ack: bool = False) -> tuple[bytes, bytes, bool] | None:
        """(body, property block, redelivered) of the next message; it stays unacked unless `ack`."""
        self._send(1, 60, 70, b"\0\0" + _short(queue) + b"\0")
        method, arguments = self._expect(60, 71, 60, 72)
        if method == 72:
            return None
        tag, redelivered = struct.unpack(">QB", arguments[:9])
        _, header = self._next()
        size = struct.unpack(">Q", header[4:12])[0]
        body = b""
        while len(body) < size:
            body += self._next()[1]
        if ack:
            self._send(1, 60, 80, struct.pack(">QB", tag, 0))
        return body, header[12:], bool(redelivered)

    def get_all(self, queue: str, ack: bool = False) -> list[bytes]:
        """The bodies of all messages in order."""
        found: list[bytes] = []
        while (message := self.get(queue, ack)) is not None:
            found.append(message[0])
        return found

    def close(self) -> None:
        self._send(0, 10, 50, struct.pack(">H", 200) + _short("bye") + b"\0\0\0\0")
        try:
            self._expect(10, 51)
        finally:
            self._socket.close()
