"""Snapshots and consumer states with real servers: what we write, they take; what they give, we read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from headrace._core import Batch, Disk
from headrace.config.meta_json import encode_config
from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.layouts.base import ConsumerState, LogState, Pending, SequencePair
from headrace.layouts.jetstream.consumers.consumers import Consumers
from headrace.layouts.jetstream.snapshots import archive
from headrace.layouts.jetstream.snapshots.archive import Document
from headrace.layouts.jetstream.snapshots.snapshot_json import (
    decode_log_state,
    decode_snapshot_consumer,
    encode_log_state,
    encode_snapshot_consumer,
)
from tests.support import vectors
from tests.support.peers import NatsServer

NatsServers = Callable[..., NatsServer]
CHUNK_BYTES = 64 << 10
T = 1_700_000_000_000_000_000


async def ask(client: Client, subject: str, body: bytes = b"") -> dict[str, Any]:
    answer = json.loads((await client.request(f"$JS.API.{subject}", body, timeout=10)).data)
    assert "error" not in answer, answer
    return answer


async def restore(client: Client, config: bytes, state: bytes, chunks: Iterable[bytes]) -> dict[str, Any]:
    """Give a snapshot to a server; returns its answer, a stream info."""
    name = json.loads(config)["name"]
    request = b'{"config":%s,"state":%s}' % (config, state)
    target = (await ask(client, f"STREAM.RESTORE.{name}", request))["deliver_subject"]
    data = b"".join(chunks)
    for at in range(0, len(data), CHUNK_BYTES):
        answer = await client.request(target, data[at : at + CHUNK_BYTES], timeout=10)
        assert answer.data == b"", answer.data
    answer = json.loads((await client.request(target, b"", timeout=10)).data)
    assert "error" not in answer, answer
    return answer


async def snapshot(client: Client, name: str) -> bytes:
    """Ask a server for a snapshot of a stream."""
    inbox = client.new_inbox()
    chunks = await client.subscribe(inbox)
    await client.flush()
    await ask(client, f"STREAM.SNAPSHOT.{name}", json.dumps({"deliver_subject": inbox}).encode())
    data = b""
    while chunk := await chunks.next_msg(timeout=10):
        if not chunk.data:
            return data
        data += chunk.data
        if chunk.reply:
            await client.publish(chunk.reply, b"")
    raise AssertionError("the snapshot did not end")


def position(info: dict[str, Any]) -> tuple[int, ...]:
    pairs = (info["delivered"], info["ack_floor"])
    return (
        *(p[key] for p in pairs for key in ("consumer_seq", "stream_seq")),
        info["num_ack_pending"],
        info["num_redelivered"],
    )


def expected_position(state: ConsumerState) -> tuple[int, ...]:
    pairs = (state.delivered, state.ack_floor)
    return (*(n for p in pairs for n in (p.consumer, p.stream)), len(state.pending), len(state.redelivered))


def test_an_archive_of_ours_is_restored_and_given_back_by_the_real_server(nats_server: NatsServers) -> None:
    config = StreamConfig(name="R", subjects=("r.*",)).filled()
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    batch = Batch.build(
        ["r.a", "r.b", "r.a"], [b"1", b"", b"3"], [None, header, None], [T, T + 1, T + 5], [3, 5, 6]
    )
    state = LogState(3, 123, 3, 6, T, T + 5, num_subjects=2, num_deleted=1, consumers=1)
    consumer = ConsumerConfig(durable_name="C", ack_policy="explicit").filled()
    stands = ConsumerState(SequencePair(2, 5), SequencePair(1, 3), {5: Pending(2, T)}, {5: 1})
    document = encode_snapshot_consumer(consumer, stands, 6)
    plain = archive.write_archive(encode_log_state(state), [("C", document)], [batch], T)

    async def run() -> bytes:
        client = await nats.connect(nats_server("2.15.2").url)
        info = await restore(client, encode_config(config), encode_log_state(state), archive.compress(plain))
        found = {
            key: info["state"][key] for key in ("messages", "bytes", "first_seq", "last_seq", "num_deleted")
        }
        assert found == {"messages": 3, "bytes": 123, "first_seq": 3, "last_seq": 6, "num_deleted": 1}
        assert position(await ask(client, "CONSUMER.INFO.R.C")) == expected_position(stands)
        data = await snapshot(client, "R")
        await client.close()
        return data

    found = list(archive.read_archive(archive.decompress([asyncio.run(run())])))
    documents = [each for each in found if isinstance(each, Document)]
    records = [record for each in found if not isinstance(each, Document) for record in each]
    assert decode_log_state(documents[0].data).last_seq == 6
    assert decode_snapshot_consumer("C", documents[1].data)[1].redelivered == {5: 1}
    assert [(r.seq, r.time_ns, r.subject, r.headers, r.data) for r in records] == [
        (3, T, "r.a", None, b"1"),
        (5, T + 1, "r.b", header, b""),
        (6, T + 5, "r.a", None, b"3"),
    ]


@pytest.mark.parametrize("version", ["2.6.5", "2.9.10", "2.15.2"])
def test_a_tar_of_ours_is_restored_by_every_server(nats_server: NatsServers, version: str) -> None:
    place = vectors.ROOT / "jetstream/2.6.5/snapshots"
    answer = json.loads((place / "ORDERS.json").read_text())
    files = list(archive.read_tar(archive.decompress([(place / "ORDERS.snapshot").read_bytes()])))
    chunks = archive.compress(archive.write_tar(files, T))

    async def run() -> dict[str, Any]:
        client = await nats.connect(nats_server(version).url)
        config, state = (json.dumps(answer[key]).encode() for key in ("config", "state"))
        info = await restore(client, config, state, chunks)
        await client.close()
        return info["state"]

    state = asyncio.run(run())
    for key in ("messages", "bytes", "first_seq", "last_seq", "last_ts", "consumer_count"):
        assert state[key] == answer["state"][key]


@pytest.mark.parametrize("version", ["2.6.5", "2.9.10", "2.15.2"])
def test_real_servers_take_up_every_consumer_where_we_left_it(
    nats_server: NatsServers, version: str, tmp_path: Path
) -> None:
    store = vectors.load("jetstream", version).copy(tmp_path)
    expected: dict[tuple[str, str], ConsumerState] = {}
    for folder in sorted((store / "jetstream/$G/streams").iterdir()):
        consumers = Consumers(Disk.real(), str(folder), folder.name)
        if folder.name == "ORDERS":
            consumers.get("ALL").update_acks(5, 8)
        for name in consumers.names():
            if (folder / "obs" / name / "o.dat").exists():
                expected[folder.name, name] = consumers.state_of(name)
        consumers.stop()

    async def run() -> None:
        client = await nats.connect(nats_server(version, store).url)
        for (stream, name), state in expected.items():
            info = await ask(client, f"CONSUMER.INFO.{stream}.{name}")
            if version == "2.9.10" and not state.delivered.consumer:
                continue  # 2.9 shows a floor of 0 for a consumer that delivered nothing
            assert position(info) == expected_position(state), (stream, name)
        await client.close()

    assert len(expected) >= 5
    asyncio.run(run())
