"""The real nats-streaming-server 0.25.6 and Headrace on the same directory, both ways."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace._core import Batch
from headrace.cli.main import run
from headrace.errors import StoreLocked
from headrace.layouts.nats_streaming.layout import LAYOUT
from headrace.layouts.nats_streaming.protos import ClientInfo, SubState
from headrace.layouts.nats_streaming.volume import StreamingVolume
from tests.support.peers import PeerFailed
from tests.support.stan import StanClient, StreamingServer
from tests.support.streaming import CASES, content, copy, open_rw

REPLY = b"NATS/1.0\r\nNats-Streaming-Reply: an.swer\r\n\r\n"


def payloads(count: int) -> list[bytes]:
    return [b"" if n % 9 == 0 else hashlib.sha256(b"%d" % n).digest() * (n % 6) for n in range(count)]


def test_the_server_serves_what_we_wrote(tmp_path: Path) -> None:
    """Messages over slices, gaps, replies, durables in the middle of their work, a queue group's shadow, a client."""
    store, data = tmp_path / "ds", payloads(60)
    with open_rw(str(store), slice_max_msgs=7) as volume:
        log = volume.create("orders")
        volume.commit([log.append(Batch.build("orders", data))])
        later = Batch.build("orders", [b"x70", b"x80"], headers=[REPLY, None], positions=[70, 80])
        volume.commit([log.append(later, keep_positions=True)])
        subs = log.subscriptions
        durable = SubState(
            client_id="worker", inbox="i", ack_inbox="a", max_in_flight=100, ack_wait_s=30, durable_name="d", is_durable=True
        )  # fmt: skip
        one = subs.create(durable)
        subs.sent(one, [*range(1, 58)])
        subs.acked(one, [n for n in range(1, 58) if n not in (3, 55)])
        subs.update(subs.get(one).state.with_(is_closed=True, last_sent=57))
        shadow = subs.create(
            SubState(
                queue_group="dq:g", inbox="i", ack_inbox="b", max_in_flight=9, ack_wait_s=30, is_durable=True
            )
        )
        subs.sent(shadow, [*range(1, 60)])
        subs.acked(shadow, [n for n in range(1, 60) if n != 7])
        volume.clients.add(
            ClientInfo(
                id="known", heartbeat_inbox="h", conn_id=b"c", protocol=1, ping_interval_s=5, ping_max_out=9
            )
        )
        volume.create("only.subs")
        wanted = content(volume, "orders")
        reader_before = {r.name: (r.last_sent, r.pending) for r in subs.readers()}
    with StreamingServer(store) as server:
        with StanClient(server.port, "reader") as client:
            assert dict(client.read_all("orders")) == wanted
            client.publish("orders", b"from the server")
        with StanClient(server.port, "worker") as client:
            inbox, acks = client.subscribe("orders", durable="d")
            got = [*client.deliveries(inbox)]
            assert [(seq, again) for seq, _, again in got] == [
                (3, True), (55, True), *((n, False) for n in (58, 59, 60, 70, 80, 81)),
            ]  # fmt: skip
            client.ack(acks, "orders", 3)
        with StanClient(server.port, "other") as client:
            inbox, _ = client.subscribe("orders", durable="dq", group="g")
            assert [seq for seq, _, _ in client.deliveries(inbox)] == [7, 60, 70, 80, 81]
    assert reader_before["worker/d"] == (57, (3, 55)) and reader_before["dq:g"] == (59, (7,))
    with open_rw(str(store)) as volume:
        assert content(volume, "orders") == wanted | {81: b"from the server"}
        readers = {r.name: r for r in volume.open("orders").subscriptions.readers()}
        assert readers["worker/d"].pending == (55, 58, 59, 60, 70, 80, 81)
        assert readers["dq:g"].pending == (7, 60, 70, 80, 81) and readers["dq:g"].is_closed
        assert volume.open("orders").append(Batch.build("orders", [b"z"])).first == 82
        assert not volume.damage()


def test_we_read_what_the_server_wrote_while_it_runs_and_after(tmp_path: Path) -> None:
    store, data = tmp_path / "ds", payloads(40)
    flags = ("-file_slice_max_msgs", "9", "-max_msgs", "30", "-encrypt", "-encryption_key", "k")
    with StreamingServer(store, *flags) as server, StanClient(server.port, "w") as client:
        client.publish_many("orders", data)
        inbox, acks = client.subscribe("orders", durable="d", in_flight=5)
        for seq, _, _ in client.deliveries(inbox, 0.3):
            if seq in (11, 13):
                client.ack(acks, "orders", seq)
        with pytest.raises(StoreLocked, match="nats-streaming-server"):
            open_rw(str(store))
        with StreamingVolume(str(store), key="k") as volume:
            found = content(volume, "orders")
        assert {11: data[10], 40: data[39]}.items() <= found.items() and min(found) == 10
        assert "process" in (LAYOUT.inspect(str(store), key="k").writer or "")
    with StreamingVolume(str(store), key="k") as volume:
        assert content(volume, "orders") == {n: data[n - 1] for n in range(10, 41)}
        reader = volume.open("orders").subscriptions.reader("w/d")
        assert 11 not in reader.pending and 13 not in reader.pending and 12 in reader.pending
        assert not volume.damage()
    view = LAYOUT.verify(str(store), key="k")
    assert not view.logs[0].damage and not view.logs[0].problems
    with open_rw(str(store), max_msgs=5, slice_max_msgs=9, encrypt=True, key="k") as volume:
        log = volume.open("orders")
        volume.commit([log.append(Batch.build("orders", [b"ours"]))])
    with (
        StreamingServer(store, "-encrypt", "-encryption_key", "k") as server,
        StanClient(server.port, "r") as client,
    ):
        assert dict(client.read_all("orders")) == {n: data[n - 1] for n in range(37, 41)} | {41: b"ours"}


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_turns(how: str, tmp_path: Path) -> None:
    """Server and Headrace write in turns, the server killed or stopped; nothing acknowledged is ever missing."""
    store, wanted = tmp_path / "ds", dict[int, bytes]()
    for turn in range(3):
        server = StreamingServer(store, "-file_slice_max_msgs", "11").start()
        client = StanClient(server.port, f"c{turn}")
        client.publish_many("a.b", [b"server %d %d" % (turn, n) for n in range(10)])
        getattr(server, how)()
        with open_rw(str(store), slice_max_msgs=11) as volume:
            found = content(volume, "a.b")
            new = {s: d for s, d in found.items() if s not in wanted}
            assert sorted(new.values()) == sorted(b"server %d %d" % (turn, n) for n in range(10))
            wanted |= new
            log = volume.open("a.b")
            ticket = log.append(Batch.build("a.b", [b"ours %d %d" % (turn, n) for n in range(10)]))
            volume.commit([ticket])
            wanted |= {ticket.first + n: b"ours %d %d" % (turn, n) for n in range(10)}
            assert content(volume, "a.b") == wanted
    with StreamingServer(store) as server, StanClient(server.port, "r") as client:
        assert dict(client.read_all("a.b")) == wanted


@pytest.mark.parametrize(
    "case", ["orphan-record", "bad-crc-index", "index-missing", "server-dat-missing", "zero-padded"]
)
def test_what_we_recovered_the_server_opens(case: str, tmp_path: Path) -> None:
    path = copy(case, tmp_path)
    with open_rw(path) as volume:
        name = volume.logs()[-1] if case != "server-dat-missing" else "foo"
        volume.commit([volume.open(name).append(Batch.build(name, [b"added"]))])
        wanted = content(volume, name)
    with StreamingServer(Path(path)) as server, StanClient(server.port, "probe") as client:
        assert dict(client.read_all(name)) == wanted


def test_a_bad_record_blocks_the_server_and_not_us(tmp_path: Path) -> None:
    """The real server stops delivering at the record for good; ours goes on behind it and reports it."""
    path = copy("bad-crc-middle-record", tmp_path)
    with StreamingServer(Path(path)) as server, StanClient(server.port, "probe") as client:
        assert [seq for seq, _ in client.read_all("orders")] == [*range(4, 11)]
    with open_rw(path) as volume:
        assert list(content(volume, "orders")) == [*range(4, 11), 12, 13]
        assert [(d.kind, d.first_seq) for d in volume.damage()] == [("bad-record", 11)]


def test_a_ghost_of_a_durable_queue_is_kept(tmp_path: Path) -> None:
    """A durable queue whose client is unknown after a crash: the server drops its position, we keep it."""
    path = copy("truncated-subs", tmp_path)
    with open_rw(path, file_truncate_bad_eof=True) as volume:
        reader = volume.open("foo").subscriptions.reader("qdur:grp")
        assert (reader.last_sent, reader.pending) == (5, (3, 4))
    with StreamingServer(Path(path)) as server:
        assert "Not recovering ghost durable queue subscriber" in server.log()


def test_limits_have_the_servers_texts(tmp_path: Path) -> None:
    flags = ("-max_channels", "2", "-max_subs", "1")
    texts: list[str] = []
    with StreamingServer(tmp_path / "ds", *flags) as server, StanClient(server.port, "c") as client:
        client.publish("foo", b"1")
        client.publish("bar", b"1")
        for name in ("third", "FOO"):
            with pytest.raises(PeerFailed) as refused:
                client.publish(name, b"1")
            texts.append(str(refused.value))
        client.subscribe("foo")
        with pytest.raises(PeerFailed) as refused:
            client.subscribe("foo")
        texts.append(str(refused.value))
    ours: list[str] = []
    with open_rw(str(tmp_path / "ds"), max_channels=2, max_subs=1) as volume:
        for act in (lambda: volume.create("third"), lambda: volume.create("FOO")):
            with pytest.raises(Exception) as refused_here:
                act()
            ours.append(str(refused_here.value))
        subs: Any = volume.create("bar").subscriptions
        subs.create(SubState(client_id="c", inbox="i"))
        with pytest.raises(Exception) as refused_here:
            subs.create(SubState(client_id="c", inbox="j"))
        ours.append(str(refused_here.value))
    assert ours == texts


def test_the_same_bytes(tmp_path: Path) -> None:
    """The same messages at the same times: data, index and server.dat are equal byte for byte."""
    store, again = tmp_path / "ds", tmp_path / "again"
    with (
        StreamingServer(store, "-file_slice_max_msgs", "5") as server,
        StanClient(server.port, "c") as client,
    ):
        client.publish_many("orders", payloads(13))
        client.publish("orders", b"asked", "an.swer")
    with StreamingVolume(str(store)) as source, open_rw(str(again), slice_max_msgs=5) as target:
        log = target.create("orders")
        for batch in source.open("orders").batches():
            target.commit([log.append(batch, keep_positions=True)])
    names = [*(f"orders/msgs.{n}.{end}" for n in (1, 2, 3) for end in ("dat", "idx")), "server.dat"]
    for name in names:
        assert (store / name).read_bytes() == (again / name).read_bytes(), name


def test_every_case_of_the_manifest_names_what_the_server_did() -> None:
    """What `cases.json` recorded of the real server: we serve at least as much of every damaged directory."""
    for name, case in CASES.items():
        for observed in case.get("observed", [])[:1]:
            served = observed.get("served_sequences_from_first") or {}
            if "encrypted" in name or not observed.get("starts"):
                continue
            with StreamingVolume(
                str(Path(__file__).parents[2] / "vectors/nats_streaming/0.25.6" / name)
            ) as volume:
                for channel, sequences in served.items():
                    if isinstance(sequences, list):
                        assert set(sequences) <= set(content(volume, channel)), (name, channel)


def test_a_killed_server_under_load(tmp_path: Path) -> None:
    """kill -9 while messages are being published: all that were acknowledged are read."""
    store = tmp_path / "ds"
    server = StreamingServer(store, "-file_slice_max_msgs", "50").start()
    acked: list[bytes] = []
    client, end = StanClient(server.port, "c"), time.monotonic() + 1.0
    while time.monotonic() < end:
        batch = [b"%d" % (len(acked) + n) for n in range(20)]
        client.publish_many("a", batch)
        acked += batch
    server.kill()
    with StreamingVolume(str(store)) as volume:
        assert [*content(volume, "a").values()][: len(acked)] == acked


def test_the_real_server_calls_the_archive_script(tmp_path: Path) -> None:
    """Slices that leave the real server's store come to the archive, each message once, in their order."""
    store, lake, script = tmp_path / "store", tmp_path / "lake", tmp_path / "archive.sh"
    program = Path(sys.executable).parent / "headrace"
    script.write_text(f'#!/bin/sh\nexec {program} pipeline archive-slice {lake} "$@"\n')
    script.chmod(0o755)
    limits = ("-max_msgs", "12", "-file_slice_max_msgs", "5", "-file_slice_archive_script", str(script))
    sent = [b"order %d" % number for number in range(1, 41)]
    with StreamingServer(store, *limits) as server, StanClient(server.port, "writer") as client:
        for body in sent:
            client.publish("orders", body)
        # 40 messages in slices of 5, at most 12 stay: the last slice that can go ends with message 25.
        deadline = time.monotonic() + 60
        while archived(lake) != list(range(1, 26)):
            assert time.monotonic() < deadline, f"{archived(lake)} are in the archive; {server.log()}"
            time.sleep(0.5)
    with headrace.open(str(lake)) as volume:
        assert [record.data for record in volume.open("orders")] == sent[:25]
    assert not list(store.rglob("*.bak"))
    assert run(["verify", str(lake)]) == 0


def archived(lake: Path) -> list[int]:
    if not (lake / "_headrace" / "manifest.json").exists():
        return []
    with headrace.open(str(lake)) as volume:
        return [record.seq for record in volume.open("orders")] if "orders" in volume.logs() else []
