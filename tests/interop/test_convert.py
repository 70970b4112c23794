"""Converted directories in the hands of the real products: each opens what was made for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.ops.conversion import ConversionSpec, convert
from tests.interop.test_rocketmq import SMALL, served
from tests.ops.test_convert import REAL
from tests.support import vectors
from tests.support.jsapi import Api
from tests.support.kafka import Broker
from tests.support.peers import NatsServer
from tests.support.rabbit import RabbitServer
from tests.support.stan import StanClient, StreamingServer
from tests.support.stores import unexpected

NatsServers = Callable[..., NatsServer]
VERSION = "2.15.2"
COUNT = 300


@pytest.fixture(scope="module")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the real nats-server wrote: headers, a gap, a consumer in the middle of its work."""
    path = tmp_path_factory.mktemp("real") / "js"
    server = NatsServer(VERSION, path).start()
    try:
        with Api(server.url) as api:
            api.ask("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], "storage": "file"})
            api.publish_many(
                [
                    (f"orders.{n % 4}", b"order %d" % n, {"Kind": f"k{n}"} if n % 2 else None)
                    for n in range(COUNT)
                ]
            )
            api.remove("ORDERS", 10)
            config = {"durable_name": "WORKER", "ack_policy": "explicit"}
            api.ask("CONSUMER.DURABLE.CREATE.ORDERS.WORKER", {"stream_name": "ORDERS", "config": config})
            taken = api.pull("ORDERS", "WORKER", 5)
            for _, reply in (taken[0], taken[1], taken[3]):
                api.ack(reply)
    finally:
        server.stop()
    return path


def wanted(path: Path) -> list[tuple[int, bytes]]:
    with headrace.open(str(path)) as volume:
        found = [(record.seq, record.data or b"") for record in volume.open("ORDERS")]
    assert len(found) == COUNT - 1
    return found


def test_nats_streaming_to_jetstream(nats_server: NatsServers, tmp_path: Path) -> None:
    """Sequences, times, subjects; where durables and queue groups stand, and what they have not acked."""
    with StreamingServer(tmp_path / "stan") as server, StanClient(server.port, "worker") as client:
        client.publish_many("orders.new", [b"order %d" % n for n in range(60)])
        inbox, acks = client.subscribe("orders.new", durable="d")
        given = [seq for seq, _, _ in client.deliveries(inbox)]
        for seq in given[:40]:
            if seq not in (7, 30):
                client.ack(acks, "orders.new", seq)
        inbox, acks = client.subscribe("orders.new", durable="dq", group="g")
        in_group = [seq for seq, _, _ in client.deliveries(inbox)]
        for seq in in_group:
            client.ack(acks, "orders.new", seq)
        client.publish_many("orders.new", [b"later %d" % n for n in range(5)])
        time.sleep(0.3)
    report = convert(str(tmp_path / "stan"), str(tmp_path / "js"), "jetstream")
    with headrace.open(str(tmp_path / "stan")) as volume:
        channel = volume.open("orders.new")
        before = {record.seq: (record.time_ns, record.data) for record in channel}
        stood = {reader.durable_name: reader for reader in channel.subscriptions.readers()}  # type: ignore[attr-defined]
    assert sorted(report.logs[0].readers) == ["d", "dq"] and set(stood) == {"d", "dq"}
    real = nats_server(VERSION, tmp_path / "js")
    with Api(real.url) as api:
        assert unexpected(real) == []
        found = {m.seq: (m.time_ns, m.data) for m in api.messages("orders_new").values()}
        assert found == before and len(found) == 65
        assert {m.subject for m in api.messages("orders_new").values()} == {"orders.new"}
        for name, reader in stood.items():
            info = api.ask(f"CONSUMER.INFO.orders_new.{name}")
            assert info["delivered"]["stream_seq"] == reader.last_sent
            assert info["ack_floor"]["stream_seq"] == reader.floor
            assert info["num_ack_pending"] == len(reader.pending)
            assert info["num_pending"] == 65 - reader.last_sent
        assert stood["d"].pending[:2] == (7, 30)
        # What was out comes again, once each, then what was never sent.
        taken = [seq for seq, _ in api.pull("orders_new", "d", len(stood["d"].pending))]
        assert taken == list(stood["d"].pending)
        assert api.publish("orders.new", b"goes on") == 66


def test_jetstream_to_nats_streaming(jetstream: Path, tmp_path: Path) -> None:
    report = convert(
        str(jetstream), str(tmp_path / "stan"), "nats_streaming", ConversionSpec(rules=["*=orders"])
    )
    assert report.logs[0].readers == ["WORKER"]
    with StreamingServer(tmp_path / "stan") as server:
        with StanClient(server.port, "reader") as client:
            assert client.read_all("orders") == wanted(jetstream)
        with StanClient(server.port, "WORKER") as client:
            inbox, _ = client.subscribe("orders", durable="WORKER")
            got = [(seq, again) for seq, _, again in client.deliveries(inbox)]
            assert got[:3] == [(3, True), (5, True), (6, False)] and len(got) == COUNT - 1 - 3


def test_jetstream_to_kafka(jetstream: Path, tmp_path: Path) -> None:
    """Into the empty topic of a broker that was stopped; and from there into a store that nats-server opens."""
    with Broker(tmp_path / "logs") as broker:
        broker.create_topic("ORDERS")
    report = convert(str(jetstream), str(tmp_path / "logs"), "kafka")
    assert report.logs[0].target == "ORDERS-0"
    with Broker(tmp_path / "logs") as broker:
        got = broker.consume("ORDERS", COUNT - 1)
        assert [(offset + 1, value.encode()) for offset, value in got] == wanted(jetstream)
        broker.produce("ORDERS", ["after"])
    back = convert(
        str(tmp_path / "logs"), str(tmp_path / "back"), "jetstream", ConversionSpec(rules=["ORDERS-0=ORDERS"])
    )
    assert back.logs[0].messages == COUNT
    server = NatsServer(VERSION, tmp_path / "back").start()
    try:
        with Api(server.url) as api:
            found = list(api.messages("ORDERS").values())
            assert [(m.seq, m.data) for m in found[:-1]] == wanted(jetstream)
            assert {m.subject for m in found[:-1]} == {f"orders.{n}" for n in range(4)}
            assert found[-1].data == b"after" and found[-1].subject == "ORDERS.0"
            assert unexpected(server) == []
    finally:
        server.stop()


def test_jetstream_to_rabbitmq(jetstream: Path, tmp_path: Path) -> None:
    """Into the empty queue of a broker that was stopped."""
    with RabbitServer(tmp_path / "node") as server:
        client = server.client()
        client.declare("ORDERS")
        client.close()
        server.stop()
        convert(str(jetstream), str(server.data_dir), "rabbitmq")
        server.start()
        client = server.client()
        assert client.get_all("ORDERS") == [data for _, data in wanted(jetstream)]
        client.close()


def test_jetstream_to_rocketmq(jetstream: Path, tmp_path: Path) -> None:
    small = {name: str(value) for name, value in SMALL.items()}
    convert(str(jetstream), str(tmp_path / "store"), "rocketmq", ConversionSpec(carry="key", options=small))
    found = served(tmp_path, tmp_path / "store")
    assert [(topic, queue, offset, body.encode()) for topic, queue, offset, _, body in found] == [
        ("ORDERS", 0, at, data) for at, (_, data) in enumerate(wanted(jetstream))
    ]
    assert {key for *_, key, _ in found} == {f"orders.{n}" for n in range(4)}


def test_partitions_into_one_stream(nats_server: NatsServers, tmp_path: Path) -> None:
    """A real broker's topic of three partitions with a group: one stream in the order of time, the group where it stood."""
    with Broker(tmp_path / "logs") as broker:
        broker.create_topic("orders", partitions=3)
        broker.produce("orders", [f"key {n}\tvalue {n}" for n in range(90)], keyed=True)
    with headrace.open(str(tmp_path / "logs"), "rw") as volume:
        sizes = {
            name: volume.open(name).state().messages for name in volume.logs() if name.startswith("orders-")
        }
        assert sum(sizes.values()) == 90 and min(sizes.values()) > 0
        offsets = {name: size // 2 for name, size in sizes.items()}
        volume.write_offsets("billing", offsets)  # type: ignore[attr-defined]
        before = {
            f"{name.replace('-', '.')}": [(record.time_ns, record.data) for record in volume.open(name)]
            for name in sizes
        }
    report = convert(
        str(tmp_path / "logs"), str(tmp_path / "js"), "jetstream", ConversionSpec(rules=["orders-*=ORDERS"])
    )
    assert report.logs[0].readers == ["billing"]
    server = nats_server(VERSION, tmp_path / "js")
    with Api(server.url) as api:
        assert unexpected(server) == []
        found = list(api.messages("ORDERS").values())
        assert [m.time_ns for m in found] == sorted(m.time_ns for m in found) and len(found) == 90
        for subject, wanted in before.items():
            assert [(m.time_ns, m.data) for m in found if m.subject == subject] == wanted
        seen = dict.fromkeys(before, 0)
        open_ones: list[int] = []
        for message in found:
            seen[message.subject] += 1
            if seen[message.subject] > offsets[message.subject.replace(".", "-")]:
                open_ones.append(message.seq)
        info = api.ask("CONSUMER.INFO.ORDERS.billing")
        last = max(set(range(1, 91)) - set(open_ones))
        assert info["delivered"]["stream_seq"] == last
        assert info["num_ack_pending"] == sum(seq < last for seq in open_ones)
        taken = [seq for seq, _ in api.pull("ORDERS", "billing", len(open_ones))]
        assert sorted(taken) == open_ones, "what the group had not acked, and nothing else"


def test_a_queue_into_a_work_queue(nats_server: NatsServers, tmp_path: Path) -> None:
    """Every message is given out once, and is gone when it is acknowledged."""
    with headrace.open(str(tmp_path / "rabbit"), "rw", create=True, layout="rabbitmq") as volume:
        volume.commit([volume.create("jobs").append(headrace.batch("jobs", [b"%d" % n for n in range(20)]))])
    convert(
        str(tmp_path / "rabbit"),
        str(tmp_path / "js"),
        "jetstream",
        ConversionSpec(options={"retention": "workqueue"}),
    )
    server = nats_server(VERSION, tmp_path / "js")
    with Api(server.url) as api:
        assert api.ask("STREAM.INFO.jobs")["config"]["retention"] == "workqueue"
        config = {"durable_name": "W", "ack_policy": "explicit"}
        api.ask("CONSUMER.DURABLE.CREATE.jobs.W", {"stream_name": "jobs", "config": config})
        taken = api.pull("jobs", "W", 20)
        assert [seq for seq, _ in taken] == list(range(1, 21))
        for _, reply in taken[:5]:
            api.ack(reply)
        assert api.state("jobs")["messages"] == 15
        assert unexpected(server) == []


@pytest.mark.parametrize("source", ["kafka", "rocketmq", "rabbitmq"])
def test_from_every_product_to_jetstream(source: str, nats_server: NatsServers, tmp_path: Path) -> None:
    """Directories that the real products wrote, served by nats-server: every message at its sequence."""
    report = convert(str(vectors.ROOT / REAL[source]), str(tmp_path / "js"), "jetstream")
    server = nats_server(VERSION, tmp_path / "js")
    with Api(server.url) as api, headrace.open(str(tmp_path / "js")) as ours:
        assert set(api.names()) == {log.target for log in report.logs}
        for log in report.logs:
            wanted = {record.seq: (record.subject, record.data) for record in ours.open(log.target)}
            assert {m.seq: (m.subject, m.data) for m in api.messages(log.target).values()} == wanted
            state = api.state(log.target)
            assert state["messages"] == log.messages == len(wanted)
            if log.messages:
                assert (state["first_seq"], state["last_seq"]) == (min(wanted), log.last + 1), log
        assert unexpected(server) == []
