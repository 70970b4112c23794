"""The real `nats` command against Headrace: what a user does with it every day."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from headrace.testing import TestServer
from tests.support.natscli import Cli

CONFIG = """
accounts {
  $SYS { users = [ { user: admin, password: secret } ] }
  APP { jetstream: enabled, users = [ { user: app, password: app } ] }
}
no_auth_user: app
jetstream: enabled
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[TestServer]:
    with TestServer(tmp_path_factory.mktemp("cli") / "store") as server:
        yield server


@pytest.fixture(scope="module")
def cli(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(server.url, tmp_path_factory.mktemp("home"))


def test_streams(cli: Cli, tmp_path: Path) -> None:
    cli("stream", "add", "S", "--subjects", "s.>", "--defaults")
    cli("pub", "s.a", "m{{Count}}", "--count", "20", "--jetstream")
    cli("pub", "s.b", "x", "-H", "Key: value", "--jetstream")
    assert "S" in cli("stream", "ls")
    info = cli.json("stream", "info", "S")
    assert (info["state"]["messages"], info["state"]["num_subjects"]) == (21, 2)
    assert re.search(r"S\s+│ File", cli("stream", "report"))
    assert "m3" in cli("stream", "get", "S", "3")
    cli("stream", "rmm", "S", "3", "-f")
    assert cli.json("stream", "info", "S")["state"]["num_deleted"] == 1
    cli("stream", "edit", "S", "--max-msgs", "10", "-f")
    assert cli.json("stream", "info", "S")["state"]["messages"] == 10
    cli("stream", "backup", "S", str(tmp_path / "backup"))
    before = cli.json("stream", "info", "S")["state"]
    cli("stream", "rm", "S", "-f")
    cli("stream", "restore", str(tmp_path / "backup"))
    after = cli.json("stream", "info", "S")["state"]
    assert {k: after[k] for k in ("messages", "bytes", "first_seq", "last_seq")} == {
        k: before[k] for k in ("messages", "bytes", "first_seq", "last_seq")
    }
    cli("stream", "purge", "S", "-f")
    assert cli.json("stream", "info", "S")["state"]["messages"] == 0


def test_consumers(cli: Cli) -> None:
    cli("stream", "add", "C", "--subjects", "c.>", "--defaults")
    cli("pub", "c.a", "m{{Count}}", "--count", "30", "--jetstream")
    cli("consumer", "add", "C", "P", "--pull", "--ack", "explicit", "--deliver", "all", "--defaults")
    text = cli("consumer", "next", "C", "P", "--count", "5", "--ack")
    assert text.count("Acknowledged message") == 5 and "m5" in text
    info = cli.json("consumer", "info", "C", "P")
    assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (5, 25)
    assert "P" in cli("consumer", "ls", "C") and "P" in cli("consumer", "report", "C")
    cli(
        "consumer", "add", "C", "PUSH", "--target", "out.c", "--ack", "none", "--deliver", "all", "--defaults"
    )
    beside = cli.start("sub", "out.c", "--count", "30", "--raw")
    try:
        told, _ = beside.communicate(timeout=20)
    finally:
        beside.kill()
    assert [line for line in told.splitlines() if line.startswith("m")] == [f"m{n}" for n in range(1, 31)]
    cli("consumer", "rm", "C", "P", "-f")
    assert "P" not in cli("consumer", "ls", "C", "--names").split()


def test_core(cli: Cli) -> None:
    replier = cli.start("reply", "help.please", "OK, I CAN HELP!!!")
    listener = cli.start("sub", "news.>", "--count", "2", "--raw")
    try:
        time.sleep(1.0)
        assert "OK, I CAN HELP!!!" in cli("req", "help.please", "hello")
        cli("pub", "news.a", "one")
        cli("pub", "news.b", "two")
        told, _ = listener.communicate(timeout=10)
        assert told.split() == ["one", "two"]
    finally:
        replier.kill()
        listener.kill()
    assert "No responders are available" in cli("req", "nobody.there", "x", code=None)


def test_key_value(cli: Cli) -> None:
    cli("kv", "add", "CONFIG", "--history", "5")
    cli("kv", "put", "CONFIG", "colour", "blue")
    cli("kv", "put", "CONFIG", "colour", "green")
    assert cli("kv", "get", "CONFIG", "colour", "--raw").strip() == "green"
    assert "blue" in cli("kv", "history", "CONFIG", "colour")
    assert cli("kv", "create", "CONFIG", "colour", "red", code=None).find("wrong last sequence") >= 0
    cli("kv", "create", "CONFIG", "size", "10")
    assert sorted(cli("kv", "ls", "CONFIG").split()) == ["colour", "size"]
    cli("kv", "del", "CONFIG", "size", "-f")
    assert cli("kv", "ls", "CONFIG").split() == ["colour"]
    watcher = cli.start("kv", "watch", "CONFIG", "colour")
    try:
        time.sleep(1.0)
        cli("kv", "put", "CONFIG", "colour", "violet")
        time.sleep(0.5)
        watcher.send_signal(signal.SIGINT)
        told, _ = watcher.communicate(timeout=10)
    finally:
        watcher.kill()
    assert "green" in told and "violet" in told
    assert "CONFIG" in cli("kv", "ls")
    cli("kv", "rm", "CONFIG", "-f")


def test_bench_runs(cli: Cli) -> None:
    cli("stream", "add", "B", "--subjects", "b.>", "--defaults")
    told = cli("bench", "js", "pub", "async", "b.x", "--stream", "B", "--msgs", "5000", "--no-progress")
    assert "msgs/sec" in told
    assert cli.json("stream", "info", "B")["state"]["messages"] == 5000
    assert "msgs/sec" in cli("bench", "js", "ordered", "--stream", "B", "--msgs", "5000", "--no-progress")
    assert "msgs/sec" in cli("bench", "js", "fetch", "--stream", "B", "--msgs", "5000", "--no-progress")


def test_account_and_checks(cli: Cli) -> None:
    assert "JetStream Account Information" in cli("account", "info")
    assert cli("server", "check", "connection").startswith("OK")
    assert cli("server", "check", "jetstream").startswith("OK")
    cli("stream", "add", "CHECKED", "--subjects", "checked", "--defaults")
    cli("pub", "checked", "x", "--jetstream")
    assert cli(
        "server", "check", "stream", "--stream", "CHECKED", "--peer-expect", "0", code=None
    ).startswith("OK")


def test_events(cli: Cli) -> None:
    events = cli.start("events", "--js-advisory", "--short")
    try:
        time.sleep(1.0)
        cli("stream", "add", "SEEN", "--subjects", "seen", "--defaults")
        time.sleep(0.5)
        events.send_signal(signal.SIGINT)
        told, _ = events.communicate(timeout=10)
    finally:
        events.kill()
    assert "SEEN" in told, told


def test_system_account(tmp_path: Path) -> None:
    """`nats server ls` and friends, as the system user sees them."""
    with TestServer(tmp_path / "store", config=CONFIG) as server:
        admin = Cli(server.url, tmp_path, "--user", "admin", "--password", "secret")
        app = Cli(server.url, tmp_path)
        app("stream", "add", "A", "--subjects", "a", "--defaults")
        listed = admin("server", "ls")
        assert "1" in listed and "Server Overview" in listed
        assert json.loads(admin("server", "request", "variables").splitlines()[0])["data"]["jetstream"]
        assert "1" in admin("server", "report", "jetstream")
        assert admin("server", "report", "connections")
        assert admin("server", "ping", "1")
