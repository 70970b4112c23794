"""The real `nats` command against Headrace: what a user does with it every day."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from headrace.testing import TestServer
from tests.support.natscli import Cli
from tests.support.waiting import wait_until

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
        output, _ = beside.communicate(timeout=20)
    finally:
        beside.kill()
    assert [line for line in output.splitlines() if line.startswith("m")] == [f"m{n}" for n in range(1, 31)]
    cli("consumer", "rm", "C", "P", "-f")
    assert "P" not in cli("consumer", "ls", "C", "--names").split()


def test_core(cli: Cli) -> None:
    with cli.beside("reply", "help.please", "OK, I CAN HELP!!!") as replier:
        replier.until("help.please")
        wait_until(lambda: "OK, I CAN HELP!!!" in cli("req", "help.please", "hello", code=None), "an answer")
    with cli.beside("sub", "news.>", "--raw") as listener:
        listener.until("one", lambda: cli("pub", "news.a", "one"))
        cli("pub", "news.b", "two")
        assert set(listener.until("two").split()) == {"one", "two"}
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
    with cli.beside("kv", "watch", "CONFIG", "colour") as watcher:
        watcher.until("green")
        cli("kv", "put", "CONFIG", "colour", "violet")
        watcher.until("violet")
    assert "CONFIG" in cli("kv", "ls")
    cli("kv", "rm", "CONFIG", "-f")


def test_bench_runs(cli: Cli) -> None:
    cli("stream", "add", "B", "--subjects", "b.>", "--defaults")
    output = cli("bench", "js", "pub", "async", "b.x", "--stream", "B", "--msgs", "5000", "--no-progress")
    assert "msgs/sec" in output
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
    numbers = itertools.count()

    def make_a_stream() -> None:
        number = next(numbers)
        cli("stream", "add", f"SEEN{number}", "--subjects", f"seen.{number}", "--defaults")

    with cli.beside("events", "--js-advisory", "--short") as events:
        events.until("SEEN", make_a_stream)


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
