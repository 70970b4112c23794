"""The journal: what was committed comes back, whatever the crash, the flip or the fault."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core import Disk, FaultPlan
from headrace.errors import BadInput, DiskFault, DiskFull, StoreClosed, StorePoisoned
from headrace.layouts.journal import FRAME_BYTES, HEAD_BYTES, Journal

PLACE = "/a/b"


def load(disk: Disk) -> tuple[Journal, list[tuple[int, int, bytes]]]:
    journal = Journal(disk, PLACE, "j")
    return journal, [(r.position, r.kind, r.payload) for r in journal.load()]


def payloads(disk: Disk) -> list[bytes]:
    return [payload for _, _, payload in load(disk)[1]]


def started(disk: Disk) -> Journal:
    journal, _ = load(disk)
    journal.start(keep_older=True)
    return journal


def filled(*items: bytes) -> Disk:
    disk = Disk.memory()
    journal = started(disk)
    for item in items:
        journal.append(1, item)
    journal.commit()
    return disk


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=30))
def test_what_is_committed_is_loaded(records: list[tuple[int, bytes]]) -> None:
    disk = Disk.memory()
    journal = started(disk)
    for kind, payload in records:
        journal.append(kind, payload)
    journal.commit()
    again, found = load(disk.crash(0, "none"))
    assert found == [(i, kind, payload) for i, (kind, payload) in enumerate(records, 1)]
    assert again.damage == []
    assert again.position == len(records)


def test_an_absent_journal_is_empty() -> None:
    assert load(Disk.memory())[1] == []


def test_nothing_is_written_before_commit() -> None:
    disk = filled(b"one")
    journal = started(disk)
    journal.append(1, b"two")
    assert payloads(disk) == [b"one"]
    journal.commit()
    journal.commit()
    assert payloads(disk) == [b"one", b"two"]


@given(st.binary(max_size=400))
def test_random_bytes_never_raise(data: bytes) -> None:
    disk = Disk.memory()
    disk.create_dir_all(PLACE)
    disk.replace_file(f"{PLACE}/j.1.journal", data)
    journal, _ = load(disk)
    journal.start(keep_older=True)
    journal.append(1, b"x")
    journal.commit()
    assert payloads(disk)[-1:] == [b"x"]


def test_a_torn_tail_is_left_alone_and_followed_by_a_new_file() -> None:
    disk = filled(b"one", b"two", b"three")
    path = f"{PLACE}/j.1.journal"
    whole = disk.read(path)
    for cut in range(1, FRAME_BYTES + 1 + 5):
        disk.replace_file(path, whole[:-cut])
        journal, found = load(disk)
        assert [p for _, _, p in found] == [b"one", b"two"]
        assert [d.kind for d in journal.damage] == ["unsound-tail"]
        assert journal.damage[0].offset == HEAD_BYTES + 2 * (FRAME_BYTES + 4)
    journal.start(keep_older=True)
    journal.append(1, b"four")
    journal.commit()
    assert disk.read(path) == whole[:-cut]
    assert load(disk)[1] == [(1, 1, b"one"), (2, 1, b"two"), (3, 1, b"four")]


def test_every_flipped_bit_is_repaired_and_reported() -> None:
    items = [b"one", b"a longer one", b"", b"four"]
    size = len(filled(*items).read(f"{PLACE}/j.1.journal"))
    for offset in range(size):
        for bit in range(8):
            disk = filled(*items)
            disk.flip_bit(f"{PLACE}/j.1.journal", offset, bit)
            journal, found = load(disk)
            assert [p for _, _, p in found] == items, (offset, bit)
            assert [p for p, _, _ in found] == [1, 2, 3, 4]
            if offset >= HEAD_BYTES:
                assert [d.kind for d in journal.damage] == ["repaired"]


def test_damage_in_the_middle_stops_and_says_that_more_follows() -> None:
    disk = filled(b"one", b"two", b"three")
    path = f"{PLACE}/j.1.journal"
    for bit in (0, 3, 5):
        disk.flip_bit(path, HEAD_BYTES + FRAME_BYTES + 4 + FRAME_BYTES + 2, bit)
    journal, found = load(disk)
    assert [p for _, _, p in found] == [b"one"]
    assert [d.kind for d in journal.damage] == ["bad-record"]


def checkpoint(journal: Journal, save: Callable[[], object]) -> None:
    """As whoever keeps a journal makes one: others may append meanwhile."""
    journal.rotate()
    save()
    journal.drop_older()


def test_a_checkpoint_begins_a_new_file_and_removes_the_old() -> None:
    disk = filled(b"one", b"two")
    journal = started(disk)
    journal.append(1, b"three")
    saved: list[int] = []
    checkpoint(journal, lambda: saved.append(journal.position))
    assert saved == [3]
    assert [name for name, _, _ in disk.list(PLACE)] == ["j.3.journal"]
    journal.append(2, b"four")
    journal.commit()
    assert load(disk)[1] == [(4, 2, b"four")]
    journal.close(remove=True)
    assert disk.list(PLACE) == []
    with pytest.raises(StoreClosed):
        journal.append(1, b"x")


def test_a_failed_checkpoint_changes_nothing() -> None:
    disk = filled(b"one")
    journal = started(disk)
    journal.append(1, b"two")

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        checkpoint(journal, fail)
    journal.commit()
    assert payloads(disk) == [b"one", b"two"]


def test_positions_go_on_after_files_were_removed() -> None:
    journal = Journal(Disk.memory(), PLACE, "j")
    journal.start(after_position=41)
    assert journal.append(1, b"x") == 42


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_power_cut_at_every_sync(keep: str) -> None:
    """Committed records survive; the checkpoint's content counts for what it took in."""

    def run(disk: Disk, acknowledged: list[bytes], saved: list[list[bytes]]) -> None:
        journal = started(disk)
        known: list[bytes] = []
        for i in range(9):
            item = b"record %d" % i
            journal.append(1, item)
            known.append(item)
            journal.commit()
            acknowledged.append(item)
            if i in (3, 6):

                def save() -> None:
                    disk.replace_file("/checkpoint", b"|".join(known))

                checkpoint(journal, save)

    whole = Disk.memory()
    run(whole, [], [])
    for point in range(whole.sync_points() + 1):
        for seed in range(6 if keep == "random" else 1):
            disk, acknowledged = Disk.memory(), list[bytes]()
            disk.power_cut_at(point)
            try:
                run(disk, acknowledged, [])
            except (DiskFault, StorePoisoned):
                pass
            after = disk.crash(seed, keep)
            saved = after.read("/checkpoint").split(b"|") if after.entry("/checkpoint") else []
            survived = saved + [p for p in payloads(after) if p not in saved]
            assert survived[: len(acknowledged)] == acknowledged
            assert len(survived) <= len(acknowledged) + 1


def test_a_failed_sync_poisons() -> None:
    plan = FaultPlan()
    disk = Disk.faulty(Disk.memory(), plan)
    journal = started(disk)
    plan.fail_sync_at = plan.syncs
    journal.append(1, b"x")
    with pytest.raises(StorePoisoned):
        journal.commit()
    plan.clear()
    with pytest.raises(StorePoisoned):
        journal.append(1, b"y")
    with pytest.raises(StorePoisoned):
        journal.commit()


@pytest.mark.parametrize("short", [0, 3, 20])
def test_a_full_disk_can_be_tried_again(short: int) -> None:
    plan = FaultPlan()
    inner = Disk.memory()
    journal = started(Disk.faulty(inner, plan))
    journal.append(1, b"one")
    plan.short_write_bytes = short
    plan.fail_write_at = plan.writes
    with pytest.raises(DiskFull):
        journal.commit()
    journal.append(1, b"two")
    journal.commit()
    assert payloads(inner) == [b"one", b"two"]


def test_a_generation_that_could_not_be_made_does_not_hide_the_old_one() -> None:
    for fail in range(6):
        plan = FaultPlan()
        inner = Disk.memory()
        disk = Disk.faulty(inner, plan)
        journal = started(disk)
        journal.append(1, b"one")
        journal.commit()
        plan.fail_sync_at = plan.syncs + fail
        plan.sticky = True
        try:
            checkpoint(journal, lambda: None)
            gone = True
        except (DiskFault, StorePoisoned):
            gone = False
        plan.clear()
        try:
            journal.append(1, b"two")
            journal.commit()
            # An old file whose removal did not reach the disk is replayed once more: positions tell what is known.
            expected = [[b"one", b"two"], [b"two"]] if gone else [[b"one", b"two"]]
            assert payloads(inner.crash(0, "none")) in expected
        except StorePoisoned:
            assert not gone


def test_threads_share_syncs_and_each_record_is_durable_when_its_commit_returns() -> None:
    disk = Disk.memory()
    journal = started(disk)
    before = disk.sync_points()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(50):
                position = journal.append(number, b"%d" % i)
                journal.commit(position)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    _, found = load(disk.crash(0, "none"))
    for number in range(8):
        assert [p for _, kind, p in found if kind == number] == [b"%d" % i for i in range(50)]
    assert disk.sync_points() - before <= 400


def test_bad_records_are_refused() -> None:
    journal = started(Disk.memory())
    for kind in (-1, 256):
        with pytest.raises(BadInput):
            journal.append(kind, b"")
