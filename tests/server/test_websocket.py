"""Clients over WebSocket: the same script against Headrace and nats-server, and what a listener must not allow."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from headrace.testing.server import TestServer
from tests.server.certificates import make_certificates
from tests.support.natscli import Cli
from tests.support.peers import NatsServer, free_port

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
Started = Callable[[str], int]


@pytest.fixture(params=["headrace", "nats-server"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """Starts the one server or the other with a `websocket` section; gives its port."""
    running: list[TestServer | NatsServer] = []

    def start(section: str = "no_tls: true", more: str = "") -> int:
        port = free_port()
        config = f'websocket {{ listen: "127.0.0.1:{port}", {section} }}\n{more}\n'
        if request.param == "headrace":
            running.append(TestServer(tmp_path / "ours", config=config, jetstream=False).start())
        else:
            running.append(NatsServer("2.15.2", tmp_path / "theirs", config=config).start())
        return port

    yield start
    for server in running:
        server.stop()


@contextmanager
def opened(port: int, **options: object) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, **options) as client:  # pyright: ignore
        yield client


def read(client: ClientConnection, ending: bytes) -> bytes:
    """Frames until their bytes end like that."""
    found = b""
    while not found.endswith(ending):
        frame = client.recv(timeout=5)
        assert isinstance(frame, bytes), "frames are binary"
        found += frame
    return found


def test_the_protocol_in_frames(started: Started) -> None:
    port = started()
    with opened(port) as client:
        info = client.recv(timeout=5)
        assert isinstance(info, bytes) and info.startswith(b"INFO {") and info.endswith(b" \r\n")
        assert not {"tls_required", "auth_required"} & json.loads(info[5:]).keys()
        # Where frames begin means nothing; a message in parts is one message; text is taken like binary.
        for byte in CONNECT:
            client.send(bytes([byte]))
        client.send([b"SUB a.>", b" 1\r\nPU", b"B a.b 5\r\nhe"])
        client.send("llo\r\nPING\r\n", text=True)
        assert read(client, b"PONG\r\n") == b"MSG a.b 1 5\r\nhello\r\nPONG\r\n"
        assert client.ping(b"are you there").wait(5), "a ping is answered"
        big = bytes(range(256)) * 4096
        client.send(b"PUB a.big %d\r\n%b\r\n" % (len(big), big))
        assert read(client, big + b"\r\n").startswith(b"MSG a.big 1 1048576\r\n")


def test_who_may_not_connect(started: Started) -> None:
    port = started(more="authorization { token: secret, timeout: 0.5 }")
    with opened(port) as client:
        assert b'"auth_required":true' in read(client, b" \r\n")
        client.send(b'CONNECT {"auth_token":"guess"}\r\n')
        assert read(client, b"\r\n") == b"-ERR 'Authorization Violation'\r\n"
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=5)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.POLICY_VIOLATION
    with opened(port) as client:
        assert read(client, b" \r\n") and read(client, b"\r\n") == b"-ERR 'Authentication Timeout'\r\n"
    with opened(port) as client:
        client.send(CONNECT.replace(b"}", b',"auth_token":"secret"}') + b"PING\r\n")
        assert read(client, b"PONG\r\n")


def test_pages_of_other_origins_are_refused(started: Started) -> None:
    port = started('no_tls: true, same_origin: true, allowed_origins: ["http://127.0.0.1:1"]')
    with opened(port):  # no browser, no origin
        pass
    with pytest.raises(InvalidStatus, match="403"), opened(port, origin=Origin("http://evil.example")):
        pass
    with pytest.raises(InvalidStatus, match="403"), opened(port, origin=Origin(f"http://127.0.0.1:{port}")):
        pass  # the same origin, but not on the list


def test_allowed_origins(started: Started) -> None:
    port = started('no_tls: true, allowed_origins: ["http://app.example", "https://app.example:8443"]')
    for allowed in ("http://app.example", "http://app.example:80", "https://app.example:8443"):
        with opened(port, origin=Origin(allowed)) as client:
            assert read(client, b" \r\n")
    for refused in ("https://app.example", "http://app.example:81", "http://other.example", "null"):
        with pytest.raises(InvalidStatus, match="403"), opened(port, origin=Origin(refused)):
            pass


def test_same_origin(started: Started) -> None:
    port = started("no_tls: true, same_origin: true")
    with opened(port, origin=Origin(f"http://127.0.0.1:{port}")) as client:
        assert read(client, b" \r\n")
    with pytest.raises(InvalidStatus, match="403"), opened(port, origin=Origin("http://127.0.0.1")):
        pass


def test_a_request_that_is_none(started: Started) -> None:
    port = started("no_tls: true, handshake_timeout: 300ms")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert plain.recv(1000).startswith(b"HTTP/1.1 4")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as silent:
        began = time.monotonic()
        silent.sendall(b"GET / HTTP/1.1\r\nHost:")
        while silent.recv(1000):
            pass
        assert 0.1 < time.monotonic() - began < 3


def test_frames_have_a_limit_and_the_end_a_reason(tmp_path: Path) -> None:
    """nats-server reads a frame piece by piece; here a frame is read whole, so it must not be endless."""
    port = free_port()
    config = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}'
    with TestServer(tmp_path / "ours", config=config, jetstream=False):
        for connected, size in ((False, 1 << 20), (True, 1 << 30)):
            with opened(port) as client:
                read(client, b" \r\n")
                if connected:
                    client.send(CONNECT + b"PING\r\n")
                    read(client, b"PONG\r\n")
                client.socket.sendall(b"\x82\xff" + size.to_bytes(8, "big") + b"mask")
                with pytest.raises(ConnectionClosed) as closed:
                    client.recv(timeout=5)
                assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG
        with opened(port) as client:
            read(client, b" \r\n")
            client.send(b"XYZ\r\n")
            assert read(client, b"\r\n") == b"-ERR 'Unknown Protocol Operation'\r\n"
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(timeout=5)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.PROTOCOL_ERROR
        with opened(port) as client:
            read(client, b" \r\n")
            client.socket.sendall(b"\x82\x05hello")  # not masked
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(timeout=5)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.PROTOCOL_ERROR


def test_the_nats_command_over_tls(tmp_path: Path) -> None:
    """A whole client of another language: requests and streams, the way in encrypted."""
    certs, port = make_certificates(tmp_path / "certs"), free_port()
    tls = f'tls {{ cert_file: "{certs.server_cert}", key_file: "{certs.server_key}" }}'
    config = f'websocket {{ listen: "127.0.0.1:{port}", {tls} }}'
    with TestServer(tmp_path / "ours", config=config) as server:
        context = ssl.create_default_context(cafile=certs.ca)
        with connect(f"wss://127.0.0.1:{port}", ssl=context) as client:
            assert b'"tls_required"' not in read(client, b" \r\n")
        cli = Cli(f"wss://127.0.0.1:{port}", tmp_path, "--tlsca", certs.ca)
        responder = subprocess.Popen(cli.command("reply", "ask", "gladly", "--count", "1"))
        try:
            deadline = time.monotonic() + 10
            while "gladly" not in (said := cli("request", "ask", "please", code=None)):
                assert time.monotonic() < deadline, said
        finally:
            responder.terminate()
            responder.wait(10)
        cli("stream", "add", "S", "--subjects", "s.>", "--defaults")
        cli("publish", "s.1", "through a socket of the web")
        assert "through a socket of the web" in cli("stream", "get", "S", "1")
        plain = Cli(server.url, tmp_path)
        assert "Messages: 1" in plain("stream", "info", "S")
