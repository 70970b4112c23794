"""Clients that mean harm, or do harm without meaning it: refused or served, never a crash, never unbounded memory.

Each test has a server process of its own. Afterwards it must still serve, its log must show no traceback, and the most
memory it ever had must be within the bound that the test names.
"""

from __future__ import annotations

import itertools
import random
import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace.testing.server import TestServer
from tests.server.protocol_cases import HEADERS, HELLO, user
from tests.server.test_protocol import Wire

MIB = 1 << 20
IDLE_WANTED = 10_000
LIMITS = "max_pending: 16MB\n"
USERS = "authorization { timeout: 1, users: [{ user: ann, password: secret }] }\n"


def memory(server: TestServer, what: str = "VmRSS") -> int:
    """Bytes of memory of the server's process; VmHWM is the most it ever had."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@contextmanager
def attacked(
    folder: Path, growth_mib: int, config: str = "", jetstream: bool = False
) -> Iterator[TestServer]:
    """A server that must outlive what is done to it, and must not grow by more than that."""
    hello = user("ann") if "users" in config else HELLO
    with TestServer(folder / "store", config=config + LIMITS, jetstream=jetstream) as server:
        before = memory(server, "VmHWM")
        yield server
        with Wire(server.port) as client:
            began = time.monotonic()
            client.send(hello + b"SUB still 1\r\nPUB still 5\r\nalive\r\n")
            assert client.heard() == b"MSG still 1 5\r\nalive\r\nPONG\r\n"
            assert time.monotonic() - began < 5, "the server is busy with something else"
        grown = (memory(server, "VmHWM") - before) / MIB
        print(f"grown by {grown:.1f} MiB at most")
        assert grown < growth_mib, f"{grown:.0f} MiB more than at the start"
        assert "Traceback" not in (log := server.log(10_000)) and "failed" not in log, log


def answers(client: Wire, inbox: bytes, count: int) -> bytes:
    """All that comes until so many messages for that inbox were there."""
    heard, deadline = b"", time.monotonic() + 15
    while heard.count(b"MSG %b " % inbox) < count or not heard.endswith(b"\r\n"):
        assert time.monotonic() < deadline and not client.closed, heard[:1000]
        heard += client.until(b"\n")
    return heard


def test_random_bytes(tmp_path: Path, headrace_seed: int) -> None:
    """Noise, sessions with noise in them, and the endings of neither."""
    chance = random.Random(headrace_seed)
    session = (
        HEADERS
        + b"SUB a.* 1\r\nHPUB a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB s.x _INBOX.1 2\r\nhi\r\nUNSUB 1 2\r\nPING\r\n"
    )
    with attacked(tmp_path, 60, jetstream=True) as server:
        for _ in range(600):
            data = bytearray(
                chance.randbytes(chance.randrange(2000)) if chance.random() < 0.2 else session * 3
            )
            for _ in range(chance.randrange(6)):
                at = chance.randrange(len(data) + 1)
                data[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
            with Wire(server.port) as client:
                cut = chance.randrange(len(data) + 1)
                client.send(bytes(data[:cut]))
                client.send(bytes(data[cut:]))


def test_lines_without_end(tmp_path: Path) -> None:
    """Nothing is kept of a line that is too long, and of a message only what has come."""
    with attacked(tmp_path, 60) as server, ExitStack() as stack:
        for start in (b"PUB ", b"SUB ", b"CONNECT {", b"PING", b"UNSUB ", b"+OK", b"INFO ", b"xxx", b"\xff"):
            client = stack.enter_context(Wire(server.port))
            for _ in range(100):
                client.send(start + b" " * MIB if start == b"PING" else start + b"x" * MIB)
                if client.closed:
                    break
            assert client.until(b"\0").startswith(b"-ERR '") or client.closed
        for _ in range(500):  # each says that a megabyte follows
            client = stack.enter_context(Wire(server.port))
            client.send(HELLO + b"PUB a 1048576\r\n" + b"x" * 1000)


def test_slow_loris(tmp_path: Path) -> None:
    """Clients that never finish their CONNECT go after the authentication timeout, however slowly they go on."""
    with attacked(tmp_path, 40, USERS) as server, ExitStack() as stack:
        hello = user("ann")
        slow = [stack.enter_context(Wire(server.port)) for _ in range(300)]
        began = time.monotonic()
        for byte in hello[:-1]:
            for client in slow[:30]:
                client.send(bytes([byte]))
            time.sleep(0.03)
        for client in slow:
            assert client.until(b"\0").startswith(b"-ERR 'Authentication Timeout'") or client.closed
        assert time.monotonic() - began < 10
        with Wire(server.port) as client:
            client.send(hello)
            assert client.heard() == b"PONG\r\n"


def test_many_idle_connections(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = IDLE_WANTED + 500 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(possible, IDLE_WANTED + 500)), hard))
    count = min(IDLE_WANTED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    try:
        with attacked(tmp_path, 150) as server, ExitStack() as stack:
            before = memory(server)
            clients: list[socket.socket] = []
            for _ in range(count):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
                client.sendall(HELLO + b"SUB idle.> 1\r\nPING\r\n")
                clients.append(client)
            for client in clients:
                heard = b""
                while b"PONG\r\n" not in heard:
                    heard += client.recv(4096)
            each = (memory(server) - before) / count
            print(f"{count} idle connections, {each / 1024:.1f} KiB each")
            assert each < 24 * 1024
            with Wire(server.port) as publisher:
                began = time.monotonic()
                publisher.send(HELLO + b"PUB idle.x 2\r\nhi\r\n")
                publisher.heard()
                for client in clients:
                    heard = b""
                    while heard.replace(b"PING\r\n", b"") != b"MSG idle.x 1 2\r\nhi\r\n":
                        heard += client.recv(100)
                assert time.monotonic() - began < 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", ["different", "the same", "groups"])
def test_a_hundred_thousand_subscriptions(kind: str, tmp_path: Path) -> None:
    lines = {
        "different": "SUB many.{0}.> {0}\r\n",
        "the same": "SUB many {0}\r\n",
        "groups": "SUB many g{0} {0}\r\n",
    }[kind]
    with attacked(tmp_path, 150) as server:
        with Wire(server.port) as client, Wire(server.port) as other:
            began = time.monotonic()
            client.send(HELLO + "".join(lines.format(number) for number in range(100_000)).encode())
            assert client.heard() == b"PONG\r\n"
            other.send(HELLO + b"PUB many.77777.x 2\r\nhi\r\nPUB many 2\r\nhi\r\n")
            assert other.heard() == b"PONG\r\n"
            got = client.heard()
            assert got.count(b"MSG ") == (1 if kind == "different" else 100_000)
            taken = time.monotonic() - began
        with Wire(server.port) as client:
            began = time.monotonic()
            client.send(HELLO)
            client.heard()
            print(f"{kind}: {taken:.1f} s, gone in {time.monotonic() - began:.1f} s")
            assert taken < 20 and time.monotonic() - began < 3


def test_deep_wildcards(tmp_path: Path) -> None:
    """As many tokens as a line can have, and a tree in which each token can go two ways."""
    with attacked(tmp_path, 60) as server, Wire(server.port) as client:
        client.send(HELLO)
        for deep in (b".".join([b"*"] * 1900), b".".join([b"a"] * 1900) + b".>", b".".join([b"*"] * 100)):
            client.send(b"SUB " + deep + b" 1\r\n")
            said = client.heard()
            assert said in (b"PONG\r\n", b"-ERR 'Invalid Subject'\r\nPONG\r\n")
            client.send(b"PUB " + b".".join([b"a"] * 1900) + b" 0\r\n\r\nUNSUB 1\r\n")
            client.heard()
        ways = [".".join(tokens) for tokens in itertools.product("a*", repeat=14)]
        client.send("".join(f"SUB {way} {number}\r\n" for number, way in enumerate(ways)).encode())
        client.heard()
        began = time.monotonic()
        client.send(b"PUB " + b".".join([b"a"] * 14) + b" 0\r\n\r\n")
        assert client.heard().count(b"MSG ") == len(ways)
        client.send(b"PUB " + b".".join([b"b"] * 14) + b" 0\r\n\r\n")
        assert client.heard().count(b"MSG ") == 1
        assert time.monotonic() - began < 5


def test_subjects_that_are_no_text(tmp_path: Path) -> None:
    """Also where streams and the API must name them."""
    bad = [
        b"bad.\xff\xfe",
        b"bad.\xc3\x28",
        b"bad.\xed\xa0\x80",
        b"bad.\x01\x02",
        b"bad.\xf0\x9f",
        "bad.é".encode(),
    ]
    with attacked(tmp_path, 60, jetstream=True) as server, Wire(server.port) as client:
        client.send(HEADERS + b"SUB _INBOX.> 1\r\n")
        ask = b'{"name":"BAD","subjects":["bad.>"],"storage":"file"}'
        client.send(b"PUB $JS.API.STREAM.CREATE.BAD _INBOX.0 %d\r\n%b\r\n" % (len(ask), ask))
        assert b'"did_create":true' in answers(client, b"_INBOX.0", 1)
        for subject in bad:
            client.send(b"SUB %b 2\r\nPUB %b _INBOX.p 2\r\nhi\r\nUNSUB 2\r\n" % (subject, subject))
            assert b'"stream":"BAD"' in answers(client, b"_INBOX.p", 1)
            client.send(b"PUB $JS.API.STREAM.INFO.%b _INBOX.i 0\r\n\r\n" % subject[4:])
            answers(client, b"_INBOX.i", 1)
        for body in (
            b'{"subjects_filter":">"}',
            b"\xff\xfe",
            b'{"subjects_filter":"\xff"}',
            b"[" * 50_000,
            b"{" * 9,
        ):
            client.send(b"PUB $JS.API.STREAM.INFO.BAD _INBOX.f %d\r\n%b\r\n" % (len(body), body))
            answers(client, b"_INBOX.f", 1)


def test_header_bombs(tmp_path: Path) -> None:
    """A hundred thousand headers, headers without end, headers that are none, to subscribers and to a stream."""
    lines = b"NATS/1.0\r\n" + b"".join(b"K%d: v\r\n" % number for number in range(60_000))
    blocks = [
        lines + b"\r\n",
        lines,
        b"NATS/1.0\r\n" + b"Nats-Msg-Id: " + b"x" * 900_000 + b"\r\n\r\n",
        b"NATS/1.0\r\n" + b":" * 500_000 + b"\r\n\r\n",
        b"\r\n" * 200_000,
        b"NATS/1.0 " + b"9" * 500_000 + b"\r\n\r\n",
        b"\xff" * 100_000,
        b"NATS/1.0\r\nNats-Expected-Last-Sequence: " + b"9" * 100_000 + b"\r\n\r\n",
        b"NATS/1.0\r\nNats-TTL: " + b"9" * 100_000 + b"\r\nNats-Rollup: x\r\n\r\n",
    ]
    with attacked(tmp_path, 150, jetstream=True) as server, Wire(server.port) as client:
        client.send(HEADERS + b"SUB _INBOX.> 1\r\nSUB h 2\r\n")
        ask = (
            b'{"name":"H","subjects":["h.>"],"storage":"file","allow_msg_ttl":true,"allow_rollup_hdrs":true}'
        )
        client.send(b"PUB $JS.API.STREAM.CREATE.H _INBOX.0 %d\r\n%b\r\n" % (len(ask), ask))
        for block in blocks:
            for subject in (b"h", b"h.x"):
                client.send(b"HPUB %b _INBOX.p %d %d\r\n%b\r\n" % (subject, len(block), len(block), block))
        heard = answers(client, b"_INBOX.p", len(blocks))
        assert heard.count(b"HMSG h 2 ") == len(blocks)


def test_a_client_that_never_reads(tmp_path: Path) -> None:
    """It is dropped as a slow consumer; the publisher and the other subscriber do not notice."""
    message = b"PUB flood 10000\r\n" + b"x" * 10_000 + b"\r\n"
    block, rounds = message * 100, 100  # 100 MB

    def publish(server: TestServer, readers: int) -> float:
        with ExitStack() as stack:
            for _ in range(readers):
                lazy = stack.enter_context(Wire(server.port))
                lazy.send(HELLO + b"SUB flood 1\r\n")
                lazy.heard()
            publisher = stack.enter_context(Wire(server.port))
            publisher.send(HELLO)
            began = time.monotonic()
            for _ in range(rounds):
                publisher.send(block)
                assert publisher.heard() == b"PONG\r\n"
            return time.monotonic() - began

    with attacked(tmp_path, 150) as server:
        alone = publish(server, 0)
        watched = publish(server, 3)
        print(f"100 MB in {alone:.2f} s alone, in {watched:.2f} s beside three that do not read")
        assert watched < alone * 4 + 2
        assert server.log(1000).count("Slow Consumer") == 3


def test_one_message_to_many_subscriptions_of_one_client(tmp_path: Path) -> None:
    """A hundred thousand copies of a large message are not kept for it."""
    with attacked(tmp_path, 120) as server, Wire(server.port) as lazy, Wire(server.port) as publisher:
        lazy.send(HELLO + b"".join(b"SUB flood %d\r\n" % number for number in range(100_000)))
        lazy.heard()
        publisher.send(HELLO + b"PUB flood 500000\r\n" + b"x" * 500_000 + b"\r\n")
        assert publisher.heard() == b"PONG\r\n"
        publisher.heard()
        assert server.log(1000).count("Slow Consumer") == 1


def test_a_refused_client_that_does_not_read_goes_too(tmp_path: Path) -> None:
    """Its last words wait in its buffers; they do not keep it."""
    with attacked(tmp_path, 60, 'write_deadline: "1s"\n') as server, Wire(server.port) as lazy:
        lazy.send(HELLO + b"SUB flood 1\r\n")
        lazy.heard()
        with Wire(server.port) as publisher:
            publisher.send(
                HELLO + (b"PUB flood 10000\r\n" + b"x" * 10_000 + b"\r\n") * 1000
            )  # less than max_pending
            publisher.heard()
        lazy.send(b"NONSENSE\r\n")
        time.sleep(2.5)
        heard = lazy.until(b"\0")
        assert lazy.closed and len(heard) < 10_000_000, "it was cut off before it read"
