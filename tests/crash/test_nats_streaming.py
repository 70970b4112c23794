"""NATS Streaming's stores when the power goes, when bits flip, when the disk refuses: what was acknowledged stays."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace._core import Batch, Disk, FaultPlan
from headrace.errors import DiskFull, HeadraceError, StorePoisoned
from headrace.layouts.nats_streaming.protos import ClientInfo, SubState
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.testing import CrashDriver, CrashPoint, FakeClock
from tests.support.streaming import content, open_rw

ROOT = "/s"


@dataclass
class Witness:
    """What was acknowledged, and the clock of the workload."""

    acked: dict[str, dict[int, bytes]] = field(default_factory=dict)
    given: dict[str, dict[int, bytes]] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    pending: dict[str, set[int]] = field(default_factory=dict)
    clients: set[str] = field(default_factory=set)
    clock: FakeClock = field(default_factory=FakeClock)

    def append(self, volume: StreamingVolume, channel: str, data: list[bytes], **more: Any) -> None:
        log = volume.create(channel)
        given = self.given.setdefault(channel, {})
        for at, item in enumerate(data):
            given[more.get("positions", [log.next + n for n in range(len(data))])[at]] = item
        batch = Batch.build(channel, data, positions=more.get("positions"))
        ticket = log.append(batch, keep_positions="positions" in more)
        volume.commit([ticket])
        self.acked.setdefault(channel, {}).update(
            {s: given[s] for s in given if ticket.first <= s < ticket.next}
        )


def some(first: int, count: int) -> list[bytes]:
    return [b"" if n % 7 == 0 else bytes([n % 251]) * (40 + n % 90) for n in range(first, first + count)]


def everyday(disk: Disk, witness: Witness) -> None:
    """Two channels over several slices, readers, a clean stop, a second life with a limit, a gap, a drop."""
    volume = open_rw(ROOT, disk, slice_max_msgs=6, clock=witness.clock)
    witness.append(volume, "a", some(1, 4))
    volume.clients.add(ClientInfo(id="c", heartbeat_inbox="h"))
    volume.clients.commit()
    witness.clients.add("c")
    witness.append(volume, "b.c", some(50, 3))
    subs = volume.open("a").subscriptions
    one = subs.create(SubState(client_id="c", inbox="i", durable_name="d", is_durable=True))
    subs.sent(one, [1, 2, 3])
    subs.commit()
    witness.pending["c/d"] = {1, 2, 3}
    witness.append(volume, "a", some(5, 9))
    log = volume.open("a")
    log.append(Batch.build("a", some(14, 3)))
    witness.given["a"] |= {13 + n: item for n, item in enumerate(some(14, 3), 1)}
    subs.acked(one, [2])
    subs.sent(one, [4, 5])
    volume.close()
    witness.acked["a"] |= {s: d for s, d in witness.given["a"].items() if s <= 16}
    volume = open_rw(ROOT, disk, slice_max_msgs=6, clock=witness.clock)
    subs = volume.open("a").subscriptions
    subs.acked(one, [1, 3])
    witness.append(volume, "a", some(17, 8))
    witness.append(volume, "a", some(90, 2), positions=[40, 44])
    subs.compact()
    witness.gone["a"] = 9
    volume.open("a").drop_front(9)
    witness.append(volume, "a", some(45, 3))
    volume.close()


def check(disk: Disk, witness: Witness, point: CrashPoint) -> None:
    """Opens without a flag; everything acknowledged is there; goes on above it; and so after the next cut."""
    try:
        volume = open_rw(ROOT, disk, slice_max_msgs=6, clock=witness.clock)
    except HeadraceError as problem:
        raise AssertionError(f"does not open: {problem}") from problem
    assert not [each for each in volume.damage() if each.kind == "missing"], "a power cut is no loss"
    for channel, acked in witness.acked.items():
        found = content(volume, channel)
        front = witness.gone.get(channel, 0)
        for sequence, data in acked.items():
            assert found.get(sequence, data if sequence < front else None) == data, (channel, sequence)
        for sequence, data in found.items():
            assert witness.given[channel][sequence] == data, (channel, sequence)
        following = volume.open(channel).append(Batch.build(channel, [b"after"])).first
        assert following > max(found, default=0) and following > max(acked, default=0)
        volume.open(channel).commit()
    if witness.pending:
        reader = volume.open("a").subscriptions.reader("c/d")
        assert set(reader.pending) <= {1, 2, 3, 4, 5}
    assert witness.clients <= {client.id for client in volume.clients.all()}
    left = disk.crash(point.seed, "none")  # the power goes again, right after
    with open_rw(ROOT, left, slice_max_msgs=6, clock=witness.clock) as again:
        for channel, acked in witness.acked.items():
            found = content(again, channel)
            assert {s for s in acked if s >= witness.gone.get(channel, 0)} <= set(found)
            assert b"after" in found.values()
    volume.close()
    with StreamingVolume(ROOT, disk=disk) as reader:
        for channel in witness.acked:
            assert content(reader, channel)[max(content(reader, channel))] == b"after"


def test_power_cut_at_every_sync_point() -> None:
    report = CrashDriver(seed=7).run(everyday, check, notes=Witness)
    assert report.sync_points > 60


def test_interval_mode_survives_a_kill_and_reports_a_power_cut() -> None:
    """A killed process loses nothing that was acknowledged; a power cut what was not synced, and it opens."""

    def workload(disk: Disk, witness: Witness) -> None:
        volume = open_rw(ROOT, disk, durability="interval", clock=witness.clock)
        witness.append(volume, "a", some(1, 5))
        volume.open("a").commit()
        for n in range(6, 40, 4):
            witness.append(volume, "a", some(n, 4))

    disk, witness = Disk.memory(), Witness()
    workload(disk, witness)
    with open_rw(ROOT, disk.crash(1, "all"), clock=witness.clock) as volume:
        assert content(volume, "a") == witness.acked["a"]
    for seed in range(40):
        with open_rw(ROOT, disk.crash(seed, "random"), clock=witness.clock) as volume:
            if "a" not in volume.logs():
                continue
            found = content(volume, "a")
            assert all(witness.given["a"][sequence] == data for sequence, data in found.items())
            assert {1, 2, 3, 4, 5} <= set(found)
            assert volume.open("a").append(Batch.build("a", [b"x"])).first > max(found)


def sound_store() -> tuple[Disk, dict[int, bytes]]:
    disk, clock = Disk.memory(), FakeClock()
    with open_rw(ROOT, disk, slice_max_msgs=5, clock=clock) as volume:
        log = volume.create("orders")
        volume.commit([log.append(Batch.build("orders", some(1, 13)))])
        one = log.subscriptions.create(SubState(client_id="c", inbox="i", durable_name="d", is_durable=True))
        log.subscriptions.sent(one, [1, 2, 3])
        log.subscriptions.acked(one, [2])
        volume.clients.add(ClientInfo(id="c"))
        return disk, content(volume, "orders")


def test_every_bit_of_every_file() -> None:
    """One flipped bit costs nothing at all: records are repaired from the CRC and the index, the index from the
    records. What is returned is always an original. Opening for writing loses nothing either, or stops."""
    disk, original = sound_store()
    outcomes = {"repaired": 0, "unharmed": 0, "lost": 0, "stopped": 0, "opened": 0}
    files = [f"{ROOT}/orders/{name}" for name, is_dir, _ in disk.list(f"{ROOT}/orders") if not is_dir]
    files += [f"{ROOT}/server.dat", f"{ROOT}/clients.dat"]
    for path in files:
        entry = disk.entry(path)
        for offset in range(entry.size if entry is not None else 0):
            for bit in range(8) if path.endswith(".dat") and "msgs.2" in path else (offset % 8,):
                broken = disk.crash(0, "all")
                broken.flip_bit(path, offset, bit)
                with StreamingVolume(ROOT, disk=broken) as volume:
                    found = content(volume, "orders")
                    damage = volume.damage()
                    pending = [r.pending for r in volume.open("orders").subscriptions.readers()]
                assert all(original[sequence] == data for sequence, data in found.items())
                if "msgs" in path:
                    outcomes["lost" if found != original else "repaired" if damage else "unharmed"] += 1
                    assert found == original, (path, offset, bit)
                    assert damage, (path, offset, bit)
                elif "subs" in path:
                    assert found == original
                    assert damage or pending == [(1, 3)]
                try:
                    with open_rw(ROOT, broken, slice_max_msgs=5) as volume:
                        assert all(original[s] == d for s, d in content(volume, "orders").items())
                        last = volume.open("orders").append(Batch.build("orders", [b"x"])).first
                        assert last > 13 or "msgs.3" in path
                        outcomes["opened"] += 1
                except HeadraceError:
                    outcomes["stopped"] += 1
    print(outcomes)
    assert outcomes["lost"] == 0 and outcomes["repaired"] > 3000


def test_more_damage_costs_what_it_covers() -> None:
    """Half a record overwritten, index gone, zeros in the middle: the others are all there, the loss is told."""
    disk, original = sound_store()
    path = f"{ROOT}/orders/msgs.2.dat"
    entries = [record for record in original if 6 <= record <= 10]
    for victim in range(5):
        broken = disk.crash(0, "all")
        file = broken.open(path, "write")
        with StreamingVolume(ROOT, disk=broken) as volume:
            index = broken.read(f"{ROOT}/orders/msgs.2.idx")
            offset = int.from_bytes(index[4 + 32 * victim + 8 : 4 + 32 * victim + 16], "little")
        file.write_at(offset + 3, b"\xff" * 20)  # the size, too
        for lost_index in (False, True):
            if lost_index:
                broken.remove_file(f"{ROOT}/orders/msgs.2.idx")
            with StreamingVolume(ROOT, disk=broken) as volume:
                found = content(volume, "orders")
                assert found == {s: d for s, d in original.items() if s != entries[victim]}, (
                    victim,
                    lost_index,
                )
                lost = [d for d in volume.damage() if d.kind == "bad-record"]
                assert len(lost) == 1 and lost[0].offset == offset
                if not (lost_index and victim == 4):  # nothing behind it tells which it was
                    assert (lost[0].first_seq, lost[0].next_seq) == (entries[victim], entries[victim] + 1)


def test_a_failed_sync_poisons_and_opening_again_goes_on() -> None:
    for at in range(40):
        inner, plan = Disk.memory(), FaultPlan(fail_sync_at=at)
        disk = Disk.faulty(inner, plan)
        acked: dict[int, bytes] = {}
        try:
            volume = open_rw(ROOT, disk, slice_max_msgs=4)
            log = volume.create("a")
            for n in range(10):
                ticket = log.append(Batch.build("a", [b"%d" % n]))
                volume.commit([ticket])
                acked[ticket.first] = b"%d" % n
        except HeadraceError:
            if (log := locals().get("log")) and log.group.poisoned is not None:
                with pytest.raises(StorePoisoned):
                    log.append(Batch.build("a", [b"no"]))
        plan.clear()
        plan.fail_sync_at = None
        left = inner.crash(at, "none")
        if left.entry(ROOT) is None:
            continue
        with open_rw(ROOT, left, slice_max_msgs=4) as volume:
            found = content(volume, "a") if "a" in volume.logs() else {}
            assert acked.items() <= found.items()


def test_a_poisoned_channel_is_healed() -> None:
    inner, plan = Disk.memory(), FaultPlan()
    disk = Disk.faulty(inner, plan)
    volume = open_rw(ROOT, disk)
    log, other = volume.create("a"), volume.create("b")
    volume.commit([log.append(Batch.build("a", [b"1"])), other.append(Batch.build("b", [b"1"]))])
    plan.clear()
    plan.fail_sync_at = 0
    ticket = log.append(Batch.build("a", [b"in doubt"]))
    with pytest.raises(HeadraceError):
        volume.commit([ticket])
    with pytest.raises(StorePoisoned):
        log.append(Batch.build("a", [b"no"]))
    volume.commit([other.append(Batch.build("b", [b"2"]))])
    healed = volume.heal("a")
    volume.commit([healed.append(Batch.build("a", [b"3"]))])
    for disk_after in (inner, inner.crash(1, "none")):
        with StreamingVolume(ROOT, disk=disk_after) as reader:
            assert content(reader, "a") == {1: b"1", 2: b"in doubt", 3: b"3"}
    volume.close()


def test_a_full_disk_refuses_and_recovers() -> None:
    inner, plan = Disk.memory(), FaultPlan()
    disk = Disk.faulty(inner, plan)
    with open_rw(ROOT, disk) as volume:
        log = volume.create("a")
        volume.commit([log.append(Batch.build("a", [b"1"]))])
        for cut in (0, 5):
            plan.clear()
            plan.short_write_bytes, plan.sticky, plan.fail_write_at = cut, True, 0
            with pytest.raises(DiskFull):
                log.append(Batch.build("a", [b"2" * 50]))
            assert [r.data for r in log.read(1)] == [b"1"]
            plan.clear()
            plan.fail_write_at = None
        volume.commit([log.append(Batch.build("a", [b"3"]))])
    with open_rw(ROOT, inner) as volume:
        assert list(content(volume, "a").values()) == [b"1", b"3"] and not volume.damage()


WRITER = """
import sys
from headrace._core import Batch
from tests.support.streaming import open_rw
volume = open_rw(sys.argv[1], slice_max_msgs=500)
log = volume.create("a")
while True:
    ticket = log.append(Batch.build("", [b"%d" % (log.next + n) for n in range(20)]))
    volume.commit([ticket])
    print(ticket.next - 1, flush=True)
"""


def test_a_killed_writer(tmp_path: Path) -> None:
    """kill -9 of the process, several lives on one directory: what it acknowledged is there, and it goes on."""
    path, last = str(tmp_path / "ds"), 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, path],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert writer.stdout is not None
        acked = [int(writer.stdout.readline()) for _ in range(40)]
        writer.kill()
        writer.wait()
        acked += [int(line) for line in writer.stdout.read().split()]
        writer.stdout.close()
        assert acked[0] > last
        last = acked[-1]
        with StreamingVolume(path) as volume:
            found = content(volume, "a")
            assert set(range(1, last + 1)) <= set(found)
            assert all(data == b"%d" % sequence for sequence, data in found.items())
