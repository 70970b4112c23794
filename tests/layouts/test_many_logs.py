"""Many logs in one directory: made together, a bounded set of open files, nothing lost by closing and opening again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace._core import Batch, Disk, FaultPlan
from headrace.errors import BadInput, HeadraceError, StorePoisoned
from headrace.layouts.base import Durability
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.open_files import OpenFiles, SideBySide
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.volume import RocketVolume

NAMES = [f"t{n}-0" for n in range(60)]
MOST = 8


def opened(layout: str, path: Path, durability: Durability = "interval") -> KafkaVolume | RocketVolume:
    if layout == "kafka":
        settings = KafkaOptions(open_logs_max=MOST, index_interval_bytes=50)
        return KafkaVolume(
            str(path), mode="rw", create=True, durability=durability, options=settings, maintenance=False
        )
    rocket = RocketOptions(open_queues_max=MOST, mapped_file_size_consume_queue=200)
    return RocketVolume(
        str(path), mode="rw", create=True, durability=durability, options=rocket, maintenance=False
    )


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("layout", ["kafka", "rocketmq"])
@pytest.mark.parametrize("durability", ["sync", "interval"])
def test_descriptors_are_bounded_and_nothing_is_lost(
    layout: str, durability: Durability, tmp_path: Path
) -> None:
    before, most = descriptors(), 0
    with opened(layout, tmp_path, durability) as volume:
        logs = volume.create_many(NAMES)
        for turn in range(12):
            tickets = [
                log.append(Batch.build("t", [b"%d/%d" % (turn, n)] * 3, header_codec="kafka"))
                for n, log in enumerate(logs)
            ]
            volume.commit(tickets)
            assert logs[turn].read(0, 100)[3 * turn].data == b"%d/%d" % (turn, turn)
            most = max(most, descriptors() - before)
        assert len(volume.files) <= MOST
        # Up to three files for writing and one for reading each; locks, marks, the shared log.
        assert most <= 4 * MOST + 8
        assert volume.damage() == []
    with opened(layout, tmp_path) as volume:
        assert volume.logs() == sorted(NAMES)
        for n, name in enumerate(NAMES):
            wanted = [b"%d/%d" % (turn, n) for turn in range(12) for _ in range(3)]
            assert [record.data for record in volume.open(name)] == wanted
        assert volume.damage() == []


@pytest.mark.parametrize("layout", ["kafka", "rocketmq"])
def test_threads_that_park_each_others_logs(layout: str, tmp_path: Path) -> None:
    """Four threads over the same logs, far more of them than may be open: every append is there, nobody waits forever."""
    turns = 40
    with opened(layout, tmp_path, "sync") as volume:
        logs = volume.create_many(NAMES[:20])

        def work(who: int) -> None:
            for turn in range(turns):
                log = logs[(who * 7 + turn) % len(logs)]
                volume.commit([log.append(Batch.build("t", [b"%d/%d" % (who, turn)], header_codec="kafka"))])
                assert len(log.read(0, 10))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, who) for who in range(4)]:
                done.result(timeout=60)
    with opened(layout, tmp_path) as volume:
        seen = [record.data for name in NAMES[:20] for record in volume.open(name)]
    assert sorted(seen) == sorted(b"%d/%d" % (who, turn) for who in range(4) for turn in range(turns))


def test_made_together_or_one_by_one(tmp_path: Path) -> None:
    with KafkaVolume(str(tmp_path / "k"), mode="rw", create=True) as volume:
        first = volume.create("a-0")
        logs = volume.create_many(["a-1", "b-0", "a-0", "a-1"])
        assert [log.name for log in logs] == ["a-1", "b-0", "a-0", "a-1"] and logs[2] is first
        ids = [(tmp_path / "k" / name / "partition.metadata").read_text() for name in ("a-0", "a-1", "b-0")]
        assert ids[0] == ids[1] != ids[2], "partitions of one topic share its id"
        with pytest.raises(BadInput):
            volume.create_many(["c-0", "../d-0"])
        assert volume.logs() == ["a-0", "a-1", "b-0"]


def test_many_created_are_there_after_a_power_cut() -> None:
    """Whatever is cut off: once `create_many` has returned, every log is there."""
    for rocket in (False, True):
        for cut in range(200):
            disk, returned = Disk.memory(), False
            disk.power_cut_at(cut)
            try:
                volume = _on(disk, rocket)
                volume.create_many(NAMES[:5])
                returned = True
            except HeadraceError:
                pass
            after = disk.crash(cut, "none")
            if returned:
                assert _on(after, rocket).logs() == NAMES[:5]
                break
        else:
            pytest.fail("it never returned")


def _on(disk: Disk, rocket: bool) -> KafkaVolume | RocketVolume:
    kind = RocketVolume if rocket else KafkaVolume
    return kind("/s", mode="rw", create=True, disk=disk, maintenance=False)


def test_a_sync_that_fails_while_parking_poisons_the_log() -> None:
    plan = FaultPlan(path_contains="t0-0/00000000000000000000.log")
    disk = Disk.faulty(Disk.memory(), plan)
    volume = KafkaVolume(
        *("/k",),
        mode="rw",
        create=True,
        durability="interval",
        disk=disk,
        options=KafkaOptions(open_logs_max=2),
        maintenance=False,
    )
    logs = volume.create_many(NAMES[:4])
    batch = Batch.build("t", [b"x"], header_codec="kafka")
    plan.fail_sync_at = plan.syncs
    for log in logs:
        log.append(batch)
    with pytest.raises(StorePoisoned):
        logs[0].append(batch)
    assert logs[1].append(batch).first == 1, "the others go on"


def test_side_by_side_runs_all_and_returns_what_failed() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number % 2:
            raise ValueError(number)

    for parallel in (False, True):
        done.clear()
        both = SideBySide(parallel=parallel)
        problems = both.each(work, range(7))
        assert [str(problem) for problem in problems] == ["1", "3", "5"]
        assert sorted(done) == list(range(7))
        both.close()
    assert OpenFiles(0, SideBySide(parallel=False)).most >= 16
