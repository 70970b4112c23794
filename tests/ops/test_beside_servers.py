"""With the real server: looking at a directory that it is writing, after kill -9, and handing it a salvaged one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from headrace.ops.cat import Reading
from headrace.ops.look import inspect, salvage, verify
from tests.ops.helpers import STREAMS
from tests.support import vectors

NatsServers = Callable[..., Any]


def talk(url: str, work: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        client = await nats.connect(url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


async def publish(stream: Any, count: int) -> None:
    for number in range(count):
        await stream.publish("orders.new", f"order {number}".encode())


def test_beside_a_running_server(nats_server: NatsServers, tmp_path: Path) -> None:
    server = nats_server("2.15.2", tmp_path / "js")

    async def begin(jetstream: Any) -> None:
        await jetstream.add_stream(name="ORDERS", subjects=["orders.>"])
        await publish(jetstream, 50)

    talk(server.url, begin)
    store, seen, stop, all_there = str(tmp_path / "js"), [], threading.Event(), threading.Event()

    def follow() -> None:
        for _, batch in Reading(store, follow=True, stop=stop, poll_s=0.02):
            seen.extend(batch.positions())
            if len(seen) >= 250:
                all_there.set()

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        talk(server.url, lambda jetstream: publish(jetstream, 200))
        assert all_there.wait(30), len(seen)
        report = verify(store)
        assert report.sound, str(report)
        assert any("nats-server" in note for note in report.notes)
        view = inspect(store)
        assert view.writer is not None and "nats-server" in view.writer
    finally:
        stop.set()
        reader.join()
    assert seen == list(range(1, 251))
    server.kill()
    report = verify(store)
    assert report.sound, str(report)
    assert report.messages == 250


@pytest.mark.parametrize("version", vectors.versions("jetstream"))
def test_a_server_takes_a_salvaged_store(version: str, nats_server: NatsServers, tmp_path: Path) -> None:
    vector = vectors.load("jetstream", version)
    source = vector.copy(tmp_path)
    vectors.xor(source / STREAMS / "ORDERS/msgs/1.blk", 456, 0x55)
    (source / STREAMS / "foo_stream/meta.inf").unlink()
    out = tmp_path / "out"
    report = salvage(str(source), str(out))
    assert report.copy_sound
    kept = {(name, seq) for name, batch in Reading(str(out)) for seq in batch.positions()}

    async def look(jetstream: Any) -> dict[str, tuple[Any, set[int]]]:
        found: dict[str, tuple[Any, set[int]]] = {}
        for name in ("ORDERS", "BLOCKS", "KV_cfg", "WQ", "EMPTY", "foo_stream"):
            state = (await jetstream.stream_info(name)).state
            there: set[int] = set()
            for seq in range(state.first_seq, state.last_seq + 1):
                try:
                    message = await jetstream.get_msg(name, seq)
                except nats.js.errors.NotFoundError:
                    continue
                assert message.seq == seq
                there.add(seq)
            found[name] = (state, there)
        return found

    server = nats_server("2.15.2", out)
    found = talk(server.url, look)
    for saved in report.streams:
        if saved.name in found:
            state, there = found[saved.name]
            assert there == {seq for name, seq in kept if name == saved.name}, saved.name
            assert (state.first_seq, state.last_seq) == (saved.first_seq, saved.last_seq), saved.name
            assert state.messages == saved.messages
