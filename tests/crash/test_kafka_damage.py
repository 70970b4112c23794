"""Kafka's layout, promise 3: one flipped bit costs at most one batch, and what is returned is byte-equal to an original.

Survivors are counted. The broker cuts at the first bad batch of an unclean start and deletes all later segments; the
figures of both stand side by side where a golden directory has the broker's.
"""

from __future__ import annotations

import random

import pytest

from headrace._core import Batch, Disk
from headrace.layouts.kafka.names import DAMAGED
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.testing import FakeClock
from tests.support.kafka import copy_damaged, expected_rows, rows

NAME = "orders-0"
DIRECTORY = f"/logs/{NAME}"
START_NS = 1_700_000_000_000_000_000
COUNT = 90
PER_APPEND = 6


def sound_store(**options: object) -> tuple[Disk, dict[int, bytes], list[str]]:
    """A log of small batches over a few segments, cleanly stopped."""
    disk = Disk.memory()
    chosen = KafkaOptions.of(
        {"segment_bytes": 1500, "batch_size": 4000, "index_interval_bytes": 200} | options
    )
    chance = random.Random(7)
    content: dict[int, bytes] = {}
    with volume_on(disk, chosen) as volume:
        log = volume.create(NAME)
        for first in range(0, COUNT, PER_APPEND):
            data = [b"%03d" % n + chance.randbytes(n % 40) for n in range(first, first + PER_APPEND)]
            times = [START_NS + n * 1_000_000 for n in range(first, first + PER_APPEND)]
            volume.commit([log.append(Batch.build("t", data, times=times, header_codec="kafka"))])
            content |= {first + n: value for n, value in enumerate(data)}
    logs = [name for name, _, _ in disk.list(DIRECTORY) if name.endswith(".log")]
    assert len(logs) >= 3
    return disk, content, logs


def volume_on(disk: Disk, options: KafkaOptions | None = None, mode: str = "rw") -> KafkaVolume:
    return KafkaVolume(
        "/logs",
        mode=mode,
        create=mode == "rw",
        disk=disk,
        options=options,
        clock=FakeClock(START_NS),
        maintenance=False,
    )


def found_in(disk: Disk) -> tuple[dict[int, bytes | None], list[str]]:
    with volume_on(disk, mode="r") as volume:
        log = volume.open(NAME)
        found = {record.position: record.data for record in log}
        return found, [finding.kind for finding in log.damage()]


@pytest.mark.parametrize("codec", ["producer", "lz4"])
def test_any_flipped_bit_costs_at_most_one_batch(codec: str) -> None:
    disk, content, logs = sound_store(compression_type=codec)
    chance = random.Random(11)
    repaired = lost_any = silent = 0
    for name in logs:
        path = f"{DIRECTORY}/{name}"
        entry = disk.entry(path)
        assert entry is not None
        for offset in range(entry.size):
            bit = chance.randrange(8)
            disk.flip_bit(path, offset, bit)
            found, kinds = found_in(disk)
            disk.flip_bit(path, offset, bit)
            lost = [n for n in content if n not in found]
            moved = [n for n, data in found.items() if content.get(n) != data]
            where = f"{name} byte {offset} bit {bit}"
            assert len(lost) <= PER_APPEND, where
            assert sorted(found.values()) == sorted(content[n] for n in content if n not in lost) or moved, (
                where
            )
            if moved:
                # Kafka covers the first offset of a batch with no checksum: only the last batch of the log, which
                # has no successor to contradict it, can come back with other offsets. Its content is sound.
                assert name == logs[-1] and set(found.values()) == set(content.values()), where
                silent += 1
            elif lost:
                assert kinds, where
                lost_any += 1
            elif "repaired" in kinds:
                repaired += 1
    assert repaired > 50 and lost_any > 500 and silent <= 8


def test_recovery_keeps_all_but_the_bad_batch() -> None:
    master, content, logs = sound_store()
    chance = random.Random(3)
    for _ in range(60):
        disk = master.crash(0, "all")
        disk.remove_file("/logs/.kafka_cleanshutdown")
        disk.remove_file("/logs/recovery-point-offset-checkpoint")
        name = chance.choice(logs)
        path = f"{DIRECTORY}/{name}"
        entry = disk.entry(path)
        assert entry is not None
        size = entry.size
        at = chance.randrange(size)
        # A burst: more than single bits can be put right.
        for offset in range(at, min(at + chance.randrange(1, 90), size)):
            disk.flip_bit(path, offset, chance.randrange(8))
        damaged = disk.read(path)
        tolerant, _ = found_in(disk)
        with volume_on(disk) as volume:
            log = volume.open(NAME)
            kept = {record.position: record.data for record in log}
            assert kept == tolerant and all(content[n] == data for n, data in kept.items())
            assert len(content) - len(kept) <= 3 * PER_APPEND
            findings = [f for f in log.damage() if f.kind in ("bad-record", "unsound-tail")]
            assert findings or len(kept) == len(content)
            # Not a byte is thrown away.
            for finding in findings:
                side = f"{DIRECTORY}/{DAMAGED}/{name}.{finding.offset}-{finding.offset + finding.length}"
                assert disk.read(side) == damaged[finding.offset : finding.offset + finding.length]
            assert log.next >= COUNT, "no offset is given out twice"
            volume.commit([log.append(Batch.build("t", [b"after"], header_codec="kafka"))])
        again, kinds = found_in(disk)
        assert kinds == [] and len(again) == len(kept) + 1


def test_better_than_the_broker(tmp_path: object) -> None:
    """Golden: a flipped byte in the first segment. The broker ends with 12 records, one segment and offset 12."""
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    folder, entry = copy_damaged("corrupt-mid", tmp_path)
    wanted = [r for r in expected_rows(entry) if not 12 <= r[0] < 16]
    assert entry["expected_after_recovery_from_offset_0"]["log_end_offset"] == 12
    with KafkaVolume(str(folder), mode="rw", maintenance=False) as volume:
        log = volume.open(entry["log"])
        assert rows(log) == wanted and len(wanted) == 36 and log.next == 40
    with KafkaVolume(str(folder)) as volume:
        assert rows(volume.open(entry["log"])) == wanted
        assert volume.open(entry["log"]).damage() == []


def test_a_torn_tail_is_set_aside(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    folder, entry = copy_damaged("unclean-torn-tail", tmp_path)
    with KafkaVolume(str(folder), mode="rw", maintenance=False) as volume:
        log = volume.open(entry["log"])
        assert rows(log) == expected_rows(entry)
        [side] = (folder / entry["log"] / DAMAGED).iterdir()
        assert side.stat().st_size == 119
        assert log.next == 99, (
            "the torn batch names offsets 95 to 98: they may have been promised to somebody"
        )


def test_shortcuts_are_not_believed_when_wrong() -> None:
    """A wrong index leads nowhere bad: it is noticed and not used."""
    disk, content, _ = sound_store()
    for name, _, size in disk.list(DIRECTORY):
        if name.endswith("index") and size:
            for at in range(0, size, 3):
                disk.flip_bit(f"{DIRECTORY}/{name}", at, at % 8)
    with volume_on(disk, mode="r") as volume:
        log = volume.open(NAME)
        assert {r.position: r.data for r in log} == content
        for offset in range(0, COUNT, 5):
            assert log.read(offset, 1)[0].data == content[offset]
        assert {finding.kind for finding in log.damage()} <= {"index"}


def test_a_batch_inside_a_payload_is_not_served() -> None:
    """A payload that holds a whole batch, in a batch whose header is destroyed."""
    inner_disk, _, logs = sound_store()
    forged = inner_disk.read(f"{DIRECTORY}/{logs[-1]}")
    disk = Disk.memory()
    with volume_on(disk) as volume:
        log = volume.create(NAME)
        for data in ([b"before"], [b"x" * 50 + forged + b"y" * 50], [b"after"]):
            volume.commit([log.append(Batch.build("t", data, header_codec="kafka"))])
    path = f"{DIRECTORY}/{0:020d}.log"
    first = 12 + int.from_bytes(disk.read(path)[8:12], "big")
    for at in range(8, 21):
        disk.flip_bit(path, first + at, at % 8)
    found, kinds = found_in(disk)
    assert set(found.values()) <= {b"before", b"after"} and "bad-record" in kinds
