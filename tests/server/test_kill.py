"""kill -9 in the middle of publishing and double acking, with a real client: what the server said stays true.

Beside it: an ephemeral push consumer whose subscriber comes back after the restart goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

from headrace.testing import TestServer

KILLS = 3
LIFE_S = (0.5, 1.2)
ACK_WAIT_S = 1.0
WINDOW = 20
GONE = (nats.errors.Error, asyncio.TimeoutError, OSError)


@dataclass
class Said:
    """What the client knows, per stream."""

    stored: dict[int, bytes] = field(default_factory=dict[int, bytes])
    ids: dict[int, str] = field(default_factory=dict[int, str])
    acking: set[int] = field(default_factory=set[int])
    acked: set[int] = field(default_factory=set[int])


async def connect(server: TestServer, **options: Any) -> Nats:
    async def nobody(_error: Exception) -> None:
        """A server that is killed is no news here."""

    return await nats.connect(server.url, error_cb=nobody, **options)


async def publish(js: JetStreamContext, stream: str, said: Said) -> None:
    """Windows of publishes, each with an id and a payload of its own."""

    async def one(data: bytes) -> None:
        msg_id = data.decode()
        ack = await js.publish(f"{stream}.{len(data) % 3}", data, headers={"Nats-Msg-Id": msg_id}, timeout=5)
        assert ack.seq not in said.stored, f"{stream}: sequence {ack.seq} was given out twice"
        said.stored[ack.seq], said.ids[ack.seq] = data, msg_id

    while True:
        await asyncio.gather(
            *(one(b"%s-%x" % (stream.encode(), random.getrandbits(60))) for _ in range(WINDOW))
        )


async def consume(js: JetStreamContext, stream: str, said: Said) -> None:
    """Two thirds are acked twice, the others not at all."""
    subscription = await js.pull_subscribe_bind("c", stream)
    while True:
        try:
            got = await subscription.fetch(WINDOW, timeout=2)
        except TimeoutError:  # the client raises its own kind or the plain one, as the 408 comes
            continue
        for message in got:
            seq = message.metadata.sequence.stream
            assert seq not in said.acked, f"{stream} {seq} was acked and came again"
        await asyncio.gather(*(ack(each, said) for each in got if each.metadata.sequence.stream % 3))


async def ack(message: Msg, said: Said) -> None:
    seq = message.metadata.sequence.stream
    said.acking.add(seq)
    await message.ack_sync(timeout=5)
    said.acked.add(seq)


async def a_life(server: TestServer, said: dict[str, Said]) -> None:
    """Work until the server is killed."""
    client = await connect(server, allow_reconnect=False)
    js = client.jetstream()
    tasks = [
        asyncio.create_task(work(js, name, each))
        for name, each in said.items()
        for work in (publish, consume)
    ]
    await asyncio.sleep(random.uniform(*LIFE_S))
    await asyncio.to_thread(server.kill)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, (*GONE, asyncio.CancelledError)), result
    with contextlib.suppress(*GONE):
        await client.close()


async def drain(js: JetStreamContext, stream: str, consumer: str) -> dict[int, bytes]:
    """Everything that a consumer gets."""
    subscription = await js.pull_subscribe_bind(consumer, stream)
    found: dict[int, bytes] = {}
    with contextlib.suppress(TimeoutError):
        while True:
            for message in await subscription.fetch(500, timeout=0.5):
                found[message.metadata.sequence.stream] = message.data
                await message.ack()
    return found


async def check(server: TestServer, said: dict[str, Said]) -> None:
    client = await connect(server)
    js = client.jetstream()
    await asyncio.sleep(ACK_WAIT_S + 0.2)
    for stream, each in said.items():
        got = await drain(js, stream, "c")
        assert not each.acked & got.keys(), f"{stream}: {each.acked & got.keys()} were acked and came again"
        owed = each.stored.keys() - each.acking
        assert owed <= got.keys(), f"{stream}: {len(owed - got.keys())} did not come"
        assert all(got[seq] == each.stored[seq] for seq in owed)
        info = await js.stream_info(stream)
        assert info.state.last_seq >= max(each.stored)
        last = max(each.ids)
        again = await js.publish(f"{stream}.0", b"again", headers={"Nats-Msg-Id": each.ids[last]})
        assert again.duplicate and again.seq == last
        fresh = await js.publish(f"{stream}.0", b"fresh")
        assert fresh.seq not in each.stored and fresh.seq > max(each.stored)
    await js.add_consumer("L", ConsumerConfig(durable_name="all", ack_policy=AckPolicy.NONE))
    everything = await drain(js, "L", "all")
    lost = said["L"].stored.keys() - everything.keys()
    assert not lost, f"{len(lost)} of {len(said['L'].stored)} acknowledged messages are lost"
    assert all(everything[seq] == data for seq, data in said["L"].stored.items())
    await client.close()


@pytest.mark.slow
def test_kill_in_the_middle_of_everything(tmp_path: Path, headrace_seed: int) -> None:
    random.seed(headrace_seed)

    async def run(server: TestServer) -> None:
        client = await connect(server)
        js = client.jetstream()
        for stream, retention in (("L", RetentionPolicy.LIMITS), ("W", RetentionPolicy.WORK_QUEUE)):
            await js.add_stream(StreamConfig(name=stream, subjects=[f"{stream}.*"], retention=retention))
            config = ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S)
            await js.add_consumer(stream, config)
        await client.close()
        said = {"L": Said(), "W": Said()}
        for _ in range(KILLS):
            await a_life(server, said)
            await asyncio.to_thread(server.start)
        await check(server, said)
        assert all(len(each.stored) > 100 and len(each.acked) > 20 for each in said.values())

    with TestServer(tmp_path / "store") as server:
        asyncio.run(run(server))


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_an_ephemeral_push_consumer_outlives_a_restart(tmp_path: Path, end: str) -> None:
    """The client comes back by itself: the unacked message comes again, then what is new, with the numbers going on."""

    async def run(server: TestServer) -> None:
        client = await connect(server, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.*"]))
        config = ConsumerConfig(ack_wait=1.0)
        subscription = await js.subscribe("s.*", manual_ack=True, config=config)
        await js.publish("s.1", b"acked")
        await js.publish("s.1", b"unacked")
        first, second = [await subscription.next_msg(5) for _ in range(2)]
        assert (first.data, second.data) == (b"acked", b"unacked")
        await first.ack_sync()
        name = (await subscription.consumer_info()).name
        await asyncio.to_thread(server.kill if end == "kill" else server.stop)
        await asyncio.to_thread(server.start)
        again = await subscription.next_msg(15)
        assert again.data == b"unacked"
        assert again.metadata.consumer == name and again.metadata.sequence.consumer >= 2
        await again.ack_sync()
        await js.publish("s.1", b"new")
        fresh = await subscription.next_msg(5)
        assert (fresh.data, fresh.metadata.num_delivered) == (b"new", 1)
        await fresh.ack_sync()
        info = await subscription.consumer_info()
        assert (info.name, info.num_ack_pending, info.ack_floor.stream_seq) == (name, 0, 3)
        await client.close()

    with TestServer(tmp_path / "store") as server:
        asyncio.run(run(server))


@pytest.mark.parametrize(
    ("retention", "policy"),
    [
        (RetentionPolicy.LIMITS, AckPolicy.EXPLICIT),
        (RetentionPolicy.LIMITS, AckPolicy.ALL),
        (RetentionPolicy.WORK_QUEUE, AckPolicy.EXPLICIT),
        (RetentionPolicy.INTEREST, AckPolicy.EXPLICIT),
        (RetentionPolicy.INTEREST, AckPolicy.ALL),
    ],
)
def test_acks_to_the_next_process_are_kept_or_not_confirmed(
    tmp_path: Path, retention: RetentionPolicy, policy: AckPolicy
) -> None:
    """Deliveries, kill, then acks of them to the process that may have forgotten them: none that was confirmed comes again."""

    async def run(server: TestServer) -> None:
        client = await connect(server)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s"], retention=retention))
        config = ConsumerConfig(durable_name="c", ack_policy=policy, ack_wait=ACK_WAIT_S)
        await js.add_consumer("S", config)
        for _ in range(30):
            await js.publish("s", b"x")
        subscription = await js.pull_subscribe_bind("c", "S")

        def journalled() -> list[bytes]:
            kept = [*tmp_path.rglob("consumers.*.journal"), *tmp_path.rglob("o.dat")]
            return [each.read_bytes() for each in kept]

        before = journalled()
        old = await subscription.fetch(10)
        async with asyncio.timeout(10):
            while journalled() == before:
                await asyncio.sleep(0.02)
        old += await subscription.fetch(10)
        await client.close()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)

        client = await connect(server)
        js = client.jetstream()
        confirmed: set[int] = set()
        for message in reversed(old) if policy is AckPolicy.EXPLICIT else old:
            with contextlib.suppress(nats.errors.TimeoutError):
                await client.request(message.reply, b"+ACK", timeout=0.3)
                confirmed.add(message.metadata.sequence.stream)
        await asyncio.sleep(ACK_WAIT_S + 0.2)
        came = await drain(js, "S", "c")
        assert not confirmed & came.keys(), f"{confirmed & came.keys()} were confirmed and came again"
        assert confirmed | came.keys() == set(range(1, 31)), "nothing is passed over"
        assert len(confirmed) >= 10, "what the journal knows is confirmed"
        await client.close()

    with TestServer(tmp_path / "store") as server:
        asyncio.run(run(server))
