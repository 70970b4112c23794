"""RocketMQ's store: what the real library wrote is read; what we write has its shape; damage and power cuts."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import headrace
from headrace._core import Batch, Disk, FaultPlan
from headrace.errors import BadInput, StoreLocked
from headrace.layouts.rocketmq.layout import LAYOUT
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.volume import RocketVolume
from headrace.record import Record
from headrace.testing import CrashDriver, CrashPoint, FakeClock
from tests.support import vectors

START_NS = 1_700_000_000_000_000_000
SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 10,
    "max_index_num": 40,
}


def golden(tmp_path: Path) -> tuple[Path, vectors.Vector]:
    vector = vectors.load("rocketmq", "5.3.3")
    return vector.copy(tmp_path), vector


def row(record: Record) -> tuple[int, int, bytes | None, bytes | None, str]:
    return record.position, record.time_ns // 1_000_000, record.key, record.data, record.header_map["TAGS"][0]


def test_what_the_library_wrote(tmp_path: Path) -> None:
    store, vector = golden(tmp_path)
    options = RocketOptions.of(vector.manifest["options"])
    with RocketVolume(str(store), options=options) as volume:
        assert volume.logs() == list(vector.streams())
        for name, entry in vector.streams().items():
            log = volume.open(name)
            wanted = [
                (m["offset"], m["store_ms"], m["key"].encode(), m["body"].encode(), m["tag"])
                for m in entry["messages"]
            ]
            assert [row(r) for r in log] == wanted
            assert [row(log.read(n, 1)[0]) for n in range(10)] == wanted
            tasks = [pickle.loads(pickle.dumps(task)) for task in log.scan_tasks()]
            assert [row(r) for t in tasks for b in t.batches() for r in b] == wanted
            for offset, ms, *_ in wanted:
                assert log.seq_from_time(ms * 1_000_000) == offset
                assert log.seq_from_time(ms * 1_000_000 + 1) == offset + 1
            assert log.to_arrow().column("headers").to_pylist()[0][1] == ("TAGS", [wanted[0][4]])
            assert log.damage() == []
        for n in range(60):
            [hit] = volume.find_by_key(f"Topic{'ABC'[n % 3]}", f"KEY{n}")
            assert (hit.data or b"").startswith(b"body-%d-" % n)
        assert volume.find_by_key("TopicA", "KEY1") == []
    view = LAYOUT.verify(str(store))
    assert not [f for r in view.files for f in r.damage] and not [f for log in view.logs for f in log.damage]
    assert sum(r.messages for r in view.files if r.kind == "commit log") == 60


def test_the_librarys_files_are_made_again(tmp_path: Path) -> None:
    """Queues deleted, an abort file: opening makes them anew, byte for byte; so does a copy message by message."""
    store, _vector = golden(tmp_path)
    before = {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}
    for path in (store / "consumequeue").rglob("0*0"):
        path.unlink()
    (store / "abort").write_text("1")
    with RocketVolume(str(store), mode="rw", options=RocketOptions(**SMALL), maintenance=False) as volume:
        assert volume.damage() == []
    for name in before:
        if name.startswith(("commitlog", "consumequeue")):
            assert (store / name).read_bytes() == before[name], name
    clock = FakeClock(START_NS)
    options = RocketOptions(**SMALL, enabled_append_prop_crc=False, store_host="127.0.0.1:5678")
    copy = tmp_path / "copy"
    with (
        RocketVolume(str(store)) as source,
        RocketVolume(
            str(copy), mode="rw", create=True, options=options, clock=clock, maintenance=False
        ) as target,
    ):
        for n in range(60):
            name = f"Topic{'ABC'[n % 3]}-{n % 2}"
            clock.now_ns = (1_700_000_100_000 + 1000 * n) * 1_000_000
            target.create(name).append(source.open(name).read(n // 6, 1))
    for name in before:
        if name.startswith("consumequeue"):
            assert (copy / name).read_bytes() == before[name], name
    ours, theirs = sorted((copy / "index").iterdir()), sorted((store / "index").iterdir())
    assert [p.read_bytes() for p in ours] == [p.read_bytes() for p in theirs], "the index by key"


def put(volume: RocketVolume, name: str, count: int, size: int = 40) -> list[bytes]:
    log = volume.create(name)
    data = [b"%s/%d/" % (name.encode(), log.next + n) + b"x" * (n % size) for n in range(count)]
    volume.commit(
        [log.append(Batch.build("t", data, keys=[b"k%d" % n for n in range(count)], header_codec="kafka"))]
    )
    return data


def test_life(tmp_path: Path) -> None:
    options = RocketOptions(**SMALL)
    with RocketVolume(str(tmp_path), mode="rw", create=True, options=options, maintenance=False) as volume:
        written = {name: put(volume, name, 30) + put(volume, name, 7) for name in ("a-0", "a-1", "b%x-0")}
        assert (tmp_path / "abort").exists() and len(volume.commit_log.files) > 3
        with pytest.raises(StoreLocked):
            RocketVolume(str(tmp_path), mode="rw")
        with pytest.raises(BadInput, match="whole commit-log files"):
            volume.open("a-0").drop_front(3)
        for bad in ("../x-0", "a", "a/b-0", "x" * 128 + "-0", "a-01", "é-0"):
            with pytest.raises(BadInput):
                volume.create(bad)
        with pytest.raises(BadInput, match=r"maxMessageSize|no room"):
            volume.open("a-0").append(headrace.batch("t", [b"x" * 5000]))
        block = b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"
        volume.create("h-0").append(headrace.batch("t", [b"x"], [block]))
        assert next(iter(volume.open("h-0"))).header_map == {"A": ["1"], "B": ["2"]}
    assert not (tmp_path / "abort").exists()
    with RocketVolume(str(tmp_path), mode="rw", options=options, maintenance=False) as volume:
        for name, data in written.items():
            assert [r.data for r in volume.open(name)] == data
        assert volume.open("a-0").append(headrace.batch("t", [b"more"])).first == 37
        assert [r.position for r in volume.find_by_key("a", "k3")] and volume.find_by_key("b%x", "k29")[
            0
        ].position == 29
    clock = FakeClock(START_NS * 2)
    late = RocketOptions(**SMALL, file_reserved_time=1)
    with RocketVolume(str(tmp_path), mode="rw", options=late, clock=clock, maintenance=False) as volume:
        assert volume.apply_retention() > 2
        log = volume.open("a-0")
        assert log.state().first_seq > 0 and [r.position for r in log] == list(range(log.first, 38))


def memory_volume(disk: Disk, mode: str = "rw") -> RocketVolume:
    clock = FakeClock(START_NS)
    options = RocketOptions(**SMALL)
    return RocketVolume(
        "/s", mode=mode, create=mode == "rw", options=options, disk=disk, clock=clock, maintenance=False
    )


@dataclass
class Notes:
    acked: dict[str, list[bytes]] = field(default_factory=lambda: {})


def workload(disk: Disk, notes: Notes) -> None:
    for _ in range(2):
        volume = memory_volume(disk)
        for count in (3, 20, 1):
            for name in ("a-0", "b-1"):
                notes.acked[name] = notes.acked.get(name, []) + put(volume, name, count)
        volume.close()


def check(disk: Disk, notes: Notes, point: CrashPoint) -> None:
    volume = memory_volume(disk)
    assert not [each for each in volume.damage() if each.kind == "missing"], "a power cut is no loss"
    for name, data in notes.acked.items():
        log = volume.open(name)
        assert [r.data for r in log][: len(data)] == data
        again = [r.data for r in memory_volume(disk.crash(0, "none")).open(name)]
        assert again[: len(data)] == data
        assert log.append(headrace.batch("t", [b"after"])).first >= len(data)


def test_power_cut_at_every_sync_point() -> None:
    report = CrashDriver(seed=3).run(workload, check, notes=Notes)
    assert report.sync_points > 20


def test_a_flipped_bit_costs_at_most_one_message() -> None:
    """The whole message is covered by the checksum property; a bad one is replaced, everything after it stays."""
    disk, notes = Disk.memory(), Notes()
    workload(disk, notes)
    files = [name for name, _, _ in disk.list("/s/commitlog")]
    total = sum(len(data) for data in notes.acked.values())
    chance = random.Random(5)
    lost_any = 0
    for _ in range(400):
        path, offset, bit = (
            f"/s/commitlog/{chance.choice(files)}",
            chance.randrange(4096),
            chance.randrange(8),
        )
        disk.flip_bit(path, offset, bit)
        with memory_volume(disk, "r") as volume:
            found = {name: {r.position: r.data for r in volume.open(name)} for name in notes.acked}
            damaged = volume.damage()
        disk.flip_bit(path, offset, bit)
        for name, data in notes.acked.items():
            assert all(data[n] == value for n, value in found[name].items())
        lost = total - sum(map(len, found.values()))
        assert lost <= 1 and len(damaged) == lost
        lost_any += lost
    assert lost_any > 200
    torn = disk.crash(0, "all")
    torn.replace_file("/s/abort", b"1")
    torn.remove_file("/s/checkpoint")
    for path in files[:2]:
        for offset in range(300, 340):
            torn.flip_bit(f"/s/commitlog/{path}", offset, offset % 8)
    volume = memory_volume(torn)
    kept = sum(len(list(volume.open(name))) for name in notes.acked)
    assert total - kept <= 4 and len(torn.list("/s/headrace/damaged")) == 2
    assert volume.open("a-0").next == len(notes.acked["a-0"])
    volume.close()
    view = LAYOUT.verify("/s", disk=torn)
    assert not [f for r in view.files for f in r.damage]


def test_a_clean_start_reads_only_the_end() -> None:
    """What the last clean stop noted is believed only as far as the log still says the same."""
    plan = FaultPlan()
    disk = Disk.faulty(Disk.memory(), plan)
    options = RocketOptions(mapped_file_size_commit_log=64 << 20)

    def opened(mode: str = "rw") -> RocketVolume:
        return RocketVolume(
            "/store", mode=mode, create=mode == "rw", options=options, disk=disk, maintenance=False
        )

    with opened() as volume:
        log = volume.create("t-0")
        for _ in range(100):
            log.append(headrace.batch("t", [b"x" * 4000] * 50))
    before = plan.read_bytes
    with opened() as volume:
        read = plan.read_bytes - before
        assert volume.open("t-0").next == 5000 and read < 9_000_000, read  # one window of the scan, of 20 MB
        noted = disk.read("/store/headrace/clean.json")
        volume.commit([volume.open("t-0").append(headrace.batch("t", [b"later"]))])
    # Somebody else appended and stopped cleanly: an older note leads to the same end.
    disk.replace_file("/store/headrace/clean.json", noted)
    with opened() as volume:
        assert volume.open("t-0").next == 5001 and [r.data for r in volume.open("t-0").read(5000)] == [
            b"later"
        ]
        assert volume.append(volume.open("t-0"), headrace.batch("t", [b"after"]), False).first == 5001
    # The log says something else before that place: it is read whole, and the damage is found.
    end = json.loads(disk.read("/store/headrace/clean.json"))["address"]
    disk.flip_bit("/store/commitlog/00000000000000000000", end - 120, 3)
    before = plan.read_bytes
    with opened() as volume:
        assert plan.read_bytes - before > 20_000_000 and len(volume.damage()) == 1
        assert volume.open("t-0").next == 5002
