"""A real server at rest: after a day's work of a client that left, it uses under one per cent of a core."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as Nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StreamConfig

from headrace.testing import TestServer

STREAMS = 300
REST_S = 5.0
SHARE_MAX = 0.01
IDLE_WAIT_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(server: TestServer) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def share_of_a_core(server: TestServer, seconds: float) -> float:
    before, began = cpu_s(server), time.monotonic()
    time.sleep(seconds)  # the time that is measured
    return (cpu_s(server) - before) / (time.monotonic() - began)


async def work(client: Nats) -> None:
    """Streams of every kind, consumers of every kind, publishes, deliveries, acks, expiries, pauses."""
    js = client.jetstream()
    for number in range(STREAMS):
        await js.add_stream(StreamConfig(name=f"IDLE{number}", subjects=[f"idle.{number}"]))
    kinds: dict[str, dict[str, Any]] = {
        "LIMITS": {},
        "QUEUE": {"retention": RetentionPolicy.WORK_QUEUE},
        "INTEREST": {"retention": RetentionPolicy.INTEREST},
        "AGED": {"max_age": 1.0},
        "MEMORY": {"storage": "memory"},
    }
    for name, options in kinds.items():
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.*"], **options))
        durable = ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT, ack_wait=1, max_deliver=2)
        await js.add_consumer(name, durable)
        if name != "QUEUE":
            await js.add_consumer(name, ConsumerConfig(durable_name="none", ack_policy=AckPolicy.NONE))
            push = ConsumerConfig(
                durable_name="push",
                deliver_subject=f"push.{name}",
                deliver_policy=DeliverPolicy.ALL,
                idle_heartbeat=0.5,
                flow_control=True,
                ack_wait=1,
            )
            await js.add_consumer(name, push)
        for number in range(20):
            await js.publish(f"{name}.{number % 3}", b"x" * 100)
        subscription = await js.pull_subscribe_bind("c", name)
        got = await subscription.fetch(10)
        for message in got[:4]:
            await message.ack_sync()
        await got[4].nak(delay=0.2)
        await got[5].term()
        await got[6].in_progress()
        listening = await client.subscribe(f"push.{name}")
        if name != "QUEUE":
            await listening.next_msg(5)
        await listening.unsubscribe()


def test_a_server_at_rest_uses_under_one_per_cent_of_a_core(tmp_path: Path) -> None:
    async def run(server: TestServer) -> None:
        client = await nats.connect(server.url)
        await work(client)
        await client.close()

    with TestServer(tmp_path / "store") as server:
        asyncio.run(run(server))
        share, deadline = 1.0, time.monotonic() + IDLE_WAIT_S
        # Redeliveries, checkpoints and expiries come to an end first.
        while share >= SHARE_MAX and time.monotonic() < deadline:
            share = share_of_a_core(server, REST_S)
        assert share < SHARE_MAX, f"{share:.1%} of a core at rest"
