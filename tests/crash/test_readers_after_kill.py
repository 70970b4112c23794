"""After kill -9 every reader sees what the server serves when it is started again, and writes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

import headrace
from headrace.ops.cat import Reading
from headrace.ops.look import inspect
from headrace.testing import TestServer

MESSAGES = 60

STREAMS: dict[str, dict[str, Any]] = {
    "KV_K": {"subjects": ["$KV.K.>"], "max_msgs_per_subject": 2},
    "MSGS": {"subjects": ["msgs.>"], "max_msgs": 17},
    "BYTES": {"subjects": ["bytes.>"], "max_bytes": 1_000},
    "AGE": {"subjects": ["age.>"], "max_age": 2},
    "QUEUE": {"subjects": ["queue.>"], "retention": "workqueue"},
    "INTEREST": {"subjects": ["interest.>"], "retention": "interest"},
    "PLAIN": {"subjects": ["plain.>"]},
}


async def fill(server: TestServer) -> None:
    """Messages on 26 subjects; every second one is acknowledged on the streams that remove by that."""
    client = await nats.connect(server.url)
    js = client.jetstream()
    for name, options in STREAMS.items():
        await js.add_stream(StreamConfig(name=name, **options))
    for name in ("QUEUE", "INTEREST"):
        await js.add_consumer(name, ConsumerConfig(durable_name="c", ack_policy="explicit"))
    for name, options in STREAMS.items():
        prefix = options["subjects"][0].removesuffix(">")
        for n in range(MESSAGES if name != "AGE" else MESSAGES // 2):
            await js.publish(f"{prefix}{chr(97 + n % 26)}", b"%d" % n)
    await asyncio.sleep(2.2)
    for n in range(MESSAGES // 2):
        await js.publish(f"age.{chr(97 + n % 26)}", b"late %d" % n)
    for name in ("QUEUE", "INTEREST"):
        pull = await js.pull_subscribe_bind("c", name)
        for n, message in enumerate(await pull.fetch(MESSAGES)):
            if n % 2:
                await message.ack_sync()
    await client.close()


async def served(server: TestServer) -> dict[str, dict[int, bytes | None]]:
    """What a client gets of each stream."""
    client = await nats.connect(server.url)
    js = client.jetstream()
    found: dict[str, dict[int, bytes | None]] = {}
    for name in STREAMS:
        state = (await js.stream_info(name)).state
        found[name] = {}
        for seq in range(state.first_seq, state.last_seq + 1):
            try:
                found[name][seq] = (await js.get_msg(name, seq)).data
            except nats.js.errors.NotFoundError:
                pass
        assert len(found[name]) == state.messages
    await client.close()
    return found


def digest(root: Path) -> str:
    """Names and bytes of all files."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        total.update(str(path).encode())
        total.update(path.read_bytes() if path.is_file() else b"")
    return total.hexdigest()


@pytest.mark.slow
def test_readers_see_what_the_server_serves(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with TestServer(store) as server:
        asyncio.run(fill(server))
        server.kill()
        before = digest(store)
        readers: dict[str, dict[str, dict[int, bytes | None]]] = {}
        for name in STREAMS:
            cat = [record for _, batch in Reading(str(store), stream=name) for record in batch]
            with headrace.open(str(store)) as volume:
                log = volume.open(name)
                opened = list(log)
                tasks = [record for task in log.scan_tasks() for batch in task.batches() for record in batch]
            for reader, records in (("cat", cat), ("open", opened), ("tasks", tasks)):
                readers.setdefault(reader, {})[name] = {record.seq: record.data for record in records}
        counts = {view.name: view.state.messages for view in inspect(str(store)).streams if view.state}
        assert digest(store) == before, "a reader wrote"
        server.start()
        expected = asyncio.run(served(server))
    # Seen as of its newest message; by now the server may have dropped more.
    late: dict[int, bytes | None] = {MESSAGES // 2 + n + 1: b"late %d" % n for n in range(MESSAGES // 2)}
    assert expected["AGE"].items() <= late.items()
    expected["AGE"] = late
    for reader, found in readers.items():
        for name in STREAMS:
            assert found[name] == expected[name], f"{reader} of {name}"
    sizes = {name: len(messages) for name, messages in expected.items()}
    assert counts == sizes
    few = {"KV_K": 52, "MSGS": 17, "AGE": 30, "QUEUE": 30, "INTEREST": 30, "PLAIN": 60}
    assert few.items() <= sizes.items() and 0 < sizes["BYTES"] < MESSAGES
