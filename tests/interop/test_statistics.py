"""What an account moved: counted as nats-server counts it, and never less than before."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import nats

from headrace.testing.server import TestServer
from tests.support.natscli import Cli
from tests.support.peers import NatsServer, free_port

LIMIT_S = 20


async def session(url: str) -> None:
    """90 messages to a subscriber, ten through a stream; then the client leaves."""
    client = await nats.connect(url)
    sub = await client.subscribe("x")
    await client.flush()
    for _ in range(90):
        await client.publish("x", b"hello")
    for _ in range(90):
        await sub.next_msg(LIMIT_S)
    stream = client.jetstream()
    await stream.add_stream(name="S", subjects=["s"])
    for _ in range(10):
        await stream.publish("s", b"hello")
    puller = await stream.pull_subscribe("s", "c", stream="S")
    for message in await puller.fetch(10, timeout=LIMIT_S):
        await message.ack_sync()
    await client.close()


async def statistics(url: str) -> dict[str, Any]:
    client = await nats.connect(url)
    answer = await client.request("$SYS.REQ.ACCOUNT.PING.STATZ", b"", timeout=LIMIT_S)
    await client.close()
    (found,) = json.loads(answer.data)["data"]["account_statz"]
    del found["num_subscriptions"]  # nats-server's own ones are in it
    del found["sent"]["bytes"]  # answers hold times, of which zeros at the end are left out
    return found


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        lines = re.findall(r"^(headrace_\S*_total(?:{\S*})?) (\S+)$", answer.read().decode(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_accounts_count_as_nats_server_does(tmp_path: Path) -> None:
    port = free_port()
    found: list[dict[str, Any]] = []
    for server in (
        NatsServer("2.15.2", tmp_path / "theirs"),
        TestServer(tmp_path / "ours", ["-m", str(port)]),
    ):
        with server:
            asyncio.run(session(server.url))
            found.append(asyncio.run(statistics(server.url)))
            assert " 124 " in Cli(server.url, tmp_path)("account", "report", "statistics")
    assert found[1] == found[0]
    assert found[0]["sent"]["msgs"] == 123


def test_counters_never_fall(tmp_path: Path) -> None:
    port = free_port()
    with TestServer(tmp_path / "store", ["-m", str(port)]) as server:
        before = metrics(port)
        for _ in range(2):
            asyncio.run(session(server.url))
            after = metrics(port)
            assert before.keys() <= after.keys()
            assert all(after[name] >= value for name, value in before.items())
            before = after
        assert after['headrace_account_in_messages_total{account="$G"}'] > 220
