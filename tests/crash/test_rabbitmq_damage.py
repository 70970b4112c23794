"""RabbitMQ layout, promise 3: every bit of a small directory, flipped in turn, and the damage that RabbitMQ hangs on.

The format has no checksums. What can be held: no flip stops a reader, at most one message is lost or changed, and a message
that comes back changed was hit in its own body, properties or times. PROMISES.md has the counts by field.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import headrace
from headrace._core import Disk
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume
from headrace.testing import FakeClock

OPTIONS = RabbitOptions(queue_index_segment_entry_count=32, queue_index_embed_msgs_below=200)
Content = dict[int, tuple[str, bytes | None, bytes]]


def open_volume(disk: Disk, mode: str = "r") -> RabbitVolume:
    return RabbitVolume(
        "/n", mode=mode, create=mode == "rw", options=OPTIONS, disk=disk, clock=FakeClock(), maintenance=False
    )


def content(volume: RabbitVolume) -> Content:
    name = volume.logs()[0]
    return {r.position: (r.subject, r.headers, r.data or b"") for r in volume.open(name)}


def store(*, flushed: bool, large: bool) -> tuple[Disk, str, str, Content]:
    """A queue of 12 messages, three of them acked: in a segment or in the journal, embedded or in the store."""
    disk = Disk.memory()
    volume = open_volume(disk, "rw")
    log = volume.create("queue")
    data = [b"%02d " % n + bytes([65 + n]) * (300 if large else 40) for n in range(12)]
    volume.commit([log.append(headrace.batch("queue", data))])
    volume.commit([log.remove([3, 4, 9])])
    if flushed:
        log.flush()
    return disk, log.directory, log.vhost.store.directory, content(volume)


def flips(path: str, disk: Disk) -> list[tuple[int, int]]:
    size = disk.entry(path).size  # pyright: ignore
    return [(offset, bit) for offset in range(size) for bit in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("flushed", [True, False], ids=["segment", "journal"])
@pytest.mark.parametrize("large", [True, False], ids=["stored", "embedded"])
def test_one_flipped_bit(flushed: bool, large: bool, headrace_seed: int) -> None:
    disk, queue_dir, store_dir, original = store(flushed=flushed, large=large)
    index = f"{queue_dir}/0.idx" if flushed else f"{queue_dir}/journal.jif"
    paths = [index, f"{store_dir}/0.rdq"] if large else [index]
    seen: Counter[str] = Counter()
    chance = random.Random(headrace_seed)
    for path in paths:
        every = flips(path, disk)
        for offset, bit in every if len(every) < 9000 else chance.sample(every, 9000):
            damaged = disk.crash(0, "all")
            damaged.flip_bit(path, offset, bit)
            volume = open_volume(damaged)
            found = content(volume)
            lost = [seq for seq in original if found.get(seq) != original[seq]]
            extra = [seq for seq in found if seq not in original]
            where = f"byte {offset} bit {bit} of {path.rsplit('/', 1)[-1]}"
            assert len(lost) <= 1, f"{where}: {lost} are lost or changed"
            assert len(extra) <= 1, f"{where}: {extra} came up"
            reported = bool(volume.damage())
            seen["whole" if not lost and not extra else "one, reported" if reported else "one, silent"] += 1
            if chance.random() < 0.02:
                again = open_volume(damaged, "rw")
                assert content(again).keys() >= found.keys()
                again.close()
                assert content(open_volume(damaged)).keys() >= found.keys()
    print(f"\n{'segment' if flushed else 'journal'}, {'stored' if large else 'embedded'}: {dict(seen)}")


def edited(disk: Disk, path: str, data: bytes) -> Disk:
    copy = disk.crash(0, "all")
    copy.replace_file(path, data)
    return copy


def test_damage_that_stops_the_real_broker() -> None:
    """Torn segments, acks without a deliver, three rel-only records: opened, reported, and sound afterwards."""
    disk, queue_dir, _, original = store(flushed=True, large=False)
    segment, journal = f"{queue_dir}/0.idx", f"{queue_dir}/journal.jif"
    whole = disk.read(segment)
    cases = {
        "torn": (segment, whole + whole[:50]),
        "zeros": (segment, whole + bytes(600)),
        "third rel-only": (segment, whole + b"\x40\x03"),
        "rel-only of nothing": (segment, whole + b"\x40\x1f"),
        "torn journal": (journal, b"\xc0\x00\x00"),
        "zeros in the journal": (journal, bytes(4096)),
    }
    for name, (path, data) in cases.items():
        copy = edited(disk, path, data)
        reader = open_volume(copy)
        assert content(reader) == original, name
        assert reader.damage(), name
        writer = open_volume(copy, "rw")
        assert content(writer) == original, name
        assert writer.damage(), name
        writer.close()
        after = open_volume(copy)
        assert content(after) == original and not after.damage(), name
        kept = [n for n, _, _ in copy.list(f"{after.open('queue').vhost.path}/headrace.damaged")]
        assert kept, f"{name}: the damaged bytes are kept"


def test_ack_without_a_deliver() -> None:
    """RabbitMQ hangs in its start on it; here the ack counts, and the segment gets both records."""
    disk = Disk.memory()
    options = RabbitOptions(queue_index_segment_entry_count=32, deliver_at_publish=False)
    volume = RabbitVolume("/n", mode="rw", create=True, options=options, disk=disk, maintenance=False)
    log = volume.create("queue")
    volume.commit([log.append(headrace.batch("queue", [b"a", b"b"]))])
    volume.close()
    disk.replace_file(log.journal_path, (3 << 62 | 1).to_bytes(8))
    with open_volume(disk, "rw") as again:
        assert [r.data for r in again.open("queue")] == [b"a"]
    assert disk.read(f"{log.directory}/0.idx").endswith(b"\x40\x01\x40\x01")


def test_random_bytes_never_stop_a_reader(headrace_seed: int) -> None:
    disk, queue_dir, store_dir, _ = store(flushed=True, large=True)
    chance = random.Random(headrace_seed)
    for _ in range(300):
        copy = disk.crash(0, "all")
        for path in (f"{queue_dir}/0.idx", f"{queue_dir}/journal.jif", f"{store_dir}/0.rdq"):
            data = bytearray(copy.read(path))
            for _ in range(chance.randrange(6)):
                at = chance.randrange(len(data) + 1)
                data[at : at + chance.randrange(40)] = chance.randbytes(chance.randrange(40))
            copy.replace_file(path, bytes(data))
        content(open_volume(copy))
        open_volume(copy, "rw").close()
