"""Reading what real brokers wrote: every format, codec and oddity, against what the real consumer returned."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from headrace._core import Disk
from headrace.errors import BadInput, NotFound, ReadOnly
from headrace.layouts.base import Predicate
from headrace.layouts.kafka.checkpoints import LOG_START, read_epochs, read_offsets, read_topic_id
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.record import Record
from tests.support.kafka import copy_damaged, expected_rows, golden, row, rows

EVERY = [(version, name) for version in ("4.3.1", "3.9.2") for name in golden(version).streams()]
# The cleaner rewrote these: rule and files agree per segment, but intervals began anew at its output.
INDEXED_BY_THE_RULE = [(version, name) for version, name in EVERY if "compact" not in name]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("version", "name"), EVERY, ids=[name for _, name in EVERY])
def test_every_record_of_the_broker(version: str, name: str, tmp_path: Path) -> None:
    store = golden(version).copy(tmp_path)
    before = snapshot(store)
    entry = golden(version).streams()[name]
    with KafkaVolume(str(store)) as volume:
        log = volume.open(name)
        expected = expected_rows(entry)
        assert rows(log) == expected
        state = log.state()
        assert (state.messages, state.last_seq) == (len(expected), entry["end"] - 1)
        assert log.damage() == []
        # By single reads, by tasks in another process's shoes, as Arrow: the same.
        for want in expected[:: max(len(expected) // 9, 1)]:
            assert row(log.read(want[0], max_msgs=1)[0]) == want
        tasks = [pickle.loads(pickle.dumps(task)) for task in log.scan_tasks()]
        assert [row(r) for task in tasks for batch in task.batches() for r in batch] == expected
        table = log.to_arrow()
        assert table.column("data").to_pylist() == [e[3] for e in expected]
        assert [
            [(n, list(v)) for n, v in h] if h is not None else None
            for h in table.column("headers").to_pylist()
        ] == [_grouped(e[4]) for e in expected]
        with pytest.raises(ReadOnly):
            log.drop_front(1)
    assert snapshot(store) == before, "reading wrote"


def _grouped(pairs: tuple[tuple[str, bytes | None], ...]) -> list[tuple[str, list[str]]] | None:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append((value or b"").decode("utf-8", "replace"))
    return list(found.items()) if pairs else None


@pytest.mark.parametrize(("version", "name"), INDEXED_BY_THE_RULE, ids=[n for _, n in INDEXED_BY_THE_RULE])
def test_indexes_are_the_brokers_byte_for_byte(version: str, name: str, tmp_path: Path) -> None:
    """The rule of `.index` and `.timeindex`, the aborted transactions, and the producers."""
    store = golden(version).copy(tmp_path)
    options = KafkaOptions(index_interval_bytes=200, producer_id_expiration_ms=2**62)
    wanted = snapshot(store / name)
    for path in [*(store / name).glob("*index"), *(store / name).glob("*.snapshot")]:
        path.unlink()
    with KafkaVolume(str(store), mode="rw", options=options, maintenance=False) as volume:
        volume.open(name)
    found = snapshot(store / name)
    compared = [file for file in wanted if file.endswith(("index", ".log"))]
    assert compared
    for file in compared:
        assert found[file] == wanted[file], file
    last = max(file for file in wanted if file.endswith(".snapshot"))
    assert sorted(_entries(found[last])) == sorted(_entries(wanted[last]))


def _entries(snapshot_file: bytes) -> list[bytes]:
    return [snapshot_file[at : at + 46] for at in range(10, len(snapshot_file), 46)]


def test_committed_and_control(tmp_path: Path) -> None:
    store = golden().copy(tmp_path)
    entry = golden().streams()["fx-txn-0"]
    with KafkaVolume(str(store), options=KafkaOptions(isolation_level="read_committed")) as volume:
        log = volume.open("fx-txn-0")
        assert [record.position for record in log] == entry["read_committed_offsets"]
        tasks = log.scan_tasks()
        assert [r.position for t in tasks for b in t.batches() for r in b] == entry["read_committed_offsets"]
    with KafkaVolume(str(store)) as volume:
        log = volume.open("fx-txn-0")
        everything, first = list[Record](), 0
        while len(batch := log.read(first, control=True)):
            everything, first = [*everything, *batch], batch.last_position + 1
        assert [row(record) for record in everything] == expected_rows(entry, control=True)
        markers = {r.position: r.flags for r in everything if r.flags & 1}
        assert set(markers) == {m["offset"] for m in entry["messages"] if "control" in m}
        assert set(markers.values()) == {5}, "control and transactional"


def test_log_start_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    store = golden().copy(tmp_path)
    files = golden().folder / "logdir-files"
    shutil.copy(files / LOG_START, store / LOG_START)
    with KafkaVolume(str(store)) as volume:
        log = volume.open("fx-delrec-0")
        assert log.state().first_seq == 23 and log.state().messages == 37
        assert [record.position for record in log] == list(range(23, 60))
        frames = log.read_frames(23)
        assert frames.first <= 23 < frames.next, "whole batches: the client drops what it did not ask for"
    assert read_offsets(Disk.real(), str(files / "recovery-point-offset-checkpoint"))["fx-none-0"] == 140
    assert read_epochs(Disk.real(), str(store / "fx-none-0" / "leader-epoch-checkpoint")) == [(0, 0)]
    assert len(read_topic_id(Disk.real(), str(store / "fx-none-0")) or "") == 22


def test_times(tmp_path: Path) -> None:
    """The first record at or after a time, though times are out of order in places."""
    store = golden().copy(tmp_path)
    with KafkaVolume(str(store)) as volume:
        for name in ("fx-none-0", "fx-gzip-0", "fx-timeroll-0", "fx-logappend-0"):
            log = volume.open(name)
            content = rows(log)
            for ms in sorted({r[1] for r in content} | {0, content[-1][1] + 5}):
                for nudge in (0, 1):
                    wanted = next((r[0] for r in content if r[1] >= ms + nudge), log.state().last_seq + 1)
                    assert log.seq_from_time((ms + nudge) * 1_000_000) == wanted, (name, ms)
            since = content[len(content) // 2][1] * 1_000_000
            found = [r.position for b in log.batches(Predicate(since_ns=since)) for r in b]
            assert found == [r[0] for r in content if r[1] * 1_000_000 >= since]


def test_after_sigkill_and_with_a_torn_tail(tmp_path: Path) -> None:
    for case, tail in (("unclean-sigkill", 0), ("unclean-torn-tail", 119)):
        folder, entry = copy_damaged(case, tmp_path)
        with KafkaVolume(str(folder)) as volume:
            log = volume.open(entry["log"])
            assert rows(log) == expected_rows(entry)
            assert [finding.length for finding in log.damage()] == [tail] * bool(tail)


def test_one_bad_batch_costs_one_batch(tmp_path: Path) -> None:
    """The broker, recovering from offset 0, keeps 12 of these 40 records and deletes the later segment."""
    folder, entry = copy_damaged("corrupt-mid", tmp_path)
    with KafkaVolume(str(folder)) as volume:
        log = volume.open(entry["log"])
        assert rows(log) == [r for r in expected_rows(entry) if not 12 <= r[0] < 16]
        [finding] = log.damage()
        assert (finding.kind, finding.offset, finding.first_seq, finding.next_seq) == (
            "bad-record",
            506,
            12,
            16,
        )


def test_a_partition_directory_opens_too(tmp_path: Path) -> None:
    store = golden().copy(tmp_path)
    with KafkaVolume(str(store / "fx-zstd-0")) as volume:
        assert volume.logs() == ["fx-zstd-0"]
        assert len(rows(volume.open("fx-zstd-0"))) == 140


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "a-",
        "-1",
        "../x-0",
        "a/b-0",
        "a*-0",
        "..-0",
        "a-00",
        "a\0-0",
        "x" * 250 + "-0",
        "a-2147483648",
    ],
)
def test_names_that_could_leave_the_directory(name: str, tmp_path: Path) -> None:
    with KafkaVolume(str(tmp_path / "new"), mode="rw", create=True, maintenance=False) as volume:
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(BadInput):
            volume.create(name)
        with pytest.raises(NotFound):
            volume.open(name)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        with pytest.raises(NotFound):
            volume.open("absent-0")
