"""A running server from outside: signals, reloads, a second start, TLS, monitoring; with a real client where one is needed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import nats
import pytest

from headrace.testing import TestServer
from tests.server.certificates import make_certificates
from tests.support.peers import free_port
from tests.support.waiting import wait_for_log, wait_until

USERS = 'authorization {{ users = [ {{ user: a, password: "{password}" }} ] }}\njetstream {{ store_dir: "{store}" }}\n'


def fetched(server: TestServer, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}", timeout=10) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith("{") else text


def test_term_notifies_clients_and_ends_soon(tmp_path: Path) -> None:
    async def client_hears(server: TestServer) -> bool:
        notified = asyncio.Event()

        async def on_lame_duck() -> None:
            notified.set()

        client = await nats.connect(server.url, lame_duck_mode_cb=on_lame_duck, allow_reconnect=False)
        server.signal(signal.SIGTERM)
        await asyncio.wait_for(notified.wait(), 5)
        await client.close()
        return True

    server = TestServer(tmp_path / "store").start()
    assert asyncio.run(client_hears(server))
    assert server.wait(10) == 0
    assert "lame duck" in server.log()


def test_lame_duck_takes_its_time(tmp_path: Path) -> None:
    config = 'lame_duck_grace_period: "1s"\nlame_duck_duration: "31s"\njetstream: enabled\n'
    server = TestServer(tmp_path / "store", config=config).start()
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        assert silent.recv(4)
        server.signal(signal.SIGUSR2)
        wait_for_log(server, "lame duck")
        server.signal(signal.SIGINT)  # at once after all
        assert server.wait(10) == 0


def test_reload_changes_users(tmp_path: Path) -> None:
    async def connects(server: TestServer, password: str) -> bool:
        try:
            client = await nats.connect(
                server.url, user="a", password=password, allow_reconnect=False, connect_timeout=5
            )
        except nats.errors.Error:
            return False
        await client.close()
        return True

    store = tmp_path / "store"
    server = TestServer(store, config=USERS.format(password="one", store=store))
    with server:
        assert asyncio.run(connects(server, "one"))
        (tmp_path / "store.headrace.conf").write_text(USERS.format(password="two", store=store))
        server.signal(signal.SIGHUP)
        wait_for_log(server, "Reloaded")
        assert not asyncio.run(connects(server, "one"))
        assert asyncio.run(connects(server, "two"))
        (tmp_path / "store.headrace.conf").write_text("no such { thing")
        server.signal(signal.SIGHUP)
        wait_for_log(server, "Failed to reload")
        assert asyncio.run(connects(server, "two")), "a bad configuration changes nothing"


def test_log_file_is_opened_again(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with TestServer(tmp_path / "store", ["-l", str(log), "-P", str(tmp_path / "pid")]) as server:
        assert "Server is ready" in log.read_text()
        assert int((tmp_path / "pid").read_text()) == server.pid
        log.rename(tmp_path / "old.log")
        server.signal(signal.SIGUSR1)
        wait_until(log.exists)
        server.stop()
        assert "Server Exiting" in log.read_text()
    assert not (tmp_path / "pid").exists()


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_pid_file(tmp_path: Path) -> None:
    """There when the port can be reached, removed by the server that wrote it and by no other."""
    pid_file, port = tmp_path / "pid", free_port()
    flags = [
        "-a",
        "127.0.0.1",
        "-p",
        str(port),
        "-P",
        str(pid_file),
        "--ports_file_dir",
        str(tmp_path / "none"),
    ]
    command = [sys.executable, "-m", "headrace.cli", "serve", *flags]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([*command, "-sd", str(tmp_path / "a")], stderr=log) as server,
    ):
        try:
            wait_until(lambda: reachable(port))
            assert pid_file.read_text() == str(server.pid)
            for store in ("a", "b"):  # locked; the port is taken
                again = subprocess.run(
                    [*command, "-sd", str(tmp_path / store)], capture_output=True, timeout=60
                )
                assert again.returncode == 2 and pid_file.read_text() == str(server.pid)
            wait_until(lambda: "Error writing ports file" in (tmp_path / "log").read_text())
        finally:
            server.terminate()
    assert not pid_file.exists()
    command[command.index(str(pid_file))] = str(tmp_path / "none" / "pid")
    refused = subprocess.run(
        [*command, "-sd", str(tmp_path / "b")], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == f"headrace: {tmp_path}/none/pid: No such file or directory"


def test_the_ports_file_names_addresses_that_can_be_reached(tmp_path: Path) -> None:
    with TestServer(tmp_path / "store", ["-a", "0.0.0.0", "--ports_file_dir", str(tmp_path)]) as server:
        file = tmp_path / f"nats-server_{server.pid}.ports"
        wait_until(file.exists)
        urls = wait_until(lambda: json.loads(file.read_text() or "{}")).get("nats")
        assert urls[0] == f"nats://127.0.0.1:{server.port}"
        assert not any("0.0.0.0" in url or "[::]" in url for url in urls)


def test_a_second_start_fails_in_one_line(tmp_path: Path) -> None:
    with TestServer(tmp_path / "store") as server:
        for flags in (
            ["-p", str(server.port), "-sd", str(tmp_path / "other")],
            ["-p", "-1", "-sd", str(tmp_path / "store")],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "headrace.cli", "serve", "-a", "127.0.0.1", *flags],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            said = [line for line in done.stderr.splitlines() if line.startswith("headrace:")]
            assert done.returncode == 2 and len(said) == 1, done.stderr
            assert "Traceback" not in done.stderr


class Bare(TestServer):
    """`headrace serve -p PORT`, as somebody starts it who has read nothing."""

    def _command(self) -> list[str]:
        return [
            sys.executable, "-m", "headrace.cli", "serve", "-a", "127.0.0.1", "-p", str(self.port),
        ]  # fmt: skip


def test_two_servers_on_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without flags each has a folder of its own, says which, and finds it again; an older one's is kept."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    base = tmp_path / "headrace"

    async def publish(server: TestServer, count: int) -> int:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s"])
        for _ in range(count):
            last = (await stream.publish("s", b"x")).seq
        await client.close()
        return last

    with TestServer(base / "default") as old:
        assert asyncio.run(publish(old, 3)) == 3
    first, second = Bare(tmp_path / "first"), Bare(tmp_path / "second")
    with first:
        assert asyncio.run(publish(first, 1)) == 4
        with second:
            assert asyncio.run(publish(second, 1)) == 1
            assert f"Streams live in {base / 'default'};" in first.log()
            assert f"Streams live in {base / f'port-{second.port}'};" in second.log()
    with second:
        assert asyncio.run(publish(second, 1)) == 2, "also when the other one is not there"
    with first:
        assert asyncio.run(publish(first, 1)) == 5


@pytest.mark.parametrize("first", [False, True])
def test_tls(tmp_path: Path, first: bool) -> None:
    made = make_certificates(tmp_path / "certificates")
    config = (
        f'tls {{ cert_file: "{made.server_cert}", key_file: "{made.server_key}", ca_file: "{made.ca}", verify: true, '
        f"handshake_first: {str(first).lower()} }}\njetstream: enabled\n"
    )

    async def works(server: TestServer) -> bytes:
        context = ssl.create_default_context(cafile=made.ca)
        context.load_cert_chain(made.client_cert, made.client_key)
        client = await nats.connect(
            f"tls://localhost:{server.port}", tls=context, tls_handshake_first=first, allow_reconnect=False
        )
        await client.jetstream().add_stream(name="S", subjects=["s"])
        ack = await client.jetstream().publish("s", b"over TLS")
        message = await client.jetstream().get_msg("S", ack.seq)
        await client.close()
        return message.data or b""

    with TestServer(tmp_path / "store", config=config) as server:
        assert asyncio.run(works(server)) == b"over TLS"


def test_monitoring_of_a_live_server(tmp_path: Path) -> None:
    async def fill(server: TestServer) -> None:
        client = await nats.connect(server.url, name="filler")
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s.>"])
        for number in range(10):
            await stream.publish(f"s.{number}", b"data")
        puller = await stream.pull_subscribe("s.>", "worker", stream="S")
        for message in await puller.fetch(4, timeout=5):
            await message.ack_sync()
        shown = {path: fetched(server, path) for path in PAGES}
        assert shown["/varz"]["connections"] == 1 and shown["/varz"]["in_msgs"] > 10
        assert shown["/connz?subs=1"]["connections"][0]["name"] == "filler"
        assert shown["/subsz"]["num_subscriptions"] > 0
        stream_seen = shown["/jsz?streams=1&consumers=1"]["account_details"][0]["stream_detail"][0]
        assert stream_seen["state"]["messages"] == 10
        assert stream_seen["consumer_detail"][0]["ack_floor"]["stream_seq"] == 4
        assert shown["/healthz"] == {"status": "ok"}
        assert 'stream="S"' in shown["/metrics"] and 'consumer="worker"' in shown["/metrics"]
        await client.close()

    server = TestServer(tmp_path / "store", ["-m", "-1"]).start()
    with server:
        wait_for_log(server, "Server is ready")
        line = next(each for each in server.log().splitlines() if "Monitoring on" in each)
        server.http_port = int(line.rsplit(":", 1)[1])
        asyncio.run(fill(server))


PAGES = (
    "/varz",
    "/connz?subs=1",
    "/subsz",
    "/jsz?streams=1&consumers=1",
    "/healthz",
    "/accountz",
    "/metrics",
)
