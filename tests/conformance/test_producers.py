"""An ordinary client that numbers its messages: exactly once, long after the duplicate window, over restarts and kill -9."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Nats
from nats.js import JetStreamContext
from nats.js.api import PubAck, StreamConfig
from nats.js.errors import APIError

from headrace.testing import TestServer

WINDOW_S = 0.2
TASKS, EACH = 4, 25
PRODUCER = "app/ORDERS"


async def publish(js: JetStreamContext, number: int, **more: str) -> PubAck:
    headers = {"Headrace-Producer": PRODUCER, "Headrace-Producer-Seq": str(number), **more}
    return await js.publish("orders.new", b"order %d" % number, headers=headers)


async def publish_all(js: JetStreamContext) -> list[PubAck]:
    """Tasks of one producer, interleaved: each sends its own part of the numbers in its own time."""

    async def task(which: int) -> list[PubAck]:
        return [await publish(js, number) for number in range(which * EACH, (which + 1) * EACH)]

    return [ack for acks in await asyncio.gather(*map(task, range(TASKS))) for ack in acks]


async def ask(client: Nats, what: str, **body: Any) -> dict[str, Any]:
    answer = await client.request(f"$HEADRACE.API.PRODUCER.{what}.ORDERS", json.dumps(body).encode())
    return json.loads(answer.data)


async def first_time(server: TestServer) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(
        StreamConfig(name="ORDERS", subjects=["orders.>"], duplicate_window=WINDOW_S, max_msgs=1000)
    )
    acks = await publish_all(js)
    assert sorted(ack.seq for ack in acks) == list(range(1, TASKS * EACH + 1))
    assert not any(ack.duplicate for ack in acks)
    again = await publish(js, 7, **{"Nats-Msg-Id": "seven"})
    assert again.duplicate and again.seq == 0
    with pytest.raises(APIError) as refused:
        await js.publish("orders.new", b"", headers={"Headrace-Producer": PRODUCER})
    assert refused.value.err_code == 30001
    await js.purge_stream("ORDERS", keep=50)
    await client.close()


async def once_more(server: TestServer, kept: int) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    acks = await publish_all(js)
    assert all(ack.duplicate for ack in acks)
    state = (await js.stream_info("ORDERS")).state
    assert (state.messages, state.last_seq) == (kept, TASKS * EACH + (kept - 50))
    assert not (await publish(js, TASKS * EACH + kept)).duplicate
    shown = await ask(client, "INFO", producer=PRODUCER)
    assert shown["floor"] == TASKS * EACH
    await client.close()


async def raise_floors(server: TestServer) -> None:
    client = await nats.connect(server.url)
    assert (await ask(client, "SETTLE", producer=PRODUCER, below=500))["floor"] == 500
    assert (await publish(client.jetstream(), 499)).duplicate
    assert (await ask(client, "DELETE", producer=PRODUCER))["success"]
    assert (await ask(client, "INFO"))["producers"] == []
    await client.close()


def test_a_client_that_numbers_its_messages(tmp_path: Path) -> None:
    with TestServer(tmp_path / "store") as server:
        asyncio.run(first_time(server))
        for at, end in enumerate((server.stop, server.kill)):
            end()
            asyncio.run(asyncio.sleep(WINDOW_S * 2))
            server.start()
            asyncio.run(once_more(server, 50 + at))
        asyncio.run(raise_floors(server))
