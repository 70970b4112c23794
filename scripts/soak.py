"""`make soak`: many clients, random disconnects, kill -9 and restart again and again; then everything is counted.

    publishers   publish with an id of their own and note every acknowledged one
    workers      fetch from one durable consumer, confirm each message with a double ack and note it
    the reaper   kills the server every now and then and starts it again on the same directory

At the end: every acknowledged message is in the stream, none that was confirmed came again afterwards, memory stayed flat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nats
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig

import headrace
from headrace.testing import TestServer

STREAM, SUBJECT, DURABLE = "SOAK", "soak", "workers"
FETCH = 20
WAIT_S = 2.0
RSS_GROWTH_MAX = 96 << 20


@dataclass
class Notes:
    """What clients were told."""

    stored: dict[str, int] = field(default_factory=dict)
    confirmed: dict[int, float] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    given: int = 0
    disconnects: int = 0
    kills: int = 0
    rss: list[int] = field(default_factory=list)


async def client_of(server: TestServer) -> nats.NATS:
    async def quiet(_error: Exception) -> None:
        return None

    return await nats.connect(
        server.url, allow_reconnect=False, connect_timeout=2, error_cb=quiet, max_outstanding_pings=5
    )


async def publisher(
    number: int, server: TestServer, notes: Notes, until: float, chance: random.Random
) -> None:
    """Publishes what it has until it is acknowledged; connects anew now and then."""
    count = 0
    while time.monotonic() < until:
        with contextlib.suppress(NatsError, OSError, asyncio.TimeoutError):
            client = await client_of(server)
            try:
                stream = client.jetstream(timeout=WAIT_S)
                for _ in range(chance.randrange(5, 200)):
                    own = f"{number}-{count}"
                    ack = await stream.publish(
                        f"{SUBJECT}.{number}", own.encode(), headers={"Nats-Msg-Id": own}
                    )
                    notes.stored[own] = ack.seq
                    count += 1
                    await asyncio.sleep(chance.uniform(0, 0.2))
                    if time.monotonic() > until:
                        break
            finally:
                notes.disconnects += 1
                await abandon(client)
        await asyncio.sleep(chance.uniform(0, 0.3))


async def worker(server: TestServer, notes: Notes, until: float, chance: random.Random) -> None:
    """Fetches and confirms. A message that was confirmed before this client listened must not come.

    Not before it was asked for: what an earlier fetch of the same client did not wait for lies in its queue, and
    may have been given to another one meanwhile.
    """
    while time.monotonic() < until:
        with contextlib.suppress(NatsError, OSError, asyncio.TimeoutError):
            client = await client_of(server)
            joined = time.monotonic()
            try:
                puller = await client.jetstream(timeout=WAIT_S).pull_subscribe_bind(DURABLE, STREAM)
                for _ in range(chance.randrange(3, 60)):
                    if time.monotonic() > until:
                        break
                    for message in await puller.fetch(FETCH, timeout=1):
                        seq = message.metadata.sequence.stream
                        notes.given += 1
                        if notes.confirmed.get(seq, joined) < joined:
                            notes.again.append(seq)
                        if chance.random() < 0.02:
                            continue  # forgets one: it must come again
                        await message.ack_sync(timeout=WAIT_S)
                        notes.confirmed.setdefault(seq, time.monotonic())
            finally:
                notes.disconnects += 1
                await abandon(client)
        await asyncio.sleep(chance.uniform(0, 0.3))


async def abandon(client: nats.NATS) -> None:
    with contextlib.suppress(Exception):
        await asyncio.wait_for(client.close(), 2)


async def reaper(server: TestServer, notes: Notes, until: float, every_s: float) -> None:
    """kill -9, start again."""
    while time.monotonic() + every_s < until:
        await asyncio.sleep(every_s)
        notes.rss.append(rss(server.pid))
        await asyncio.to_thread(server.kill)
        notes.kills += 1
        await asyncio.to_thread(server.start)


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def soak(server: TestServer, clients: int, seconds: float, kill_every_s: float, seed: int) -> Notes:
    notes, until = Notes(), time.monotonic() + seconds
    client = await client_of(server)
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=[f"{SUBJECT}.>"])
    config = ConsumerConfig(
        durable_name=DURABLE, ack_policy=AckPolicy.EXPLICIT, ack_wait=5, max_ack_pending=20_000
    )
    await stream.add_consumer(STREAM, config)
    await client.close()
    workers = max(clients // 10, 1)
    tasks = [
        publisher(number, server, notes, until, random.Random(seed + number))
        for number in range(clients - workers)
    ]
    tasks += [worker(server, notes, until, random.Random(seed - number)) for number in range(1, workers + 1)]
    await asyncio.gather(*tasks, reaper(server, notes, until, kill_every_s))
    notes.rss.append(rss(server.pid))
    return notes


def problems_of(notes: Notes, directory: Path) -> list[str]:
    """What the store holds against what clients were told."""
    found: list[str] = []
    with headrace.open(str(directory)) as volume:
        held = {(record.data or b"").decode(): record.seq for record in volume.open(STREAM)}
    missing = [own for own, seq in notes.stored.items() if held.get(own) != seq]
    if missing:
        found.append(
            f"{len(missing)} acknowledged messages are lost or have another sequence, as {missing[:3]}"
        )
    if notes.again:
        found.append(f"{len(notes.again)} confirmed messages came again, as {notes.again[:3]}")
    if len(notes.rss) > 1 and max(notes.rss[1:]) - notes.rss[0] > RSS_GROWTH_MAX:
        found.append(f"memory grew: {[each >> 20 for each in notes.rss]} MiB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    given = parser.parse_args()
    print(f"soak: seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as directory:
        store = Path(directory) / "store"
        with TestServer(store) as server:
            notes = asyncio.run(soak(server, given.clients, given.minutes * 60, given.kill_every, given.seed))
        problems = problems_of(notes, store)
    print(
        f"soak: {len(notes.stored)} acknowledged, {notes.given} given, {len(notes.confirmed)} confirmed, "
        f"{notes.disconnects} disconnects, {notes.kills} kills, memory {[each >> 20 for each in notes.rss]} MiB"
    )
    for problem in problems:
        print(f"soak: {problem}")
    enough = len(notes.stored) > 100 and len(notes.confirmed) > 50 and notes.kills > 0
    if not enough:
        print("soak: too little happened to prove anything")
    return 1 if problems or not enough else 0


if __name__ == "__main__":
    sys.exit(main())
