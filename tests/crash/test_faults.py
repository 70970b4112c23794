"""Promise 6: a sync that fails poisons, a full disk refuses and recovers; nothing acknowledged suffers.

Every sync and every write of a workload fails once, alone, on the blocks, the directories, the journal and
everything else. What was acknowledged must be there: after healing, after opening again, and after a power cut
that keeps nothing but what was synced.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace
from headrace._core import Disk, FaultPlan
from headrace.errors import DiskFault, DiskFull, HeadraceError, StoreClosed, StorePoisoned
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.testing.plugin import FaultyDisk
from tests.crash.test_power_cut import compressed, everyday, limited, some
from tests.crash.witness import STREAM, STREAM_DIR, Snapshot, Witness, check_found, open_volume

Workload = Callable[[Disk, Witness], None]


def faulty(plan: FaultPlan) -> tuple[Disk, Disk]:
    memory = Disk.memory()
    return Disk.faulty(memory, plan), memory


def run_until_fault(workload: Workload, plan: FaultPlan) -> tuple[Disk, Witness, HeadraceError | None]:
    """The workload until a call of it raises; the disk beneath, what was acknowledged, and what was raised."""
    disk, memory = faulty(plan)
    witness = Witness()
    try:
        workload(disk, witness)
    except HeadraceError as error:
        return memory, witness, error
    return memory, witness, None


def check_all_is_there(memory: Disk, witness: Witness, keep: str) -> None:
    """Open what is left, compare, go on writing."""
    disk = memory.crash(0, keep)
    volume = open_volume(disk, create=True, clock=witness.clock)
    if not witness.created:
        return
    store = volume.open(STREAM)
    check_found(witness, Snapshot.of(store))
    before = store.state()
    floor = (
        witness.confirmed.last
        if witness.step is None
        else witness.step.lowers_last_to or witness.confirmed.last
    )
    ticket = store.append(headrace.batch("s.0", [b"afterwards"]))
    store.commit(ticket.mark)
    assert ticket.first > max(before.last_seq, floor)
    volume.close()
    again = open_volume(disk, clock=witness.clock).open(STREAM)
    assert ticket.first in Snapshot.of(again).messages


def check_it_goes_on(memory: Disk, witness: Witness, error: HeadraceError) -> bool:
    """The same store, in the same process, after the fault: healed or, if need be, asking to be opened again."""
    store = witness.store
    if store is None or not witness.created:
        return False
    try:
        if isinstance(error, StorePoisoned):
            store.heal()
        ticket = store.append(headrace.batch("s.0", [b"goes on"]))
        store.commit(ticket.mark)
    except StorePoisoned as refused:
        assert "open" in str(refused)
        return False
    except StoreClosed:
        return False  # the fault came while it was being stopped
    witness.note_addition(ticket.first, ("s.0", None, b"goes on"))
    check_found(witness, Snapshot.of(store))
    assert ticket.first in Snapshot.of(store).messages
    for keep in ("none", "all"):
        found = Snapshot.of(open_volume(memory.crash(0, keep), clock=witness.clock).open(STREAM))
        check_found(witness, found)
        assert ticket.first in found.messages, f"acknowledged after the fault, and lost (keep={keep})"
    return True


def count(workload: Workload, path: str) -> tuple[int, int]:
    """(writes, syncs) of the whole workload on paths that contain `path`."""
    plan = FaultPlan(path_contains=path)
    _, _, error = run_until_fault(workload, plan)
    assert error is None
    return plan.writes, plan.syncs


PLACES = [".blk", "/msgs", ".journal", ""]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("workload", [everyday, compressed, limited])
def test_every_sync_fails_once(workload: Workload, place: str) -> None:
    """Either somebody is told, or it was a shortcut that nobody needs; the acknowledged survives in both cases."""
    _, syncs = count(workload, place)
    failed = went_on = 0
    for k in range(syncs):
        plan = FaultPlan(fail_sync_at=k, path_contains=place)
        memory, witness, error = run_until_fault(workload, plan)
        failed += error is not None
        assert error is None or isinstance(error, StorePoisoned | DiskFault), error
        for keep in ("none", "all"):
            check_all_is_there(memory, witness, keep)
        if error is not None:
            went_on += check_it_goes_on(memory, witness, error)
    print(
        f"{workload.__name__} {place or 'anywhere'}: {syncs} failed syncs, {failed} raised, {went_on} went on"
    )
    assert failed or place == ".journal" or not syncs


@pytest.mark.parametrize("workload", [everyday, compressed, limited])
@pytest.mark.parametrize(("error", "short"), [("ENOSPC", 0), ("ENOSPC", 7), ("EROFS", 0), ("EIO", 40)])
def test_every_write_fails_once(workload: Workload, error: str, short: int) -> None:
    """A write is refused, after `short` bytes of it went through: nothing of the step may be half there."""
    writes, _ = count(workload, "")
    failed = went_on = 0
    for k in range(writes):
        plan = FaultPlan(fail_write_at=k, write_error=error, short_write_bytes=short)
        memory, witness, raised = run_until_fault(workload, plan)
        failed += raised is not None
        kind = DiskFull if error == "ENOSPC" else DiskFault
        assert raised is None or isinstance(raised, kind), raised
        for keep in ("none", "all"):
            check_all_is_there(memory, witness, keep)
        if raised is not None:
            went_on += check_it_goes_on(memory, witness, raised)
    print(f"{workload.__name__} {error}: {writes} refused writes, {failed} raised, {went_on} went on")
    assert failed


def filled(faulty_disk: FaultyDisk) -> tuple[Witness, FileStreamStore]:
    witness = Witness()
    store = witness.create(open_volume(faulty_disk.disk, create=True), subjects=["s.>"])
    witness.append(store, some(1, 40))
    return witness, store


class TestPoison:
    def test_nothing_is_acknowledged_and_heal_writes_it_again(self, faulty_disk: FaultyDisk) -> None:
        witness, store = filled(faulty_disk)
        ticket = store.append(headrace.batch("s.0", [b"in doubt", b"too"]))
        faulty_disk.plan.path_contains = ".blk"
        faulty_disk.plan.fail_sync_at = faulty_disk.plan.syncs
        with pytest.raises(StorePoisoned):
            store.commit(ticket.mark)
        assert store.log.durable_seq == 40, "the durable mark must not move"
        for refused in (
            lambda: store.append(headrace.batch("s.0", [b"more"])),
            lambda: store.commit(ticket.mark),
            lambda: store.remove([1]),
        ):
            with pytest.raises(StorePoisoned):
                refused()
        before = store.log.newest_block
        store.heal()
        assert store.log.newest_block == before + 1, "the tail goes into a new block"
        store.commit(ticket.mark)
        assert [record.data for record in store.read(41)] == [b"in doubt", b"too"]
        after = store.append(headrace.batch("s.0", [b"after"]))
        store.commit(after.mark)
        assert after.first == 43
        disk = faulty_disk.memory.crash(0, "none")
        found = Snapshot.of(open_volume(disk).open(STREAM))
        assert {
            41,
            42,
            43,
        } <= found.messages.keys() and witness.confirmed.messages.items() <= found.messages.items()
        assert not open_volume(disk.crash(0, "all")).open(STREAM).damage()

    def test_opening_again_heals_too(self, faulty_disk: FaultyDisk) -> None:
        witness, store = filled(faulty_disk)
        ticket = store.append(headrace.batch("s.0", [b"in doubt"]))
        faulty_disk.plan.path_contains = ".blk"
        faulty_disk.plan.fail_sync_at = faulty_disk.plan.syncs
        with pytest.raises(StorePoisoned):
            store.commit(ticket.mark)
        for keep, there in (("none", False), ("all", True)):
            found = Snapshot.of(open_volume(faulty_disk.memory.crash(0, keep)).open(STREAM))
            assert witness.confirmed.messages.items() <= found.messages.items()
            assert (41 in found.messages) is there

    @pytest.mark.parametrize("at", range(6))
    def test_heal_may_fail_and_be_tried_again(self, at: int, faulty_disk: FaultyDisk) -> None:
        witness, store = filled(faulty_disk)
        witness.remove(store, [3, 39])
        ticket = store.append(headrace.batch("s.0", [b"in doubt"]))
        store.remove([40])
        plan = faulty_disk.plan
        plan.fail_sync_at = plan.syncs
        with pytest.raises(StorePoisoned):
            store.commit(ticket.mark)
        plan.fail_sync_at = None
        if at < 3:
            plan.fail_write_at = plan.writes + at
        else:
            plan.fail_sync_at = plan.syncs + at - 3
        try:
            store.heal()
        except HeadraceError:
            plan.clear()
            with pytest.raises(StorePoisoned):
                store.append(headrace.batch("s.0", [b"more"]))
            store.heal()
        plan.clear()
        store.commit(store.append(headrace.batch("s.0", [b"after"])).mark)
        found = Snapshot.of(store)
        assert found.messages.keys() == set(range(1, 43)) - {3, 39, 40}
        disk = faulty_disk.memory.crash(0, "none")
        assert Snapshot.of(open_volume(disk).open(STREAM)) == found

    def test_waiting_commits_fail(self, faulty_disk: FaultyDisk) -> None:
        volume = open_volume(faulty_disk.disk, create=True)
        store = volume.create(STREAM, subjects=["s.>"])
        tickets = [store.append(headrace.batch("s.0", [b"%d" % n])) for n in range(8)]
        plan = faulty_disk.plan
        plan.fail_sync_at = plan.syncs
        waiting = [volume.commit_soon([ticket]) for ticket in tickets]
        for each in waiting:
            assert isinstance(each.exception(30), StorePoisoned)
        store.heal()
        volume.commit(tickets)
        assert store.state().messages == 8

    def test_interval_mode_writes_sealed_blocks_again(self, faulty_disk: FaultyDisk) -> None:
        """Blocks that were sealed before a sync are in doubt as well."""
        volume = open_volume(faulty_disk.disk, create=True, durability="interval")
        store = volume.create(STREAM, subjects=["s.>"])
        store.append(headrace.batch([f"s.{n % 3}" for n in range(60)], [b"x" * 60] * 60))
        assert len(store.log.blocks()) > 2
        plan = faulty_disk.plan
        plan.path_contains, plan.fail_sync_at = ".blk", 0
        plan.clear()
        plan.fail_sync_at = 1
        with pytest.raises(StorePoisoned):
            store.commit()
        plan.clear()
        store.heal()
        found = Snapshot.of(open_volume(faulty_disk.memory.crash(0, "none")).open(STREAM))
        assert found.messages.keys() == set(range(1, 61))


class TestFullDisk:
    def full(self, plan: FaultPlan, short: int = 0) -> None:
        """From now on no block takes a byte more."""
        plan.path_contains, plan.sticky, plan.short_write_bytes = ".blk", True, short
        plan.clear()
        plan.fail_write_at = 0

    @pytest.mark.parametrize("short", [0, 1, 30, 200])
    @pytest.mark.parametrize("size", [1, 60])
    def test_nothing_of_a_refused_append_is_visible(
        self, size: int, short: int, faulty_disk: FaultyDisk
    ) -> None:
        """Also when the batch had filled blocks before the disk was full."""
        witness, store = filled(faulty_disk)
        batch = headrace.batch("s.0", [b"refused" * 5] * size)
        plan = faulty_disk.plan
        whole = open_volume(faulty_disk.memory.crash(0, "all")).open(STREAM)
        writes = len(whole.log.blocks()) + size * 82 // 1500 + 2
        for k in range(writes):
            plan.path_contains, plan.short_write_bytes = ".blk", short
            plan.clear()
            plan.fail_write_at = k
            before = Snapshot.of(store)
            try:
                store.append(batch)
            except DiskFull:
                plan.clear()
                now = Snapshot.of(store)
                assert now.messages == before.messages
                store.commit()
                reopened = Snapshot.of(open_volume(faulty_disk.memory.crash(0, "all")).open(STREAM))
                assert reopened.messages == before.messages
            plan.clear()
            ticket = store.append(headrace.batch("s.1", [b"space again"]))
            store.commit(ticket.mark)
            assert store.load_msg(ticket.first).data == b"space again"
        disk = faulty_disk.memory.crash(0, "none")
        found = Snapshot.of(open_volume(disk).open(STREAM))
        assert found == Snapshot.of(store)
        assert witness.confirmed.messages.items() <= found.messages.items()

    def test_removing_works_through_the_reserve(self, memory_disk: Disk) -> None:
        """Space is counted here: the reserve's bytes are what the tombstones need."""
        witness = Witness()
        plan = FaultPlan(path_contains=".blk", sticky=True)
        disk = Disk.faulty(memory_disk, plan)
        store = witness.create(open_volume(disk, create=True), subjects=["s.>"])
        witness.append(store, some(1, 40))
        reserve = f"{STREAM_DIR}/headrace/reserve"
        for remove in (
            lambda: store.remove_msg(5),
            lambda: store.purge_ex("s.1", 0, 1),
            lambda: store.compact(20),
            lambda: store.purge(),
        ):
            store.sidecar.keep_reserve()
            self.full_until_reserve_is_gone(plan, memory_disk, reserve)
            before = store.state().messages
            remove()
            assert store.state().messages < before
            plan.clear()
        ticket = store.append(headrace.batch("s.0", [b"room again"]))
        store.commit(ticket.mark)
        found = Snapshot.of(open_volume(memory_disk.crash(0, "none")).open(STREAM))
        assert found == Snapshot.of(store) and list(found.messages) == [ticket.first]

    def full_until_reserve_is_gone(self, plan: FaultPlan, memory: Disk, reserve: str) -> None:
        """One write is refused; the next one finds the space that the reserve has given back."""
        assert memory.entry(reserve) is not None
        plan.clear()
        plan.sticky, plan.fail_write_at = False, 0

    def test_a_disk_that_stays_full_refuses_and_keeps(self, faulty_disk: FaultyDisk) -> None:
        witness, store = filled(faulty_disk)
        self.full(faulty_disk.plan, short=11)
        for _ in range(3):
            with pytest.raises(DiskFull):
                store.append(headrace.batch("s.0", [b"refused"]))
            with pytest.raises(DiskFull):
                store.remove([1])
        assert Snapshot.of(store).messages == witness.confirmed.messages
        faulty_disk.plan.clear()
        witness.append(store, some(41, 3))
        found = Snapshot.of(open_volume(faulty_disk.memory.crash(0, "none")).open(STREAM))
        assert found == witness.confirmed
