"""Every golden directory opens here with every message, state and consumer of its manifest; opening is light."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from headrace._core import Disk, highway_hash
from headrace.errors import KeyNeeded, ReadOnly
from headrace.layouts.base import ConsumerState
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.units import parse_time_ns
from tests.support import vectors

NONE = "0001-01-01T00:00:00Z"


def tree_digest(root: Path) -> str:
    """Names and bytes of everything below a directory."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path.relative_to(root)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def check_messages(store: headrace.StreamStore, expected: list[vectors.Expected]) -> None:
    found = list(store)
    assert [record.seq for record in found] == [message.seq for message in expected]
    for record, message in zip(found, expected, strict=True):
        assert (record.subject, record.time_ns) == (message.subject, message.time_ns)
        assert (record.headers or b"") == message.headers
        assert message.data_matches(record.data)
        assert store.load_msg(record.seq) == record


def check_state(store: headrace.StreamStore, expected: dict[str, object]) -> None:
    state = store.state()
    assert state.messages == expected["messages"]
    assert state.bytes == expected["bytes"]
    assert state.last_seq == expected["last_seq"]
    if state.last_seq:
        assert state.first_seq == expected["first_seq"]
        # 2.6 and 2.9 leave a removed head of a later block out of their list; the counts tell the truth.
        assert set(expected.get("deleted") or []) <= set(state.deleted)
        span = state.last_seq + 1 - state.first_seq
        assert len(state.deleted) == state.num_deleted == (span - state.messages if state.messages else 0)
    if state.messages:
        assert state.first_time_ns == parse_time_ns(str(expected["first_ts"]))
    if expected["last_ts"] not in (NONE, "1970-01-01T00:00:00Z"):
        assert state.last_time_ns == parse_time_ns(str(expected["last_ts"]))


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_every_message_state_and_consumer(
    jetstream_vector: vectors.Vector, tmp_path: Path, mode: str
) -> None:
    path = jetstream_vector.copy(tmp_path)
    before = tree_digest(path)
    with headrace.open(str(path), mode=mode) as volume:
        assert set(volume.logs()) == set(jetstream_vector.streams())
        for name, expected in jetstream_vector.streams().items():
            store = volume.open(name)
            assert isinstance(store, headrace.StreamStore)
            # The state after a restart is what the files hold; 2.6 keeps some things in memory only.
            state = jetstream_vector.manifest["after_restart"][name]["state"]
            messages = list(jetstream_vector.messages(name))
            if state["messages"] == len(messages):
                check_messages(store, messages)
            check_state(store, state)
            assert not [d for d in store.damage() if d.kind != "index"]
            for consumer, saved in expected["consumers"].items():
                check_consumer(volume, name, consumer, saved["o_dat"])
    assert mode == "rw" or tree_digest(path) == before


def check_consumer(
    volume: headrace.Volume, stream: str, consumer: str, expected: dict[str, object] | None
) -> None:
    assert isinstance(volume, JetStreamVolume)
    state = volume.open(stream).consumers.state_of(consumer)
    if expected is None:  # 2.6 and 2.9 write no file before the first delivery
        assert state == ConsumerState()
        return
    assert state.ack_floor.consumer == expected["ack_floor_consumer"]
    assert state.ack_floor.stream == expected["ack_floor_stream"]
    assert state.delivered.consumer == expected["delivered_consumer"]
    assert state.delivered.stream == expected["delivered_stream"]
    pending = expected["pending"]
    assert isinstance(pending, dict)
    assert {
        str(seq): {"consumer_seq": one.sequence, "ts_seconds": one.time_ns // 1_000_000_000}
        for seq, one in state.pending.items()
    } == pending
    assert {str(seq): count for seq, count in state.redelivered.items()} == expected["redelivered"]


def test_written_again_and_reopened(jetstream_vector: vectors.Vector, tmp_path: Path) -> None:
    """Opening for writing upgrades; afterwards everything is still there, and the next sequence is fresh."""
    path = jetstream_vector.copy(tmp_path)
    with headrace.open(str(path), mode="rw") as volume:
        lasts = {name: volume.open(name).state().last_seq for name in volume.logs()}
        for name in volume.logs():
            store = volume.open(name)
            assert isinstance(store, JetStreamVolume | headrace.StreamStore)
            ticket = store.append_copy(headrace.batch("added", [b"later"]))
            assert ticket.first == lasts[name] + 1
            volume.commit([ticket])
    for reopen in ("clean", "scan"):
        if reopen == "scan":
            for stamp in path.rglob("clean.json"):
                stamp.unlink()
        with headrace.open(str(path)) as volume:
            for name in volume.logs():
                records = [record for record in volume.open(name) if record.subject != "added"]
                state = jetstream_vector.manifest["after_restart"][name]["state"]
                limit = volume.open(name).config.max_msgs  # type: ignore[attr-defined]
                if limit <= 0:
                    assert len(records) == state["messages"], (name, reopen)
                assert volume.open(name).load_msg(lasts[name] + 1).data == b"later"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("folder", "key"),
    [("store-encrypted", "fixture-key"), ("encrypted-aes/store", "vector-key")],
)
def test_encrypted(folder: str, key: str, tmp_path: Path) -> None:
    path = vectors.ROOT / "jetstream" / "2.15.2" / folder
    before = tree_digest(path)
    with headrace.open(str(path), key=key) as volume:
        for name in volume.logs():
            records = list(volume.open(name))
            assert not volume.open(name).damage()
            if folder == "store-encrypted":
                vector = vectors.load("jetstream", "2.15.2")
                check_messages(volume.open(name), list(vector.messages(name, encrypted=True)))  # type: ignore[arg-type]
                check_state(volume.open(name), vector.streams(encrypted=True)[name]["state"])  # type: ignore[arg-type]
            else:  # as PROVENANCE.toml of that directory says
                found = [(record.seq, record.subject, record.data) for record in records]
                assert found == [
                    (seq, "aes.b" if seq % 2 else "aes.a", b"secret %d" % seq) for seq in (1, 3, 4, 5, 6)
                ]
                state = volume.open(name).consumers.state_of("C")  # type: ignore[attr-defined]
                # 1 was acknowledged, 2 is removed: 2.15 stores the floor that has moved over the gap.
                assert (state.delivered.stream, state.ack_floor.stream, list(state.pending)) == (3, 2, [3])
    for wrong in (None, "not the key"):
        with headrace.open(str(path), key=wrong) as volume, pytest.raises(KeyNeeded):
            volume.open(volume.logs()[0])
    assert tree_digest(path) == before
    copy = tmp_path / "copy"
    disk = Disk.real()
    disk.copy_tree_in(str(path), str(copy))
    with headrace.open(str(copy), mode="rw") as volume, pytest.raises(ReadOnly):
        volume.open(volume.logs()[0])


def test_hash_vectors() -> None:
    import json

    expected = json.loads((vectors.ROOT / "jetstream" / "2.6.5" / "hash-vectors.json").read_text())
    assert len(expected["raw"]) > 10
    for vector in expected["raw"]:
        key, data = bytes.fromhex(vector["key_hex"]), bytes.fromhex(vector["data_hex"])
        assert highway_hash(key, data).hex() == vector["hash_hex"]


@pytest.mark.parametrize(
    ("subject", "headers", "data", "size"),
    [
        ("abcd", None, b"hello", 39),
        ("orders.processed", None, b"order 1", 53),
        ("a", b"NATS/1.0\r\nA: b\r\n\r\n", b"x", 54),
    ],
)
def test_record_sizes_of_the_source_document(
    tmp_path: Path, subject: str, headers: bytes | None, data: bytes, size: int
) -> None:
    """39 bytes for `hello` on a four-byte subject; 53; and a case with headers."""
    with headrace.open(str(tmp_path), mode="rw", create=True) as volume:
        store = volume.create("S", subjects=[">"], no_ack=True)
        store.append(headrace.batch(subject, [data], [headers]))
        assert store.state().bytes == size
        volume.commit([store.append(headrace.batch(subject, [data], [headers]))])
    block = tmp_path / "jetstream" / "$G" / "streams" / "S" / "msgs" / "1.blk"
    assert block.stat().st_size == 2 * size


def test_a_clean_stop_is_opened_without_reading_the_blocks(tmp_path: Path) -> None:
    """Promise 8: after a clean stop only the newest block is read; the others are not even opened."""
    disk = Disk.real()
    with headrace.open(str(tmp_path), mode="rw", create=True, block_bytes=1 << 20) as volume:
        store = volume.create("S", subjects=["s"])
        for _ in range(40):
            store.append(headrace.batch("s", [bytes(1000)] * 500))
        state = store.state()
    msgs = tmp_path / "jetstream" / "$G" / "streams" / "S" / "msgs"
    blocks = sorted(msgs.glob("*.blk"), key=lambda path: int(path.stem))
    assert len(blocks) > 15
    for block in blocks[:-1]:  # same size, nothing sound in it: proof that nobody looks
        block.write_bytes(bytes(block.stat().st_size))
    started = time.monotonic()
    with headrace.open(str(tmp_path), disk=disk) as volume:
        assert volume.open("S").state() == state
        assert time.monotonic() - started < 5
        assert not volume.open("S").damage()
        assert len(volume.open("S").read(1, 10)) == 0 or volume.open("S").damage()
        assert volume.open("S").damage()


OPEN_AND_PRINT = """
import resource, sys, headrace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
volume = headrace.open(sys.argv[1], mode=sys.argv[2])
messages = volume.open("S").state().messages
print(messages, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_opening_takes_bounded_memory(tmp_path: Path, mode: str) -> None:
    """Promise 8: a scan holds one block per thread, however large the store."""
    with headrace.open(str(tmp_path), mode="rw", create=True, durability="interval") as volume:
        store = volume.create("S", subjects=["s"])
        for _ in range(300):
            store.append(headrace.batch("s", [bytes(1000)] * 1000))
        size = store.state().bytes
    assert size > 290 << 20
    for stamp in tmp_path.rglob("clean.json"):
        stamp.unlink()
    command = [sys.executable, "-c", OPEN_AND_PRINT, str(tmp_path), mode]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(output[0]) == 300_000
    assert int(output[1]) < 80 << 20
