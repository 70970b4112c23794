"""RabbitMQ layout, promises 1 and 4: the power goes at every sync point of everything a queue does.

After each cut the directory is read, then opened for writing: every confirmed message is there, byte for byte, none that
was confirmed as acked comes back, no sequence is given out twice. Then the power goes again in the middle of recovery.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

import headrace
from headrace._core import Disk
from headrace.errors import HeadraceError
from headrace.layouts.rabbitmq import log as log_module
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume
from headrace.testing import CrashDriver, CrashPoint, FakeClock

OPTIONS = RabbitOptions(
    queue_index_segment_entry_count=16,
    queue_index_max_journal_entries=40,
    queue_index_embed_msgs_below=300,
    msg_store_file_size_limit=4096,
)


@dataclass
class Notes:
    """What was promised: per queue, confirmed messages; acks that were confirmed, and those only attempted."""

    sent: dict[str, dict[int, bytes]] = field(default_factory=dict)
    confirmed: dict[str, dict[int, bytes]] = field(default_factory=dict)
    acked: dict[str, set[int]] = field(default_factory=dict)
    trying: dict[str, set[int]] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)


def open_volume(disk: Disk, clock: FakeClock, mode: str = "rw") -> RabbitVolume:
    return RabbitVolume(
        "/node", mode=mode, create=mode == "rw", options=OPTIONS, disk=disk, clock=clock, maintenance=False
    )


def queue(volume: RabbitVolume, notes: Notes, name: str) -> RabbitLog:
    log = volume.create(name)
    for book in (notes.sent, notes.confirmed):
        book.setdefault(name, {})
    for book in (notes.acked, notes.trying):
        book.setdefault(name, set())
    return log


def bodies(first: int, count: int) -> list[bytes]:
    """Some embedded, some in the store, some empty."""
    sizes = (0, 20, 190, 400, 1500)
    return [b"%d:" % n + bytes([n % 251]) * sizes[n % 5] for n in range(first, first + count)]


def put(volume: RabbitVolume, log: RabbitLog, notes: Notes, data: list[bytes]) -> None:
    first = log.next_seq
    notes.sent[log.name] |= dict(enumerate(data, first))
    ticket = log.append(headrace.batch(log.queue.queue, data))
    assert ticket.first == first
    volume.commit([ticket])
    notes.confirmed[log.name] |= dict(enumerate(data, first))


def ack(volume: RabbitVolume, log: RabbitLog, notes: Notes, seqs: list[int]) -> None:
    notes.trying[log.name] |= set(seqs)
    volume.commit([log.remove(seqs)])
    notes.acked[log.name] |= set(seqs)


def everyday(disk: Disk, notes: Notes) -> None:
    volume = open_volume(disk, notes.clock)
    one, two = queue(volume, notes, "one"), queue(volume, notes, "two")
    put(volume, one, notes, bodies(0, 7))
    put(volume, two, notes, bodies(50, 5))
    put(volume, one, notes, bodies(7, 20))  # the flush by number of records falls into it
    ack(volume, one, notes, [0, 1, 2, 5, 9])
    put(volume, one, notes, bodies(27, 10))
    ack(volume, one, notes, list(range(3, 16)))
    one.flush()  # a fully acked segment goes
    put(volume, two, notes, bodies(60, 12))
    fan = [b"fan" * 300, b"fan"]
    for log in (one, two):
        first = log.next_seq
        notes.sent[log.name] |= dict(enumerate(fan, first))
    firsts = one.next_seq, two.next_seq
    volume.commit(volume.publish(headrace.batch("x", fan), ["one", "two"]))
    for log, first in zip((one, two), firsts, strict=True):
        notes.confirmed[log.name] |= dict(enumerate(fan, first))
    two.sleep()
    ack(volume, two, notes, list(range(5, 12)))
    volume.close()

    volume = open_volume(disk, notes.clock)
    one, two = queue(volume, notes, "one"), queue(volume, notes, "two")
    put(volume, one, notes, bodies(100, 9))
    ack(volume, one, notes, sorted(notes.confirmed["one"]))
    one.flush()
    put(volume, one, notes, bodies(110, 3))
    volume.close()


def merging(disk: Disk, notes: Notes) -> None:
    """Store files become mostly garbage, are merged and removed, and the queue goes on."""
    volume = open_volume(disk, notes.clock)
    log = queue(volume, notes, "one")
    for turn in range(7):
        put(volume, log, notes, [b"%d-" % n + b"x" * 900 for n in range(turn * 5, turn * 5 + 5)])
    ack(volume, log, notes, [n for n in range(35) if n % 5 not in (0, 3)])
    assert volume.collect() > 0
    assert log.vhost.store.merges > 0
    put(volume, log, notes, bodies(40, 6))
    ack(volume, log, notes, list(range(20)))
    volume.collect()
    put(volume, log, notes, bodies(50, 4))
    volume.close()


def content(volume: RabbitVolume) -> dict[str, dict[int, bytes]]:
    return {name: {r.position: r.data or b"" for r in volume.open(name)} for name in volume.logs()}


def check_content(found: dict[str, dict[int, bytes]], notes: Notes) -> None:
    for name, confirmed in notes.confirmed.items():
        there = found.get(name, {})
        for seq, body in confirmed.items():
            if seq not in notes.trying[name]:
                assert there.get(seq) == body, f"{name}: confirmed message {seq} is lost or changed"
        for seq, body in there.items():
            assert notes.sent[name].get(seq) == body, f"{name}: {seq} was never sent like that"
            assert seq not in notes.acked[name], f"{name}: {seq} was acked and is back"


def check(disk: Disk, notes: Notes, point: CrashPoint) -> None:
    chance = random.Random(f"{point}")
    clock = FakeClock(notes.clock.now_ns)
    if any(notes.confirmed.values()):
        check_content(content(open_volume(disk, clock, "r")), notes)
    trial = disk.crash(0, "all")
    open_volume(trial, clock)
    again = disk.crash(0, "all")
    again.power_cut_at(chance.randrange(trial.sync_points() + 1))
    try:
        open_volume(again, clock)
    except HeadraceError as problem:
        assert "power is off" in str(problem), problem
    after = again.crash(chance.getrandbits(32), chance.choice(["none", "all", "random"]))
    check_content(content(open_volume(after, clock)), notes)

    volume = open_volume(disk, clock)
    found = content(volume)
    check_content(found, notes)
    assert not [each for each in volume.damage() if each.kind == "missing"], "a power cut is no loss"
    assert content(open_volume(disk.crash(0, "none"), clock)) == found, "something visible vanished"
    for name in notes.confirmed:
        if name not in volume.logs():
            continue
        log = volume.open(name)
        ticket = log.append(headrace.batch("x", [b"after the crash", b"y" * 500]))
        volume.commit([ticket])
        given = {**notes.confirmed[name], **found.get(name, {})}
        assert ticket.first > max(given, default=-1), f"{ticket.first} was given out before"
    volume.close()
    crashed = content(open_volume(disk.crash(0, "none"), clock))
    for name, messages in found.items():
        assert messages.items() <= crashed[name].items()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "busy_bytes"), [(everyday, log_module.BUSY_BYTES), (everyday, 1), (merging, 1)]
)
def test_power_cut_at_every_sync_point(
    workload, busy_bytes: int, crash_driver: CrashDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "BUSY_BYTES", busy_bytes)  # 1: two journal files in turn
    crash_driver.random_per_point = 3
    report = crash_driver.run(workload, check, notes=Notes)
    print(f"{workload.__name__}: {report.sync_points} sync points, {report.crashes} power cuts")
    assert report.sync_points > 30


def test_nothing_is_visible_before_it_is_on_disk() -> None:
    disk = Disk.memory()
    volume = open_volume(disk, FakeClock())
    log = volume.create("q")
    ticket = log.append(headrace.batch("q", [b"a", b"b" * 2000]))
    assert not list(log)
    volume.commit([ticket])
    assert [r.data for r in log] == [b"a", b"b" * 2000]


def test_no_queue_names_a_shared_body_before_the_store_is_synced() -> None:
    """Else a power cut can leave the entry and only half of the body, which nothing in the format would tell."""
    disk = Disk.memory()
    volume = open_volume(disk, FakeClock())
    logs = [volume.create(name) for name in ("one", "two", "three")]
    tickets = volume.publish(headrace.batch("x", [b"fan" * 300]), [log.name for log in logs])
    assert [disk.read(log.journal_path) for log in logs] == [b"", b"", b""]
    volume.commit(tickets)
    assert all(disk.read(log.journal_path) for log in logs)
    assert [[r.data for r in log] for log in logs] == [[b"fan" * 300]] * 3
