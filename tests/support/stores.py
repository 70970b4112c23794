"""Stores that have been through everything, and what to compare of them with a real server.

volume = build(path); expected = look(volume); volume.close()
… start a server on path …
check_there(api, expected)
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.config.meta_json import Era, lost_in
from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.layouts.base import LogState
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.layouts.stream_store import ConsumerStore
from headrace.units import parse_time_ns
from tests.support.jsapi import Api, complaints, position_of
from tests.support.peers import NatsServer

HEADER = b"NATS/1.0\r\nA: one\r\nA: two\r\n\r\n"
# We keep no wheel of TTLs beside the messages; the server says so and reads the headers.
NO_WHEEL = "TTL state is outdated; attempting to recover using linear scan"
TTL_HEADER = b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n"


def build(path: Path) -> JetStreamVolume:
    """A volume with everything a stream can have been through; open."""
    rng = random.Random(7)
    volume = JetStreamVolume(str(path), mode="rw", create=True)
    # Small blocks: max_bytes of 100,000 makes them 32,000 bytes.
    plain = volume.create("PLAIN", subjects=["plain.>"], max_bytes=100_000_000)
    plain.block_bytes = 8000
    fill(plain, "plain", 700, rng)
    for seq in (1, 2, 3, 50, 51, 300, 301, 302, 699, 700):
        plain.remove_msg(seq)
    for seq in (60, 250, 500):
        plain.erase_msg(seq)
    plain.purge_ex("plain.3", 0, 4)
    plain.compact(20)
    packed = volume.create("PACKED", subjects=["packed.>"], compression="s2")
    packed.block_bytes = 6000
    fill(packed, "packed", 500, rng)
    packed.remove([5, 6, 7, 200, 499])
    packed.erase_msg(100)
    limits = volume.create("LIMITS", subjects=["limits.>"], max_msgs=150, max_msgs_per_subject=40)
    limits.block_bytes = 4000
    fill(limits, "limits", 400, rng)
    bytes_ = volume.create("BYTES", subjects=["bytes.>"], max_bytes=20_000)
    bytes_.block_bytes = 4000
    fill(bytes_, "bytes", 400, rng)
    empty = volume.create("EMPTY", subjects=["empty.>"])
    fill(empty, "empty", 30, rng)
    empty.purge()
    emptied = volume.create("EMPTIED", subjects=["emptied.>"])
    fill(emptied, "emptied", 3, rng)
    emptied.remove([1, 2, 3])
    volume.create("NEWBORN", subjects=["newborn.>"])
    far = volume.create("FAR", subjects=["far.>"], first_seq=1_000_000)
    fill(far, "far", 10, rng)
    far.store_raw_msg("far.hole", None, b"behind a wide hole", 3_000_000, far.clock())
    tail = volume.create("TAIL", subjects=["tail.>"])
    fill(tail, "tail", 5, rng)
    tail.store_raw_msg("tail.far", None, b"removed again", 100_000, tail.clock())
    tail.remove_msg(100_000)
    ahead = volume.create("AHEAD", subjects=["ahead.>"])
    fill(ahead, "ahead", 5, rng)
    ahead.compact(90)
    short = volume.create("CUT", subjects=["cut.>"])
    short.block_bytes = 2000
    fill(short, "cut", 100, rng)
    short.remove([40, 41])
    short.truncate(63)
    skipped = volume.create("SKIPPED", subjects=["skipped.>"])
    fill(skipped, "skipped", 3, rng)
    skipped.skip_msg()
    skipped.skip_msg(9)
    ttl = volume.create("TTL", subjects=["ttl.>"], allow_msg_ttl=True)
    for number in range(20):
        ttl.store_msg(f"ttl.{number}", TTL_HEADER if number % 2 else None, b"x")
    queue = volume.create("QUEUE", subjects=["queue.>"], retention="workqueue")
    fill(queue, "queue", 40, rng)
    worker = queue.consumer_store("WORKER", durable("WORKER"))
    deliver(worker, queue, range(1, 21))
    acked = [1, 2, 3, 7, 9, 20]
    for seq in acked:
        worker.update_acks(seq, seq)
    queue.remove(acked)
    interest = volume.create("INTEREST", subjects=["interest.>"], retention="interest")
    fill(interest, "interest", 30, rng)
    for name in ("FIRST", "SECOND"):
        reader = interest.consumer_store(name, durable(name))
        deliver(reader, interest, range(1, 11 if name == "FIRST" else 16))
    for name, seqs in (("FIRST", [1, 2, 3, 4, 6]), ("SECOND", [1, 2, 3, 5])):
        for seq in seqs:
            interest.consumers.get(name).update_acks(seq, seq)
    interest.remove([1, 2, 3])
    reader = plain.consumer_store("READER", durable("READER"))
    live = [record.seq for record in plain.read(0, 12)]
    for number, seq in enumerate(live, 1):
        reader.update_delivered(number, seq, 1, plain.clock())
    reader.update_delivered(13, live[4], 2, plain.clock())
    reader.update_delivered(14, live[4], 3, plain.clock())
    reader.update_acks(1, live[0])
    reader.update_acks(2, live[1])
    reader.update_acks(6, live[5])
    everything = ConsumerConfig(durable_name="ALL", ack_policy="all").filled()
    deliver(packed.consumer_store("ALL", everything), packed, [1, 2, 3, 4, 8, 9])
    packed.consumers.get("ALL").update_acks(4, 4)
    none = ConsumerConfig(durable_name="NONE", ack_policy="none").filled()
    deliver(packed.consumer_store("NONE", none), packed, [1, 2, 3])
    return volume


def fill(store: FileStreamStore, prefix: str, count: int, rng: random.Random) -> None:
    for number in range(count):
        header = HEADER if number % 4 == 1 else None
        store.store_msg(f"{prefix}.{number % 7}", header, rng.randbytes(rng.randrange(0, 90)))


def durable(name: str) -> ConsumerConfig:
    return ConsumerConfig(durable_name=name, ack_policy="explicit", ack_wait=3600 * 10**9).filled()


def deliver(consumer: ConsumerStore, store: FileStreamStore, seqs: Iterable[int]) -> None:
    for number, seq in enumerate(seqs, 1):
        consumer.update_delivered(number, seq, 1, store.clock())


class Seen:
    """What a store of ours holds, in the server's terms."""

    def __init__(self, store: FileStreamStore) -> None:
        self.state = store.state()
        self.messages = {r.seq: (r.subject, r.headers, r.data, r.time_ns) for r in store}
        self.consumers = {
            name: position_of(store.consumers.state_of(name)) for name in store.consumers.names()
        }


def look(volume: JetStreamVolume) -> dict[str, Seen]:
    return {name: Seen(volume.open(name)) for name in volume.logs()}


def unexpected(server: NatsServer, *but: str) -> list[str]:
    return [line for line in complaints(server) if not any(part in line for part in (NO_WHEEL, *but))]


def stream_state(api: Api, stream: str, version: str = "2.15.2") -> dict[str, Any]:
    """The state of a stream as a server tells it, without the oddities of its version."""
    # Old servers leave the number out when they are asked for the list.
    state = api.state(stream) | api.ask(f"STREAM.INFO.{stream}")["state"]
    newborn, old = state["last_seq"] == 0, version != "2.15.2"
    found = {
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": 0 if newborn else state["first_seq"],
        "last_seq": state["last_seq"],
        "first": time_or_none(state["first_ts"]),
        "last": time_or_none(state["last_ts"]),
        "num_subjects": state.get("num_subjects", 0),
        "num_deleted": 0 if newborn else state.get("num_deleted", 0),
        "deleted": [] if newborn else sorted(state.get("deleted") or []),
        "consumers": state["consumer_count"],
        "lost": state.get("lost"),
    }
    if old and not state["messages"]:
        found["first"] = None  # 1970 in the old ones
    return found


def time_or_none(text: str) -> int | None:
    return None if text.startswith(("0001-01-01", "1970-01-01T00:00:00Z")) else parse_time_ns(text)


def in_their_terms(state: LogState) -> dict[str, Any]:
    return {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "first": state.first_time_ns,
        "last": state.last_time_ns,
        "num_subjects": state.num_subjects,
        "num_deleted": state.num_deleted,
        "deleted": list(state.deleted),
        "consumers": state.consumers,
        "lost": None,
    }


def check_there(
    api: Api, expected: dict[str, Seen], version: str = "2.15.2", *, from_archive: bool = False
) -> None:
    """Everything that we hold is in the server, and nothing else."""
    assert set(api.names()) >= set(expected)
    for name, seen in expected.items():
        far = seen.state.num_deleted > 10_000
        found = stream_state(api, name, version)
        wanted = in_their_terms(seen.state)
        if version == "2.6.5":
            # It counts neither subjects nor gaps, and takes up no pull consumer but with explicit acks.
            wanted["num_subjects"], found["num_deleted"] = 0, wanted["num_deleted"]
            if name == "PACKED":
                wanted["consumers"] -= 2
        if from_archive and seen.state.last_seq not in seen.messages:
            wanted["last"] = found["last"]  # the server takes it from the last message alone
        if far:
            wanted["deleted"] = found["deleted"] = []
        assert found == wanted, name
        sequences = (
            list(seen.messages) if far else range(max(seen.state.first_seq, 1), seen.state.last_seq + 1)
        )
        answers = api.get_many(name, list(sequences))
        messages = {s: (m.subject, m.headers, m.data, m.time_ns) for s, m in answers.items() if m}
        assert messages == seen.messages, name
        if version != "2.6.5" or name != "PACKED":
            positions = {each: api.consumer_position(name, each) for each in seen.consumers}
            assert positions == seen.consumers, name


def publish_on(api: Api, expected: dict[str, Seen]) -> None:
    for name, seen in expected.items():
        subject = f"{name.lower()}.more"
        assert api.publish(subject, b"goes on") == seen.state.last_seq + 1, name


def same(one: dict[str, Seen], other: dict[str, Seen]) -> None:
    assert sorted(one) == sorted(other)
    for name in one:
        assert one[name].state == other[name].state, name
        assert one[name].messages == other[name].messages, name
        assert one[name].consumers == other[name].consumers, name


def create_there(api: Api, era: Era = "2.15") -> dict[tuple[str, str], tuple[int, ...]]:
    """Streams, removals and consumers through the API; returns the positions of the consumers."""
    rng = random.Random(11)
    streams = [
        StreamConfig(name="PLAIN", subjects=("plain.>",)),
        StreamConfig(name="SMALL", subjects=("small.>",), max_bytes=100_000),
        StreamConfig(name="PACKED", subjects=("packed.>",), max_bytes=110_000, compression="s2"),
        StreamConfig(name="LIMITS", subjects=("limits.>",), max_msgs=50, max_msgs_per_subject=9),
        StreamConfig(name="EMPTY", subjects=("empty.>",)),
        StreamConfig(name="NEWBORN", subjects=("newborn.>",)),
        StreamConfig(name="FAR", subjects=("far.>",), first_seq=1_000_000),
        StreamConfig(name="TTL", subjects=("ttl.>",), allow_msg_ttl=True),
        StreamConfig(name="QUEUE", subjects=("queue.>",), retention="workqueue"),
        StreamConfig(name="INTEREST", subjects=("interest.>",), retention="interest"),
    ]
    if era != "2.15":
        streams = [each for each in streams if not lost_in(each.filled(), era)]
    for config in streams:
        api.create(config.filled(), era)
    api.consumer("INTEREST", durable("FIRST"), era)
    for config in streams:
        prefix = config.name.lower()
        count = {"SMALL": 300, "PACKED": 400, "NEWBORN": 0}.get(config.name, 120)
        size = 300 if count > 200 else 40
        ttl = {"Nats-TTL": "1h"} if config.name == "TTL" else None
        api.publish_many(
            (
                f"{prefix}.{n % 13}",
                rng.randbytes(rng.randrange(size)),
                ttl or ({"A": "b"} if n % 5 == 0 else None),
            )
            for n in range(count)
        )
    for seq in (3, 4, 119, 120):
        api.remove("PLAIN", seq)
    for seq in (1, 60):
        api.remove("PLAIN", seq, erase=True)
    api.purge("PLAIN", filter="plain.5", keep=2)
    api.purge("EMPTY")
    if era == "2.15":
        api.purge("FAR", seq=1_000_020)
    api.consumer("QUEUE", durable("WORKER"), era)
    for place, (_, ack) in enumerate(api.pull("QUEUE", "WORKER", 9)):
        if place in (0, 1, 4):
            api.ack(ack)
    for place, (_, ack) in enumerate(api.pull("INTEREST", "FIRST", 9)):
        if place != 3:
            api.ack(ack)
    api.consumer("PLAIN", durable("READER"), era)
    taken = api.pull("PLAIN", "READER", 5)
    api.ack(taken[0][1])
    api.ack(taken[2][1], b"-NAK")
    api.pull("PLAIN", "READER", 1)
    known = (("QUEUE", "WORKER"), ("INTEREST", "FIRST"), ("PLAIN", "READER"))
    return {(stream, name): api.consumer_position(stream, name) for stream, name in known}
