"""RabbitMQ layout, promise 8: after a clean stop opening reads no messages, and a stale checkpoint is not believed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import headrace
from headrace._core import Disk, FaultPlan
from headrace.layouts.base import LogState
from headrace.layouts.rabbitmq import checkpoint, files
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume
from headrace.testing import CrashDriver, CrashPoint, FakeClock

SMALL = RabbitOptions(
    queue_index_segment_entry_count=64,
    queue_index_embed_msgs_below=600,
    msg_store_file_size_limit=40_000,
)


def open_volume(disk: Disk, mode: str = "rw", **more: object) -> RabbitVolume:
    given = {"create": mode == "rw", "maintenance": False, "clock": FakeClock(), "options": SMALL} | more
    return RabbitVolume("/node", mode=mode, disk=disk, **given)  # pyright: ignore


def put(volume: RabbitVolume, log: RabbitLog, data: list[bytes]) -> headrace.Ticket:
    ticket = log.append(headrace.batch(log.queue.queue, data))
    volume.commit([ticket])
    return ticket


def bodies(count: int, tag: bytes = b"") -> list[bytes]:
    """One in eight goes to the store."""
    return [tag + b"%d:" % n + b"x" * (900 if n % 8 == 3 else 100) for n in range(count)]


def filled(disk: Disk, count: int = 1000) -> str:
    """Three queues, some of it acked, one empty; stopped cleanly. Returns the vhost's directory."""
    with open_volume(disk) as volume:
        for name in ("one", "two", "empty"):
            log = volume.create(name)
            put(volume, log, bodies(count, name.encode()))
        volume.commit([volume.open("one").remove(range(0, count // 2, 3))])
        volume.open("empty").drop_front(count)
        return volume.open("one").vhost.path


Everything = tuple[dict[str, LogState], dict[str, int], dict[str, list[object]], object, int]


def everything(volume: RabbitVolume) -> Everything:
    states = {name: volume.open(name).state() for name in volume.logs()}
    following = {name: volume.open(name).next_seq for name in volume.logs()}
    content: dict[str, list[object]] = {
        name: [(r.position, r.data, r.headers, r.time_ns) for r in volume.open(name)]
        for name in volume.logs()
    }
    store = next(iter(volume.vhosts.values())).store
    store.scan()
    rows = store.kernel.files()
    files = sorted((row.kind, row.number, row.bytes, row.referenced_bytes, row.records) for row in rows)
    return states, following, content, files, len(store.kernel)


def copy(disk: Disk) -> Disk:
    return disk.crash(0, "all")


def test_opening_reads_no_messages_and_finds_the_same() -> None:
    disk = Disk.memory()
    path = filled(disk)
    full = copy(disk)
    full.remove_file(f"{path}/{files.CLEAN}")
    queues = [f"{path}/queues/{name}" for name, _, _ in disk.list(f"{path}/queues")]
    size = sum(size for queue in queues for _, _, size in disk.list(queue))
    for mode in ("r", "rw"):
        plan = FaultPlan()
        volume = open_volume(Disk.faulty(copy(disk), plan), mode)
        states = {name: volume.open(name).state() for name in volume.logs()}
        read = plan.read_bytes
        assert read < 3000 < size / 50, f"{read} bytes were read to open {size} bytes of indexes"
        plain = FaultPlan()
        compared = open_volume(Disk.faulty(copy(full), plain), mode)
        assert states == {name: compared.open(name).state() for name in compared.logs()}
        assert plain.read_bytes > size, "without the checkpoint everything is read"
        found, expected = everything(volume), everything(compared)
        assert found[:3] == expected[:3]
        assert found[2]["one"] and found[4] > 100
        assert mode == "r" or found[4] == expected[4], "as many messages of the store are held"
        assert volume.damage() == []


def test_what_opening_reads_does_not_grow_with_the_messages() -> None:
    read: list[int] = []
    for size in (100, 4000):
        disk = Disk.memory()
        options = RabbitOptions()
        with open_volume(disk, options=options) as volume:
            put(volume, volume.create("q"), [b"y" * size] * 6000)
        plan = FaultPlan()
        volume = open_volume(Disk.faulty(disk, plan), options=options)
        assert volume.open("q").state().messages == 6000
        read.append(plan.read_bytes)
        put(volume, volume.open("q"), [b"z"])
        assert plan.read_bytes - read[-1] < 3 * 2048 * (size + 400) / 2, (
            "an append needs the newest segment only"
        )
    assert abs(read[0] - read[1]) < 40, read


def test_life_goes_on_after_a_checkpoint() -> None:
    """Append, ack, drop, merge and delete on queues that were not read yet, through several clean stops."""
    disk = Disk.memory()
    path = filled(disk, 300)
    expected = {
        name: {r.position: r.data for r in open_volume(disk, "r").open(name)}
        for name in ("one", "two", "empty")
    }
    for turn in range(4):
        with open_volume(disk) as volume:
            assert checkpoint.peek(volume.open("one").vhost) is None, "it is gone while the volume is open"
            one, two = volume.open("one"), volume.open("two")
            ticket = put(volume, one, bodies(20, b"turn%d" % turn))
            expected["one"] |= dict(enumerate(bodies(20, b"turn%d" % turn), ticket.first))
            gone = sorted(expected["two"])[10 * turn :: 5]
            volume.commit([two.remove(gone)])
            for seq in gone:
                del expected["two"][seq]
            if turn == 2:
                assert one.drop_front(150) == sum(seq < 150 for seq in expected["one"])
                expected["one"] = {seq: data for seq, data in expected["one"].items() if seq >= 150}
                volume.collect()
            tasks = two.scan_tasks()
            assert sum(task.next > task.first for task in tasks) == len(tasks) > 0  # pyright: ignore
        for mode in ("r", "rw"):
            volume = open_volume(copy(disk), mode)
            assert all(
                log.resting is not None for vhost in volume.vhosts.values() for log in vhost.logs.values()
            )
            for name, messages in expected.items():
                assert {r.position: r.data for r in volume.open(name)} == messages, name
                assert volume.open(name).state().messages == len(messages)
    again = copy(disk)
    again.remove_file(f"{path}/{files.CLEAN}")
    with open_volume(again) as volume:
        for name, messages in expected.items():
            assert {r.position: r.data for r in volume.open(name)} == messages, name
    volume = open_volume(disk)
    volume.delete("two")
    assert volume.logs() == ["empty", "one"]


def test_references_survive_so_that_a_shared_message_stays_until_its_last_ack() -> None:
    disk = Disk.memory()
    with open_volume(disk) as volume:
        for name in ("a", "b"):
            volume.create(name)
        volume.commit(volume.publish(headrace.batch("x", [b"fan" * 900, b"out" * 900]), ["a", "b"]))
    with open_volume(disk) as volume:
        volume.commit([volume.open("a").remove([0, 1])])
        assert len(volume.open("a").vhost.store.kernel) == 2
        assert [r.data for r in volume.open("b")] == [b"fan" * 900, b"out" * 900]
    with open_volume(disk) as volume:
        volume.commit([volume.open("b").remove([0])])
        assert len(volume.open("b").vhost.store.kernel) == 1
        assert [r.data for r in volume.open("b")] == [b"out" * 900]


def damaged(disk: Disk, path: str, how: str) -> None:
    """Something that somebody else could have done to the directory."""
    queue = f"{path}/queues/{sorted(name for name, _, _ in disk.list(f'{path}/queues'))[0]}"
    target = {
        "segment": f"{queue}/0.idx",
        "store": f"{path}/msg_store_persistent/0.rdq",
        "index": f"{path}/{files.INDEX}",
        "checkpoint": f"{path}/{files.CLEAN}",
        "vhost": f"{path}/.vhost",
    }.get(how)
    if how == "journal":
        disk.open(f"{queue}/{files.JOURNAL}", "write").write_at(0, (3 << 62 | 1).to_bytes(8))  # an ack
    elif how == "gone":
        disk.remove_file(f"{path}/msg_store_persistent/0.rdq")
    elif how == "new":
        disk.open(f"{path}/{files.RECOVERY}", "write")
    elif how == "truncated checkpoint":
        disk.open(f"{path}/{files.CLEAN}", "write").set_len(40)
    else:
        assert target is not None
        size = disk.entry(target).size  # pyright: ignore
        disk.flip_bit(target, size // 2 if how != "vhost" else 0, 3)


@pytest.mark.parametrize(
    "how",
    ["segment", "store", "index", "checkpoint", "truncated checkpoint", "vhost", "journal", "gone", "new"],
)
def test_a_checkpoint_that_does_not_belong_to_the_files_is_not_believed(how: str) -> None:
    disk = Disk.memory()
    path = filled(disk, 300)
    damaged(disk, path, how)
    plain = copy(disk)
    plain.remove_file(f"{path}/{files.CLEAN}")
    for mode in ("r", "rw"):
        volume, expected = open_volume(copy(disk), mode), open_volume(copy(plain), mode)
        assert everything(volume)[:3] == everything(expected)[:3]
        assert [found.detail for found in volume.damage()] == [found.detail for found in expected.damage()]


def test_an_older_checkpoint_put_back_is_not_believed() -> None:
    disk = Disk.memory()
    path = filled(disk, 200)
    old = disk.read(f"{path}/{files.CLEAN}")
    with open_volume(disk) as volume:
        put(volume, volume.open("one"), [b"later"])
    disk.replace_file(f"{path}/{files.CLEAN}", old)
    volume = open_volume(disk, "r")
    assert checkpoint.peek(volume.open("one").vhost) is None
    assert list(volume.open("one"))[-1].data == b"later"


def test_on_the_real_disk_a_touched_file_is_enough(tmp_path: Path) -> None:
    with RabbitVolume(str(tmp_path), mode="rw", create=True, maintenance=False) as volume:
        put(volume, volume.create("q"), bodies(50))
        vhost = volume.open("q").vhost
        directory = volume.open("q").directory
    assert checkpoint.peek(vhost) is not None
    segment = Path(directory) / "0.idx"
    data, status = segment.read_bytes(), segment.stat()
    segment.write_bytes(data)
    assert checkpoint.peek(vhost) is None, "the same bytes, written again"
    os.utime(segment, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert checkpoint.peek(vhost) is None, "setting the time back does not help"
    elsewhere = tmp_path.parent / "copied"
    shutil.copytree(tmp_path, elsewhere)
    with RabbitVolume(str(elsewhere), mode="rw", maintenance=False) as volume:
        assert volume.open("q").state().messages == 50


def test_damage_that_comes_after_opening_is_found_when_it_is_read() -> None:
    """A cold segment goes bad: the others are served, it is replaced by its sound part, the next start reads all."""
    disk = Disk.memory()
    path = filled(disk, 300)
    volume = open_volume(disk)
    log = volume.open("two")
    segment = f"{log.directory}/2.idx"
    disk.flip_bit(segment, disk.entry(segment).size // 2 + 1, 6)  # pyright: ignore
    before = {n: bodies(300, b"two")[n] for n in range(300)}
    found = {r.position: r.data for r in log}
    assert len(found) >= 298 and found.items() <= before.items()
    assert any(damage.file == segment for damage in volume.damage())
    volume.close()
    assert disk.entry(f"{path}/{files.CLEAN}") is None, "what was damaged leaves no checkpoint"
    volume = open_volume(disk)
    assert {r.position: r.data for r in volume.open("two")} == found


def test_an_index_that_went_bad_after_opening_costs_nothing() -> None:
    disk = Disk.memory()
    path = filled(disk, 200)
    volume = open_volume(disk)
    disk.flip_bit(f"{path}/{files.INDEX}", 30, 2)
    assert [r.data for r in volume.open("two")] == bodies(200, b"two")
    assert any("every store file is read" in damage.detail for damage in volume.damage())
    volume.commit([volume.open("two").remove(range(200))])
    assert volume.collect() == 0, "nothing is thrown away while references are not known"
    volume.close()
    with open_volume(disk) as volume:
        assert not list(volume.open("two")) and len(list(volume.open("one"))) == 166
        assert volume.damage() == []


def lives(disk: Disk, notes: dict[str, dict[int, bytes]]) -> None:
    """Three short lives, each ended cleanly: the power may go around every checkpoint."""
    for turn in range(3):
        volume = open_volume(disk)
        for name in ("one", "two"):
            log = volume.create(name)
            data = bodies(9, b"%d%s" % (turn, name.encode()))
            ticket = put(volume, log, data)
            notes.setdefault(name, {}).update(enumerate(data, ticket.first))
        volume.open("one").flush()
        volume.close()


def test_power_cut_around_every_checkpoint(crash_driver: CrashDriver) -> None:
    believed = 0

    def check(disk: Disk, notes: dict[str, dict[int, bytes]], point: CrashPoint) -> None:
        nonlocal believed
        if not notes:
            return
        plain = open_volume(copy(disk), "r", read_all=True)
        quick = open_volume(copy(disk), "r")
        believed += any(log.resting is not None for v in quick.vhosts.values() for log in v.logs.values())
        assert everything(quick)[:3] == everything(plain)[:3]
        volume = open_volume(disk)
        for name, confirmed in notes.items():
            found = {r.position: r.data for r in volume.open(name)}
            assert confirmed.items() <= found.items(), f"{name}: a confirmed message is lost"
            assert put(volume, volume.open(name), [b"after"]).first > max(confirmed)
        volume.close()
        crashed = open_volume(disk.crash(0, "none"))
        for name, confirmed in notes.items():
            found = {r.position: r.data for r in crashed.open(name)}
            assert confirmed.items() <= found.items() and b"after" in found.values()

    report = crash_driver.run(lives, check, notes=dict)
    assert report.sync_points > 30 and believed > 3, (report, believed)
