"""TLS on the wire: what may come before what, beside nats-server; and many connections while the machine is busy."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from headrace.testing.server import TestServer
from tests.server.certificates import Certificates, make_certificates
from tests.support.natscli import Cli
from tests.support.peers import NatsServer, free_port

CONNECTIONS, AT_ONCE, OF_THE_COMMAND = 500, 20, 50
CONNECT = b'CONNECT {"verbose":false,"user":"a","pass":"b"}\r\nPING\r\n'
USERS = "authorization { users = [ {user: a, password: b} ] }\n"
LIMIT_S = 20

Server = TestServer | NatsServer
Started = Callable[[str], Server]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture(params=["headrace", "nats-server"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """Starts the one server or the other with that configuration."""
    running: list[Server] = []

    def start(config: str) -> Server:
        if request.param == "headrace":
            running.append(TestServer(tmp_path / "ours", config=config, jetstream=False))
        else:
            running.append(NatsServer("2.15.2", tmp_path / "theirs", config=config))
        return running[-1].start()

    yield start
    for server in running:
        server.stop()


def tls(certs: Certificates, more: str = "") -> str:
    return f'tls {{ cert_file: "{certs.server_cert}", key_file: "{certs.server_key}", {more} }}\n'


class Speaker:
    """TLS by hand, so that a test decides which bytes go when."""

    def __init__(self, port: int, certs: Certificates) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=certs.ca)
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._pending = b""

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send_hello(self) -> None:
        """The first record of the handshake."""
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._sock.sendall(self._out.read())

    def read_info(self) -> dict[str, Any]:
        """INFO in clear, and nothing behind it."""
        while b"\r\n" not in self._pending:
            data = self._sock.recv(1 << 16)
            assert data, f"the server closed the connection after {self._pending!r}"
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\r\n")
        assert line.startswith(b"INFO {"), line
        return json.loads(line[5:])

    def converse(self) -> bytes:
        """The rest of the handshake, CONNECT and PING; everything up to PONG."""
        self._in.write(self._pending)
        self._until(self._tls.do_handshake)
        self._tls.write(CONNECT)
        found = b""
        while not found.endswith(b"PONG\r\n"):
            found += self._until(lambda: self._tls.read(1 << 16))
        return found

    def _until(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                result = None
            if waiting := self._out.read():
                self._sock.sendall(waiting)
            if result is not None or (self._tls.version() and step == self._tls.do_handshake):
                return result
            data = self._sock.recv(1 << 16)
            assert data, "the server closed the connection"
            self._in.write(data)


def test_a_handshake_that_begins_before_info(started: Started, certs: Certificates) -> None:
    server = started(tls(certs) + USERS)
    for _ in range(10):
        os.kill(server.pid, signal.SIGSTOP)  # so that the bytes are there before the server accepts
        with Speaker(server.port, certs) as client:
            client.send_hello()
            os.kill(server.pid, signal.SIGCONT)
            info = client.read_info()
            assert info["tls_required"] and info["auth_required"]
            assert client.converse() == b"PONG\r\n"


def test_with_and_without_tls_on_one_port(started: Started, certs: Certificates) -> None:
    server = started(tls(certs) + USERS + "allow_non_tls: true\n")
    with Speaker(server.port, certs) as client:
        assert client.read_info()["tls_available"]
        client.send_hello()
        assert client.converse() == b"PONG\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as plain:
        plain.sendall(CONNECT)
        found = b""
        while not found.endswith(b"PONG\r\n"):
            found += plain.recv(1 << 16)


def test_handshake_first_with_a_delay(started: Started, certs: Certificates) -> None:
    """Who begins TLS at once gets INFO inside of it; who waits gets it in clear after that time, and TLS then."""
    server = started(tls(certs, "handshake_first: 300ms") + USERS)
    with Speaker(server.port, certs) as client:
        client.send_hello()
        said = client.converse()
        assert said.startswith(b"INFO {") and said.endswith(b"PONG\r\n")
    with Speaker(server.port, certs) as client:
        began = time.monotonic()
        assert client.read_info()["tls_required"]
        assert time.monotonic() - began > 0.25
        client.send_hello()
        assert client.converse() == b"PONG\r\n"


def test_handshakes_that_fail_are_logged(started: Started, certs: Certificates) -> None:
    """A client that gives up is an error; a probe, by silence or by bytes that are no TLS, is for `-D`."""
    server = started(tls(certs, "timeout: 0.5") + "debug: true\n")

    def logged() -> list[str]:
        return re.findall(r"\[(\w{3})\] [\d.:]+ - cid:\d+ - TLS handshake error: ", server.log(200))

    def wait_for(count: int) -> list[str]:
        deadline = time.monotonic() + LIMIT_S
        while len(logged()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return logged()

    before = len(wait_for(1))  # whoever started the server looked at its port and left
    for last, act in (
        ("DBG", lambda sock: sock.sendall(b"CONNECT {}\r\n")),
        ("DBG", lambda sock: None),
        ("ERR", lambda sock: sock.shutdown(socket.SHUT_WR)),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as sock:
            sock.recv(1 << 16)
            act(sock)
            before += 1
            assert wait_for(before)[-1] == last


@pytest.mark.parametrize("product", ["headrace", "nats-server"])
def test_every_address(tmp_path: Path, product: str) -> None:
    """0.0.0.0 means IPv6 too, and clients of either kind are shown by their own address."""
    port, http = free_port(), free_port()
    config = f'listen: "0.0.0.0:{port}"\nhttp: "0.0.0.0:{http}"\n'
    server = (
        TestServer(tmp_path / "ours", ["-a", "0.0.0.0"], jetstream=False, config=config)
        if product == "headrace"
        else NatsServer("2.15.2", tmp_path / "theirs", config=config)
    )
    server.port = port
    with server:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=LIMIT_S) as sock:
                line = sock.recv(1 << 16)
                assert json.loads(line[5:])["client_ip"] == host
            with socket.create_connection((host, http), timeout=LIMIT_S) as sock:
                sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert b"200 OK" in sock.recv(1 << 16)


# Many, on a busy machine


@contextmanager
def busy_machine() -> Iterator[None]:
    """Something else wants every core."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


async def connect_many(url: str, count: int, **options: Any) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with turns:
            client = await nats.connect(
                url, allow_reconnect=False, connect_timeout=LIMIT_S, user="a", password="b", **options
            )
            await client.flush(LIMIT_S)
            await client.close()

    results = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    assert [each for each in results if each is not None] == []


@pytest.mark.parametrize("kind", ["plain", "tls", "handshake first", "websocket"])
def test_many_connections_on_a_busy_machine(tmp_path: Path, certs: Certificates, kind: str) -> None:
    ws_port = free_port()
    config, options = USERS, []
    if kind == "websocket":
        config += f'websocket {{ listen: "127.0.0.1:{ws_port}", {tls(certs)} }}\n'
        options = ["--tlsca", certs.ca]
    elif kind != "plain":
        config += tls(certs, "handshake_first: true" if kind == "handshake first" else "")
        options = ["--tlsca", certs.ca, *(["--tlsfirst"] if kind == "handshake first" else [])]
    with TestServer(tmp_path / "store", jetstream=False, config=config) as server, busy_machine():
        scheme, port = {"websocket": ("wss", ws_port), "plain": ("nats", server.port)}.get(
            kind, ("tls", server.port)
        )
        cli = Cli(f"{scheme}://a:b@localhost:{port}", tmp_path, *options)
        command = ("pub", "x", "y", "--timeout", "20s")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: cli(*command), range(OF_THE_COMMAND)))
        together = CONNECTIONS - OF_THE_COMMAND if kind == "websocket" else 100
        cli("bench", "pub", "x", "--clients", f"{together}", "--msgs", f"{together}", "--no-progress")
        if kind != "websocket":
            context = ssl.create_default_context(cafile=certs.ca)
            secure = {"tls": context, "tls_handshake_first": kind == "handshake first"}
            left = CONNECTIONS - OF_THE_COMMAND - together
            asyncio.run(
                connect_many(f"{scheme}://localhost:{port}", left, **({} if kind == "plain" else secure))
            )
        failed = re.findall(
            r"cid:(\d+) - TLS handshake error|(websocket: TLS handshake error)", server.log(10_000)
        )
        assert failed in ([], [("1", "")]), "the first one is whoever waited for the port"
