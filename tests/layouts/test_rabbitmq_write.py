"""Writing the RabbitMQ layout: journal, flush rules, segments, store, cursors, options."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace._core import Disk, FaultPlan
from headrace.errors import BadInput, DiskFault, DiskFull, ReadOnly, StoreLocked, StorePoisoned
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume
from headrace.testing import FakeClock

SMALL = RabbitOptions(queue_index_segment_entry_count=16, msg_store_file_size_limit=20_000)


def open_volume(disk: Disk, options: RabbitOptions = SMALL, **more: object) -> RabbitVolume:
    given = {"mode": "rw", "create": True, "maintenance": False, "clock": FakeClock()} | more
    return RabbitVolume("/node", options=options, disk=disk, **given)  # pyright: ignore


def segments(log: RabbitLog) -> list[str]:
    return sorted(name for name, _, _ in log.disk.list(log.directory) if name.endswith(".idx"))


def journal_bytes(log: RabbitLog) -> int:
    return log.disk.entry(log.journal_path).size  # pyright: ignore


def put(volume: RabbitVolume, log: RabbitLog, data: list[bytes]) -> headrace.Ticket:
    ticket = log.append(headrace.batch(log.queue.queue, data))
    volume.commit([ticket])
    return ticket


def test_sequence_finds_segment_and_slot() -> None:
    for count, options in (
        (2048, RabbitOptions()),
        (16384, RabbitOptions(queue_index_segment_entry_count=16384)),
    ):
        disk = Disk.memory()
        volume = open_volume(disk, options)
        log = volume.create("q")
        data = [b"%d" % n for n in range(count + 100)]
        put(volume, log, data)
        log.flush()
        assert segments(log) == ["0.idx", "1.idx"] and journal_bytes(log) == 0
        assert [r.data for r in log] == data
        assert len(log.read(count - 1, 1)) == 1 and log.read(count + 5)[0].data == b"%d" % (count + 5)
        volume.close()
        again = open_volume(disk, RabbitOptions())
        assert again.open("q").vhost.entry_count == count, "a vhost keeps its own count"


def test_without_config_there_are_16384_entries() -> None:
    disk = Disk.memory()
    with open_volume(disk, RabbitOptions(queue_index_segment_entry_count=16384)) as volume:
        log = volume.create("q")
        put(volume, log, [b"x"] * 3000)
        path = log.vhost.path
    disk.remove_file(f"{path}/.config")
    with open_volume(disk) as volume:
        log = volume.open("q")
        assert log.vhost.entry_count == 16384 and log.state().messages == 3000 and segments(log) == ["0.idx"]


def test_flush_rules() -> None:
    volume = open_volume(Disk.memory(), RabbitOptions(queue_index_max_journal_entries=100))
    log = volume.create("q")
    put(volume, log, [b"x"] * 50)
    assert journal_bytes(log) and not segments(log), "exactly the limit does not flush"
    put(volume, log, [b"x"])
    assert not journal_bytes(log) and segments(log)
    volume = open_volume(Disk.memory(), RabbitOptions(queue_index_max_journal_bytes=10_000))
    log = volume.create("q")
    put(volume, log, [b"y" * 3000] * 4)
    assert not journal_bytes(log) and segments(log), "too much memory flushes"


def test_acked_segments_go_and_sequences_do_not_come_back() -> None:
    disk = Disk.memory()
    volume = open_volume(disk)
    log = volume.create("q")
    put(volume, log, [b"%d" % n for n in range(40)])
    log.flush()
    assert segments(log) == ["0.idx", "1.idx", "2.idx"]
    volume.commit([log.remove(range(16))])
    assert segments(log)[0] == "0.idx"
    log.flush()
    assert segments(log) == ["1.idx", "2.idx"]
    assert log.drop_front(40) == 24
    log.flush()
    assert segments(log) == [] and log.state().messages == 0
    volume.close()
    with open_volume(disk) as again:
        assert put(again, again.open("q"), [b"next"]).first == 40


def test_published_and_acked_in_one_journal_leaves_no_trace() -> None:
    volume = open_volume(Disk.memory())
    log = volume.create("q")
    put(volume, log, [b"a", b"b", b"c"])
    volume.commit([log.remove([1])])
    log.flush()
    assert log.disk.read(f"{log.directory}/0.idx").count(b"basic_message") == 2
    assert [r.position for r in log] == [0, 2]


def test_embedding_threshold() -> None:
    """Body and properties together decide; one stored message is one record for all queues."""
    options = RabbitOptions(timestamp_new_messages=False)
    volume = open_volume(Disk.memory(), options)
    log, other = volume.create("q"), volume.create("other")
    plain = b"\x10\x00\x02"
    for size, stored in ((4092, 0), (4093, 1)):
        batch = headrace.batch("q", [b"x" * size], headers=[plain], header_codec="amqp")
        volume.commit([log.append(batch)])
        assert len(log.vhost.store.kernel) == stored
    volume.commit(volume.publish(headrace.batch("q", [b"fan" * 2000]), ["q", "other"]))
    assert len(log.vhost.store.kernel) == 2
    assert [r.data for r in other] == [b"fan" * 2000]
    volume.commit([log.remove([2])])
    assert [r.data for r in other] == [b"fan" * 2000], "one ack does not take it from the other queue"
    volume.commit([other.remove([0])])
    assert len(log.vhost.store.kernel) == 1


def test_store_files_roll_merge_and_go() -> None:
    disk = Disk.memory()
    volume = open_volume(disk)
    log = volume.create("q")
    data = [b"%03d" % n + b"z" * 5000 for n in range(40)]
    put(volume, log, data)
    names = [row.number for row in log.vhost.store.kernel.files()]
    assert names == list(range(11)), "a file ends after the message that filled it"
    kept = [n for n in range(40) if n % 4 == 1]
    volume.commit([log.remove([n for n in range(40) if n not in kept])])
    before = log.vhost.store.garbage()
    assert volume.collect() >= 3
    total, valid = log.vhost.store.garbage()
    assert valid == before[1] and total < before[0]
    assert [r.data for r in log] == [data[n] for n in kept]
    volume.close()
    with open_volume(disk) as again:
        assert [r.data for r in again.open("q")] == [data[n] for n in kept] and not again.damage()


def test_what_other_layouts_have_is_kept() -> None:
    volume = open_volume(Disk.memory())
    log = volume.create("q")
    headers = b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n"
    batch = headrace.batch(
        ["s.1", "s.2"],
        [b"data", None],
        headers=[headers, None],
        times=[1_700_000_000_123_456_789, 1_700_000_000_000_000_000],
        keys=[b"k", None],
    )
    volume.commit([log.append(batch)])
    one, two = list(log)
    assert (one.subject, one.key, one.time_ns, one.data) == ("s.1", b"k", 1_700_000_000_123_456_789, b"data")
    assert (two.subject, two.key, two.time_ns, two.data) == ("s.2", None, 1_700_000_000_000_000_000, None)
    shown = dict(log.to_arrow(["headers"]).to_pylist()[0]["headers"])
    assert shown["A"] == ["1", "2"] and shown["B"] == ["x"]
    copy = volume.create("copy")
    volume.commit([copy.append(log.read(0))])
    assert [(r.headers, r.data) for r in copy] == [(r.headers, r.data) for r in log]


def test_given_positions() -> None:
    volume = open_volume(Disk.memory())
    log = volume.create("q")
    volume.commit([log.append(headrace.batch("q", [b"a", b"b"], positions=[7, 100]), keep_positions=True)])
    assert [r.position for r in log] == [7, 100] and log.next_seq == 101
    with pytest.raises(BadInput, match="101"):
        log.append(headrace.batch("q", [b"c"], positions=[50]), keep_positions=True)
    assert put(volume, log, [b"d"]).first == 101


def test_cursors() -> None:
    disk = Disk.memory()
    volume = open_volume(disk, RabbitOptions(deliver_at_publish=False, queue_index_segment_entry_count=16))
    log = volume.create("q")
    put(volume, log, [b"%d" % n for n in range(20)])
    readers = volume.cursors("q")
    volume.commit([readers.deliver(range(5))])
    assert readers.pending() == [0, 1, 2, 3, 4] and readers.unacked() == {0: 16, 1: 4}
    volume.commit([readers.ack([0, 1, 3])])
    state = readers.state_of("queue")
    assert (state.delivered.stream, state.ack_floor.stream, sorted(state.pending)) == (4, 1, [2, 4])
    log.sleep()
    assert readers.pending() == [2, 4], "an idle queue forgets nobody's messages"
    readers.requeue([2])
    assert readers.pending() == [4] and [r.position for r in log][:2] == [2, 4]


def test_idle_queues_flush_and_free_memory(tmp_path: Path) -> None:
    options = RabbitOptions(queue_hibernate_after=100)
    with RabbitVolume(str(tmp_path), mode="rw", create=True, options=options) as volume:
        logs = [volume.create(f"q{n}") for n in range(5)]
        for log in logs:
            put(volume, log, [b"x", b"y" * 9000])
        deadline = time.monotonic() + 10
        while volume.awake and time.monotonic() < deadline:
            time.sleep(0.02)
        assert volume.awake == 0 and not any(log.awake for log in logs)
        assert all(journal_bytes(log) == 0 and segments(log) == ["0.idx"] for log in logs)
        assert logs[3].state().messages == 2 and not logs[3].awake, "numbers are kept"
        assert [r.data for r in logs[3]] == [b"x", b"y" * 9000]


def test_two_writers_and_readers(tmp_path: Path) -> None:
    with RabbitVolume(str(tmp_path), mode="rw", create=True) as volume:
        log = volume.create("v1/q")
        put(volume, log, [b"x"])
        with pytest.raises(StoreLocked):
            RabbitVolume(str(tmp_path), mode="rw")
        reader = RabbitVolume(str(tmp_path))
        assert reader.logs() == ["v1/q"] and [r.data for r in reader.open("v1/q")] == [b"x"]
        with pytest.raises(ReadOnly):
            reader.open("v1/q").append(headrace.batch("q", [b"y"]))
        assert volume.definitions()["queues"][0] == {
            "vhost": "v1", "name": "q", "durable": True, "auto_delete": False, "arguments": {},
        }  # fmt: skip
        volume.delete("v1/q")
        assert volume.logs() == []


def test_many_threads_share_syncs(tmp_path: Path) -> None:
    with RabbitVolume(
        str(tmp_path), mode="rw", create=True, options=RabbitOptions(queue_index_max_journal_entries=200)
    ) as volume:
        log = volume.create("q")

        def work(number: int) -> None:
            for turn in range(20):
                put(volume, log, [b"%d-%d" % (number, turn), b"%d" % number * 5000])

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.state().messages == 160 and len(list(log)) == 160
    with RabbitVolume(str(tmp_path)) as again:
        assert len({r.data for r in again.open("q")}) == 84 and again.open("q").state().messages == 160


def test_full_disk_and_failed_sync() -> None:
    plan = FaultPlan()
    disk = Disk.faulty(Disk.memory(), plan)
    volume = open_volume(disk)
    log = volume.create("q")
    put(volume, log, [b"a"])
    plan.clear()
    plan.path_contains, plan.fail_write_at = "journal", plan.writes
    with pytest.raises(DiskFull):
        log.append(headrace.batch("q", [b"refused"]))
    plan.fail_write_at = None
    put(volume, log, [b"b"])
    assert [r.data for r in log] == [b"a", b"b"]
    ticket = log.append(headrace.batch("q", [b"unsure"]))
    plan.clear()
    plan.fail_sync_at = 0
    with pytest.raises(DiskFault):
        volume.commit([ticket])
    plan.fail_sync_at = None
    with pytest.raises(StorePoisoned):
        log.append(headrace.batch("q", [b"more"]))
    again = open_volume(disk, mode="r")
    assert [r.data for r in again.open("q")] == [b"a", b"b", b"unsure"]


def test_interval_mode_answers_before_the_disk() -> None:
    disk = Disk.memory()
    volume = open_volume(disk, durability="interval")
    log = volume.create("q")
    put(volume, log, [b"first"])
    before = disk.sync_points()
    put(volume, log, [b"x"])
    assert disk.sync_points() == before and [r.data for r in log] == [b"first", b"x"]
    log.sync()
    assert open_volume(disk.crash(0, "none")).open("q").state().messages == 2
