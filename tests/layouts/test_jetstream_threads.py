"""Several threads on one store: sequences stay unique, commits share syncs, readers see whole batches."""

from __future__ import annotations

import threading
from pathlib import Path

import headrace
from headrace._core import Disk, FaultPlan

WRITERS, ROUNDS, SIZE = 8, 60, 7


def test_writers_share_syncs_and_readers_see_whole_batches(tmp_path: Path) -> None:
    plan = FaultPlan(path_contains=".blk")
    disk = Disk.faulty(Disk.real(), plan)
    failures: list[BaseException] = []
    firsts: list[int] = []
    with headrace.open(str(tmp_path), mode="rw", create=True, disk=disk, block_bytes=32 << 10) as volume:
        store = volume.create("S", subjects=["s.>"])
        done = threading.Event()

        def write(name: int) -> None:
            try:
                for turn in range(ROUNDS):
                    data = [b"%d/%d/%d" % (name, turn, at) for at in range(SIZE)]
                    ticket = store.append(headrace.batch(f"s.{name}", data))
                    volume.commit_soon([ticket]).result(30) if turn % 3 == 0 else volume.commit([ticket])
                    firsts.append(ticket.first)
                    assert store.log.durable_seq >= ticket.next - 1
            except BaseException as error:
                failures.append(error)

        def read() -> None:
            try:
                while not done.is_set():
                    seen = store.read(max(1, store.state().last_seq - 300), 300, durable_only=True)
                    positions = seen.positions()
                    assert positions == sorted(set(positions))
            except BaseException as error:
                failures.append(error)

        before = plan.syncs
        readers = [threading.Thread(target=read) for _ in range(2)]
        writers = [threading.Thread(target=write, args=(name,)) for name in range(WRITERS)]
        for thread in readers + writers:
            thread.start()
        for thread in writers:
            thread.join(60)
        done.set()
        for thread in readers:
            thread.join(60)
        assert not failures, failures[0]
        records = list(store)
        assert [record.seq for record in records] == list(range(1, WRITERS * ROUNDS * SIZE + 1))
        assert sorted(firsts) == list(range(1, WRITERS * ROUNDS * SIZE + 1, SIZE))
        for start in firsts:
            batch = [record.data for record in records[start - 1 : start - 1 + SIZE]]
            assert len({data.rpartition(b"/")[0] for data in batch if data}) == 1
        # Fewer syncs than commits: those who wait together share one.
        assert plan.syncs - before < WRITERS * ROUNDS
