"""The client protocol on raw sockets: the same conversations with Headrace and with nats-server, byte by byte."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pytest

from headrace.testing.server import TestServer
from tests.server.protocol_cases import CASES, CONFIGS, HEADERS, HELLO, Case
from tests.support.peers import NatsServer

ANSWER_S = 10.0
UNIT = re.compile(rb"(?:MSG|HMSG) [^\r]* (\d+)\r\n|[^\r\n]*\r\n", re.DOTALL)
PORTS = tuple[int, int]


class Wire:
    """One client: sends bytes, keeps what comes back."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.info = self.until(b"\r\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except ConnectionError:
            self.closed = True

    def until(self, ending: bytes) -> bytes:
        """What comes until that; all of it if the server closes before."""
        found = b""
        while not found.endswith(ending) and not self.closed:
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionError:
                more = b""
            self.closed = not more
            found += more
        return found

    def heard(self) -> bytes:
        """Everything that was said to it so far: until the answer to a PING."""
        self.send(b"PING\r\n")
        return self.until(b"PONG\r\n")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], PORTS]]:
    """(Headrace's port, nats-server's port) by configuration; each pair is started once."""
    running: dict[str, tuple[TestServer, NatsServer]] = {}

    def start(config: str) -> PORTS:
        if config not in running:
            folder = tmp_path_factory.mktemp(config)
            ours = TestServer(folder / "ours", config=CONFIGS[config], jetstream=False).start()
            running[config] = (ours, NatsServer("2.15.2", folder / "theirs", config=CONFIGS[config]).start())
        ours, theirs = running[config]
        return ours.port, theirs.port

    yield start
    for ours, theirs in running.values():
        ours.stop()
        theirs.stop()


def converse(case: Case, port: int) -> list[tuple[str, list[bytes], bool]]:
    """Per step and client: what it heard, and whether it was closed."""
    clients: dict[str, Wire] = {}
    transcript: list[tuple[str, list[bytes], bool]] = []
    try:
        for name, sent in case.steps:
            if name not in clients:
                clients[name] = Wire(port)
            clients[name].send(sent)
            halved = not sent.endswith(b"\n") or case.name == "in pieces"
            for each, client in [(name, clients[name]), *clients.items()]:
                if client.closed or (halved and not case.closes):
                    continue
                # A line that was cut is refused or waited for; only what was refused can be read.
                heard = client.until(b"\0") if halved else client.heard()
                transcript.append((each, shape(case, heard), client.closed))
        if case.name == "in pieces":
            transcript.append(("a", shape(case, clients["a"].heard()), clients["a"].closed))
    finally:
        for client in clients.values():
            client.__exit__(None, None, None)
    if case.chosen:
        return [("all", sorted(unit for _, units, _ in transcript for unit in units), False)]
    return transcript


def shape(case: Case, heard: bytes) -> list[bytes]:
    """Lines and messages, one by one, without the answers to our own PINGs."""
    units: list[bytes] = []
    at = 0
    while found := UNIT.match(heard, at):
        end = found.end() + (int(found[1]) + 2 if found[1] else 0)
        units.append(heard[at:end])
        at = end
    assert at == len(heard), heard[at:]
    if case.chosen:
        units = [re.sub(rb"^(MSG \S+) \S+", rb"\1 sid", unit) for unit in units]
    return [unit for unit in (sorted(units) if case.sorted else units) if unit != b"PONG\r\n"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conversation(case: Case, servers: Callable[[str], PORTS]) -> None:
    ours, theirs = (converse(case, port) for port in servers(case.config))
    assert ours == theirs
    said = b"".join(unit for _, units, _ in ours for unit in units)
    assert case.says in said
    if not case.chosen:
        assert ours[-1][2] == case.closes or len({name for name, _ in case.steps}) > 1


# What takes time, or more than one connection


def test_info(servers: Callable[[str], PORTS]) -> None:
    """What clients decide by: the same fields with the same meaning, and our own version beside them."""
    for config in ("open", "users"):
        infos: list[dict[str, Any]] = []
        for port in servers(config):
            with Wire(port) as client:
                assert client.info.startswith(b"INFO {") and client.info.endswith(b"} \r\n")
                infos.append(json.loads(client.info[5:]))
        ours, theirs = infos
        same = ("proto", "headers", "max_payload", "auth_required", "tls_required", "client_ip", "nonce")
        assert [ours.get(name) for name in same] == [theirs.get(name) for name in same]
        assert {name: type(value) for name, value in ours.items() if name in theirs} == {
            name: type(value) for name, value in theirs.items() if name in ours
        }
        assert {"server_id", "server_name", "version", "host", "port", "client_id"} <= ours.keys()
        assert ours["headrace"] and ours["port"] == servers(config)[0]


@pytest.mark.parametrize("config", ["users", "bcrypt"])
def test_authentication_timeout(config: str, servers: Callable[[str], PORTS]) -> None:
    for port in servers(config):
        with Wire(port) as silent, Wire(port) as slow:
            began = time.monotonic()
            slow.send(b"CONNEC")
            assert silent.until(b"\0") == b"-ERR 'Authentication Timeout'\r\n"
            assert 0.2 < time.monotonic() - began < 3
            assert slow.until(b"\0") == b"-ERR 'Authentication Timeout'\r\n"


def test_a_check_that_takes_time_keeps_the_order(servers: Callable[[str], PORTS]) -> None:
    """bcrypt is checked beside the loop: what comes behind CONNECT waits for it, however much it is."""
    many = 3000
    hello = HEADERS.replace(b"}", b',"auth_token":"sesame"}')
    for port in servers("bcrypt"):
        with Wire(port) as client:
            client.send(hello + b"SUB a 1\r\n" + b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n")
            client.send((b"PUB a 1000\r\n" + b"y" * 1000 + b"\r\n") * many)
            assert client.heard().count(b"MSG a 1 1000\r\n") == many + 1


def test_maximum_connections(servers: Callable[[str], PORTS]) -> None:
    refused = b"-ERR 'maximum connections exceeded'\r\n"
    transcripts: list[bytes] = []
    for port in servers("few"):
        with Wire(port) as one, Wire(port) as two:
            assert one.heard() and two.heard()
            with Wire(port) as three:
                said = three.info + three.until(b"\0")
                assert said.endswith(refused) and three.closed
                transcripts.append(said[:5])
        deadline = time.monotonic() + ANSWER_S  # the others are gone: there is room again
        while time.monotonic() < deadline:
            with Wire(port) as again:
                if again.info.startswith(b"INFO ") and again.heard() == b"PONG\r\n":
                    break
        else:
            pytest.fail("no room after the others have gone")
    assert transcripts[0] == transcripts[1], "INFO comes first or not"


def test_who_does_not_answer_pings_is_stale(servers: Callable[[str], PORTS]) -> None:
    for port in servers("pings"):
        with Wire(port) as silent, Wire(port) as polite:
            silent.send(HELLO)
            polite.send(HELLO)
            heard = b""
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                assert polite.until(b"PING\r\n").endswith(b"PING\r\n"), "who answers may stay"
                polite.send(b"PONG\r\n")
            heard = silent.until(b"\0")
            assert heard.startswith(b"PING\r\n") and heard.endswith(b"-ERR 'Stale Connection'\r\n")
            assert polite.heard() and not polite.closed
