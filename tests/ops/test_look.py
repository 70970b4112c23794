"""`inspect` and `cat`: what they say is what the product's own API said."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import BadInput
from headrace.ops.cat import Reading, Selection
from headrace.ops.look import inspect
from headrace.units import parse_time_ns
from tests.ops.helpers import STREAMS, expected_messages, fingerprint, small_store
from tests.support import vectors


def read_all(path: Path, **options: Any) -> dict[tuple[str, int], tuple[str, int, bytes, str]]:
    return {
        (name, record.seq): (
            record.subject,
            record.time_ns,
            record.headers or b"",
            hashlib.sha256(record.data or b"").hexdigest(),
        )
        for name, batch in Reading(str(path), **options)
        for record in batch
    }


def test_cat_gives_every_message_of_every_era(jetstream_vector: vectors.Vector) -> None:
    assert read_all(jetstream_vector.folder / "store") == expected_messages(jetstream_vector)


def test_cat_opens_encrypted_stores() -> None:
    vector = vectors.load("jetstream", "2.15.2")
    found = read_all(vector.folder / "store-encrypted", key=vector.manifest["encrypted"]["key"])
    assert found == expected_messages(vector, encrypted=True)


def test_inspect_agrees_with_the_server(jetstream_vector: vectors.Vector) -> None:
    store = jetstream_vector.folder / "store"
    before = fingerprint(store)
    view = inspect(str(store))
    assert view.sound and view.product == "NATS JetStream"
    for stream in view.streams:
        expected = jetstream_vector.streams()[stream.name]
        assert stream.state is not None and stream.config is not None and stream.overhead is not None
        for name in ("messages", "bytes", "first_seq", "last_seq"):
            assert getattr(stream.state, name) == expected["state"][name], (stream.name, name)
        assert stream.created_ns == parse_time_ns(expected["created"])
        assert stream.config.get("subjects", []) == expected["config"].get("subjects", [])
        assert sum(block.live_messages for block in stream.blocks) == stream.state.messages
        payload = sum(message.data_len for message in jetstream_vector.messages(stream.name))
        assert stream.overhead.payload_bytes == payload
        assert stream.overhead.record_bytes == expected["state"]["bytes"]
        assert [row.newest for row in stream.blocks].count(True) == 1
        assert {row.name for row in stream.consumers} == set(expected["consumers"])
        for row in stream.consumers:
            saved = expected["consumers"][row.name]["o_dat"] or {}
            assert row.delivered == saved.get("delivered_stream", 0)
            assert row.ack_floor == saved.get("ack_floor_stream", 0)
            assert row.pending == len(saved.get("pending", ()))
            assert row.redelivered == len(saved.get("redelivered", ()))
    assert inspect(str(store), quick=True).complete is False
    assert fingerprint(store) == before


def test_inspect_distinguishes_eras() -> None:
    eras = {
        version: {
            stream.era for stream in inspect(str(vectors.load("jetstream", version).folder / "store")).streams
        }
        for version in vectors.versions("jetstream")
    }
    assert eras == {"2.6.5": {"2.6", "2.9"}, "2.9.10": {"2.6", "2.9"}, "2.15.2": {"2.15"}}


def test_inspect_sees_packed_and_encrypted_blocks() -> None:
    vector = vectors.load("jetstream", "2.15.2")
    packed = inspect(str(vector.folder / "store"), log="S2").streams[0].blocks
    assert [row.packed for row in packed] == [True, True, False]
    sealed = inspect(str(vector.folder / "store-encrypted"), key=vector.manifest["encrypted"]["key"]).streams[
        0
    ]
    assert sealed.encrypted and all(row.encrypted for row in sealed.blocks)


def test_inspect_without_metadata_goes_by_the_blocks(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    (store / STREAMS / "ORDERS/meta.inf").write_bytes(b'{"name": "OR')
    view = inspect(str(store))
    (stream,) = view.streams
    assert stream.config is None and stream.state is not None and stream.state.messages == 297
    assert [damage.kind for damage in view.damage] == ["metadata"]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (Selection(first=10, next=13), [10, 11, 12]),
        (Selection(first=5, next=10), [5, 6, 9]),
        (Selection(first=298), [298, 299, 300]),
        (Selection(next=3), [1, 2]),
        (Selection(subjects=("orders.1",), next=14), [1, 5, 9, 13]),
        (Selection(subjects=("orders.1", "orders.2"), next=7), [1, 2, 5, 6]),
        (Selection(limit=2), [1, 2]),
        (Selection(limit=0), []),
        (Selection(subjects=("nope.>",)), []),
        (Selection(first=10_000), []),
        (Selection(until_ns=1), []),
    ],
)
def test_cat_selects(select: Selection, expected: list[int], tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    assert [seq for _, seq in read_all(store, select=select)] == expected


def test_cat_selects_by_time(jetstream_vector: vectors.Vector) -> None:
    messages = list(jetstream_vector.messages("BLOCKS"))
    first, after = messages[10].time_ns, messages[20].time_ns
    found = read_all(
        jetstream_vector.folder / "store", stream="BLOCKS", select=Selection(since_ns=first, until_ns=after)
    )
    assert [seq for _, seq in found] == [m.seq for m in messages if first <= m.time_ns < after]


def test_a_bad_filter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a subject"):
        Reading(str(small_store(tmp_path / "store")), select=Selection(subjects=("a..b",)))


def test_follow_shows_only_what_is_durable(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    seen: list[int] = []
    stop, some = threading.Event(), threading.Event()

    def follow() -> None:
        for _, batch in Reading(path, stream="ORDERS", follow=True, stop=stop, poll_s=0.01):
            seen.extend(batch.positions())
            if len(seen) >= 400:
                some.set()

    with headrace.open(path, mode="rw", create=True, block_bytes=2000) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        volume.commit([orders.append(headrace.batch("orders.new", [b"x"] * 100))])
        reader = threading.Thread(target=follow)
        reader.start()
        try:
            for _ in range(3):
                volume.commit([orders.append(headrace.batch("orders.new", [b"y"] * 100))])
            assert some.wait(20), len(seen)
            # Written, not synced: a crash could take it back, so nobody may see it.
            held = headrace.open(path, mode="r").open("ORDERS").fast_state().last_seq
            assert held == 400
        finally:
            stop.set()
            reader.join()
    assert seen == list(range(1, 401))


def test_follow_waits_for_the_sync(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    seen: list[int] = []
    stop, got = threading.Event(), threading.Event()

    def follow() -> None:
        for _, batch in Reading(path, follow=True, stop=stop, poll_s=0.01):
            seen.extend(batch.positions())
            got.set()

    with headrace.open(path, mode="rw", create=True, maintenance=False) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        volume.commit([orders.append(headrace.batch("orders.new", [b"x"]))])
        reader = threading.Thread(target=follow)
        reader.start()
        try:
            assert got.wait(20)
            got.clear()
            ticket = orders.append(headrace.batch("orders.new", [b"not yet"]))
            assert not got.wait(0.3)
            volume.commit([ticket])
            assert got.wait(20)
        finally:
            stop.set()
            reader.join()
    assert seen == [1, 2]
