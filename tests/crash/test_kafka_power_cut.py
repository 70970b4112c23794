"""Kafka's layout, promises 1, 4 and 7: the power goes at every sync point of what a log can do.

After each cut the log is opened for writing: every acknowledged message is there, byte for byte, no acknowledged offset
is given out again, and what is seen is still there after a second cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import headrace
from headrace._core import Batch, Disk, FaultPlan
from headrace.errors import DiskFull, HeadraceError, StorePoisoned
from headrace.layouts.base import Frames
from headrace.layouts.kafka.log import KafkaLog
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.testing import CrashDriver, CrashPoint, FakeClock

NAME = "orders-0"
START_NS = 1_700_000_000_000_000_000


@dataclass
class Notes:
    """What the workload was told is stored."""

    acked: dict[int, bytes] = field(default_factory=lambda: {})
    dropped_below: int = 0
    dropping_below: int = 0
    created: bool = False


def opened(disk: Disk, clock: FakeClock, **options: object) -> KafkaVolume:
    chosen = KafkaOptions.of({"segment_bytes": 900, "batch_size": 200, "index_interval_bytes": 100} | options)
    return KafkaVolume(
        "/store/logs", mode="rw", create=True, disk=disk, clock=clock, options=chosen, maintenance=False
    )


def put(volume: KafkaVolume, log: KafkaLog, notes: Notes, count: int, codec: str = "") -> None:
    first = log.next
    data = [b"%d/%s" % (first + n, b"x" * (n % 23)) for n in range(count)]
    ticket = log.append(
        Batch.build("t", data, times=[START_NS + first + n for n in range(count)], header_codec="kafka")
    )
    volume.commit([ticket])
    notes.acked |= {ticket.first + n: value for n, value in enumerate(data)}


def everyday(disk: Disk, notes: Notes) -> None:
    clock = FakeClock(START_NS)
    volume = opened(disk, clock)
    log = volume.create(NAME)
    notes.created = True
    for count in (1, 7, 30, 3):
        put(volume, log, notes, count)
    frames = log.read_frames(0)
    ticket = log.append_frames(Frames("kafka", frames.data, 0, 0, 0))
    volume.commit([ticket])
    copied = [notes.acked[n] for n in range(frames.first, frames.next)]
    notes.acked |= {ticket.first + n: value for n, value in enumerate(copied)}
    volume.close()

    volume = opened(disk, clock)
    log = volume.open(NAME)
    put(volume, log, notes, 20)
    notes.dropping_below = 18
    log.drop_front(18)
    notes.dropped_below = 18
    put(volume, log, notes, 25)
    volume.write_checkpoints()
    put(volume, log, notes, 2)
    volume.close()


def check(disk: Disk, notes: Notes, point: CrashPoint) -> None:
    clock = FakeClock(START_NS + 10**12)
    volume = opened(disk, clock)
    if NAME not in volume.logs():
        assert not notes.acked, "the log is lost"
        return
    log = volume.open(NAME)
    assert not [each for each in volume.damage() if each.kind == "missing"], "a power cut is no loss"
    found = {record.position: record.data for record in log}
    for offset, value in notes.acked.items():
        if offset >= max(notes.dropped_below, notes.dropping_below):
            assert found.get(offset) == value, f"{offset} was acknowledged"
    assert not [offset for offset in found if offset < notes.dropped_below]
    last = max(notes.acked, default=-1)
    assert log.next > last
    again = opened(disk.crash(0, "none"), clock).open(NAME)
    assert {record.position: record.data for record in again} == found, "seen, and gone with the next cut"
    assert again.next == log.next
    ticket = log.append(headrace.batch("t", [b"after"]))
    volume.commit([ticket])
    assert ticket.first > last and log.read(ticket.first, 1)[0].data == b"after"
    volume.close()
    # Shortcuts away: the logs alone tell the same.
    for file, _, _ in disk.list(f"/store/logs/{NAME}"):
        if file.endswith(("index", ".snapshot")):
            disk.remove_file(f"/store/logs/{NAME}/{file}")
    bare = opened(disk, clock).open(NAME)
    assert {r.position: r.data for r in bare} == found | {ticket.first: b"after"}


def test_power_cut_at_every_sync_point() -> None:
    report = CrashDriver(seed=5, random_per_point=2).run(everyday, check, notes=Notes)
    assert report.sync_points > 60 and report.crashes > 200


def test_power_cut_while_recovering() -> None:
    """A damaged log is mended; the power goes at every sync point of that, too."""
    master = Disk.memory()
    notes = Notes()
    everyday(master, notes)
    logs = [name for name, _, _ in master.list(f"/store/logs/{NAME}") if name.endswith(".log")]
    master.remove_file("/store/logs/.kafka_cleanshutdown")
    master.remove_file("/store/logs/recovery-point-offset-checkpoint")
    master.sync_dir("/store/logs")
    for name in logs[:2]:
        master.flip_bit(f"/store/logs/{NAME}/{name}", 250, 3)
    clock = FakeClock(START_NS + 10**12)
    survivors = {r.position: r.data for r in opened(master.crash(0, "all"), clock).open(NAME)}
    lost = {offset for offset in notes.acked if offset >= 18 and offset not in survivors}
    assert 0 < len(lost) < 40

    for seed in range(3):
        for cut in range(200):
            disk = master.crash(seed, "all")
            disk.power_cut_at(cut)
            try:
                opened(disk, clock).open(NAME)
            except HeadraceError:
                disk = disk.crash(seed, "random")
            else:
                break
            found = {r.position: r.data for r in opened(disk, clock).open(NAME)}
            assert found == survivors, f"cut {cut}, seed {seed}"
        else:
            pytest.fail("recovery never came to its end")


def test_a_failed_sync_poisons_and_a_full_disk_does_not() -> None:
    plan = FaultPlan(path_contains=".log")
    disk = Disk.faulty(Disk.memory(), plan)
    clock = FakeClock(START_NS)
    volume = opened(disk, clock)
    log = volume.create(NAME)
    notes = Notes()
    put(volume, log, notes, 5)
    plan.clear()
    plan.fail_write_at, plan.short_write_bytes = 0, 17
    with pytest.raises(DiskFull):
        log.append(headrace.batch("t", [b"no room"]))
    plan.clear()
    plan.fail_write_at = None
    put(volume, log, notes, 3)
    assert [r.data for r in log] == list(notes.acked.values())
    plan.clear()
    plan.fail_sync_at = 0
    ticket = log.append(headrace.batch("t", [b"unsynced"]))
    with pytest.raises(HeadraceError):
        volume.commit([ticket])
    with pytest.raises(StorePoisoned):
        log.append(headrace.batch("t", [b"more"]))
    plan.clear()
    plan.fail_sync_at = None
    with pytest.raises(StorePoisoned):
        volume.close()
    again = opened(disk, clock)
    held = [r.data for r in again.open(NAME)]
    assert held[: len(notes.acked)] == list(notes.acked.values())
    put(again, again.open(NAME), notes, 1)
