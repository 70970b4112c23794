"""Promise 3: every single bit of a small store, flipped in turn, in every file.

After each flip the store is opened for reading and then, on the same damaged copy, for writing. Every record that
comes back equals an original, at most the smallest checksummed unit is missing, the damage is reported, and no
file is cut. The flips that no reader of this format could notice are counted by field: PROMISES.md has the table.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import headrace
from headrace._core import Disk, s2_decompress
from headrace.config.model import ConsumerConfig
from headrace.layouts.base import ConsumerState, Damage
from headrace.testing import FakeClock
from tests.crash.witness import STREAM, STREAM_DIR, Snapshot, open_volume

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
HASH_BYTES = 8
RECORD_FIELDS = (
    *(
        "length",
        "sequence",
        "time",
        "subject length",
        "subject",
        "header length",
        "headers",
        "payload",
        "hash",
    ),
)


def write_store(disk: Disk, *, block_bytes: int = 1 << 20, compression: str = "none") -> Snapshot:
    """A dozen messages: subjects of several lengths, headers, empty payloads, a tombstone, a placeholder."""
    volume = open_volume(disk, create=True, block_bytes=block_bytes)
    store = volume.create(STREAM, subjects=["a", "b.>"], compression=compression)
    for subject, headers, data in (
        ("a", None, b"first"),
        ("b.cd", HEADERS, b"with headers"),
        ("b.c", None, b""),
        ("b.ef.gh", HEADERS, b""),
        ("a", None, b"bcdefghi"),
        ("b.c", None, bytes(range(20))),
    ):
        store.store_msg(subject, headers, data)
    store.remove_msg(3)
    store.skip_msg()
    for n in range(6):
        store.store_msg("b.xyz"[: 3 + n % 3], HEADERS if n == 2 else None, b"payload %d" % n)
    store.erase_msg(5)
    consumer = store.consumer_store("C", ConsumerConfig(durable_name="C", ack_policy="explicit").filled())
    for own, seq in enumerate((1, 2, 4), 1):
        consumer.update_delivered(own, seq, 1, 1_700_000_000_000_000_000)
    consumer.update_acks(2, 2)
    consumer.commit()
    store.commit()
    found = Snapshot.of(store)
    assert found.messages.keys() == {1, 2, 4, 6, 8, 9, 10, 11, 12, 13}
    write_store.volume = volume  # type: ignore[attr-defined]
    return found


def cleanly_stopped() -> tuple[Disk, Snapshot]:
    """Guard, index and stamp are there."""
    disk = Disk.memory()
    found = write_store(disk)
    write_store.volume.close()  # type: ignore[attr-defined]
    return without_reserve(disk), found


def killed() -> tuple[Disk, Snapshot]:
    """No guard, no index: the blocks and the journal alone."""
    disk = Disk.memory()
    found = write_store(disk)
    left = without_reserve(disk)
    assert left.entry(f"{STREAM_DIR}/msgs/index.db") is None
    return left, found


def compressed() -> tuple[Disk, Snapshot]:
    """A sealed S2 block and a plain newest one, after a kill."""
    disk = Disk.memory()
    found = write_store(disk, block_bytes=430, compression="s2")
    assert disk.read(f"{STREAM_DIR}/msgs/1.blk").startswith(b"cmp\x01")
    return without_reserve(disk), found


def sealed_and_newest() -> tuple[Disk, Snapshot]:
    """A sealed block with its guard and a newest one without, after a kill."""
    disk = Disk.memory()
    found = write_store(disk, block_bytes=430)
    assert disk.entry(f"{STREAM_DIR}/headrace/1.guard") is not None
    return without_reserve(disk), found


def without_reserve(disk: Disk) -> Disk:
    """A copy as a killed process leaves it; the reserve is a megabyte of zeros."""
    left = disk.crash(0, "all")
    left.remove_file(f"{STREAM_DIR}/headrace/reserve")
    return left


# Where a flip hits


def files_of(disk: Disk, path: str = STREAM_DIR) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, is_dir, _ in disk.list(path):
        if is_dir:
            found |= files_of(disk, f"{path}/{name}")
        elif name != "reserve":
            found[f"{path}/{name}"] = disk.read(f"{path}/{name}")
    return found


def fields_of(block: bytes) -> list[str]:
    """The name of the field that each byte of a sound plain block belongs to (record.rs has the drawing)."""
    names: list[str] = []
    while len(names) < len(block):
        at = len(names)
        raw = int.from_bytes(block[at : at + 4], "little")
        length, headers = raw & 0x7FFFFFFF, raw >> 31
        subject = int.from_bytes(block[at + 20 : at + 22], "little")
        record = (
            ["length"] * 4 + ["sequence"] * 8 + ["time"] * 8 + ["subject length"] * 2 + ["subject"] * subject
        )
        if headers:
            size = int.from_bytes(block[at + 22 + subject : at + 26 + subject], "little")
            record += ["header length"] * 4 + ["headers"] * size
        record += ["payload"] * (length - len(record) - HASH_BYTES) + ["hash"] * HASH_BYTES
        names += record
    return names


def places(disk: Disk, *, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, int, str]]:
    """(path, byte, field) of every byte in every file."""
    for path, data in files_of(disk).items():
        name = path.rsplit("/", 1)[-1]
        if name in skip:
            continue
        plain = name.endswith(".blk") and not data.startswith(b"cmp\x01")
        fields = fields_of(data) if plain else [name] * len(data)
        assert len(fields) == len(data)
        for at, each in enumerate(fields):
            yield path, at, each


# What may come of it


@dataclass
class Tally:
    """Outcomes by field."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def table(self) -> str:
        kinds = ("no effect", "repaired", "lost", "undetected")
        rows = [f"{'field':22}" + "".join(f"{kind:>12}" for kind in kinds)]
        for name, counts in sorted(self.outcomes.items()):
            rows.append(f"{name:22}" + "".join(f"{counts[kind]:12}" for kind in kinds))
        return "\n".join(rows)


def judge(original: Snapshot, found: Snapshot, damage: list[Damage], unit: set[int]) -> str:
    """The outcome; raises unless it is one of those that are promised. `unit`: what a flip may cost here."""
    altered = {seq for seq, message in found.messages.items() if original.messages.get(seq) != message}
    if altered:
        assert len(altered) == 1, f"one bit changed {sorted(altered)}"
        return "undetected"
    lost = original.messages.keys() - found.messages.keys()
    assert len(lost) <= 1 or lost <= unit, f"one bit cost {sorted(lost)}"
    if lost:
        assert damage, f"{sorted(lost)} lost without a word"
        return "lost"
    return "repaired" if damage else "no effect"


def check_consumer(original: ConsumerState, found: ConsumerState, damage: list[Damage]) -> None:
    """As it was; or, said aloud, further back: messages come again, none is skipped."""
    if found != original:
        assert damage, "the consumer moved without a word"
        assert found.ack_floor.stream <= original.ack_floor.stream
        assert found.delivered.stream <= original.delivered.stream


TRUTH = ("meta.inf", "meta.sum", "o.dat", ".journal", "index.db")
"""Not among them: stamp, guard and durable mark are shortcuts; a damaged one is passed over."""


META = ("meta.inf", "meta.sum")
"""The same bytes in all stores: flipped in the first one only. So is index.db."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "undetectable", "skip"),
    [
        (cleanly_stopped, {}, ()),
        (killed, {"subject length": 15}, META),
        (sealed_and_newest, {"subject length": 9}, (*META, "index.db", "consumers.1.journal")),
        (compressed, {"subject length": 9}, (*META, "index.db", "consumers.1.journal")),
    ],
)
def test_every_bit_of_every_file(make, undetectable: dict[str, int], skip: tuple[str, ...]) -> None:
    base, original = make()
    unit: set[int] = set()
    if make is compressed:  # one S2 chunk holds the whole sealed block
        newest = open_volume(base.crash(0, "all"), mode="r").open(STREAM).log.blocks()[-1]
        unit = {seq for seq in original.messages if seq < newest.first_seq}
    tally = Tally()
    for path, at, where in places(base, skip=skip):
        for bit in range(8):
            damaged = base.crash(0, "all")
            damaged.flip_bit(path, at, bit)
            try:
                outcome = look(damaged, path, original, unit, where)
                tally.outcomes[where][outcome] += 1
                one_in_eight = bit == at % 8
                if outcome != "undetected" and (one_in_eight or path.endswith(".blk")):
                    write(damaged, path, original, unit, twice=one_in_eight)
            except Exception as problem:
                raise AssertionError(f"{path}: byte {at} ({where}), bit {bit}: {problem}") from problem
    print(f"\n{make.__name__}\n{tally.table()}")
    silent = {name: counts["undetected"] for name, counts in tally.outcomes.items() if counts["undetected"]}
    assert silent == undetectable, "PROMISES.md has these numbers too"


def look(damaged: Disk, path: str, original: Snapshot, unit: set[int], where: str) -> str:
    """Read-only: the outcome; nothing on the disk changes."""
    before = files_of(damaged)
    volume = open_volume(damaged, mode="r")
    store = volume.open(STREAM)
    found, damage = Snapshot.of(store), store.damage()
    volume.close()
    assert files_of(damaged) == before, "a reader wrote"
    outcome = judge(original, found, damage, unit)
    check_consumer(original.consumers["C"], found.consumers["C"], damage)
    assert found.config == original.config
    if outcome == "no effect" and where in RECORD_FIELDS:
        return "undetected"  # in a record that is removed: nobody is shown it
    assert outcome != "no effect" or not path.endswith(TRUTH), "the damage was not reported"
    return outcome


def write(damaged: Disk, path: str, original: Snapshot, unit: set[int], *, twice: bool) -> None:
    """Read-write on the same copy: the same, and a fresh sequence; the damaged bytes are kept."""
    flipped = damaged.read(path)
    volume = open_volume(damaged, clock=FakeClock())
    store = volume.open(STREAM)
    found, damage = Snapshot.of(store), store.damage()
    assert judge(original, found, damage, unit) != "undetected"
    check_consumer(original.consumers["C"], found.consumers["C"], damage)
    ticket = store.append(headrace.batch("a", [b"fresh"]))
    store.commit(ticket.mark)
    assert ticket.first > original.last, f"sequence {ticket.first} was given out before"
    if path.endswith(".blk"):
        now = damaged.read(path) if damaged.entry(path) is not None else b""
        kept = [data for name, data in files_of(damaged).items() if "/headrace/damaged/" in name]
        assert now.startswith(flipped) or flipped in kept, "the damaged bytes were thrown away"
    if twice:
        again = Snapshot.of(open_volume(damaged.crash(0, "none")).open(STREAM))
        assert again == Snapshot.of(store), "what was shown after the repair did not last"


S2_CHUNK_BYTES = 64 << 10
RECORD_BYTES = 1000


def unpacked(block: bytes) -> bytes:
    """A packed block's records. A copy that was turned to another place with the same bytes changes nothing."""
    return s2_decompress(block[block.index(b"\xff\x06\x00\x00S2sTwO") : -HASH_BYTES], 1 << 20)


def test_a_flip_in_a_packed_block_costs_one_chunk(headrace_seed: int) -> None:
    """A sealed S2 block of several chunks: what lies outside the one that was hit comes back."""
    chance = random.Random(headrace_seed)
    disk = Disk.memory()
    volume = open_volume(disk, create=True, block_bytes=4 * S2_CHUNK_BYTES)
    store = volume.create(STREAM, subjects=["a"], compression="s2")
    payload = RECORD_BYTES - 31
    for _ in range(3):
        store.append(headrace.batch("a", [chance.randbytes(payload // 2) * 2 for _ in range(100)]))
    store.commit()
    original, base = Snapshot.of(store), without_reserve(disk)
    path = f"{STREAM_DIR}/msgs/1.blk"
    size = len(base.read(path))
    assert base.read(path).startswith(b"cmp\x01") and size > 2 * S2_CHUNK_BYTES
    worst = 0
    for _ in range(60):
        damaged = base.crash(0, "all")
        damaged.flip_bit(path, chance.randrange(30, size), chance.randrange(8))
        store = open_volume(damaged, mode="r").open(STREAM)
        found = Snapshot.of(store)
        assert found.messages.items() <= original.messages.items()
        lost = sorted(original.messages.keys() - found.messages.keys())
        assert not lost or lost == list(range(lost[0], lost[-1] + 1))
        assert store.damage() or unpacked(damaged.read(path)) == unpacked(base.read(path))
        worst = max(worst, len(lost))
    assert 0 < worst <= S2_CHUNK_BYTES // RECORD_BYTES + 2
    print(f"at most {worst} records of {RECORD_BYTES} bytes lost, a chunk has {S2_CHUNK_BYTES}")
