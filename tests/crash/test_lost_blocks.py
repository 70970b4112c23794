"""Promises 4 and 5 when whole files are gone: reported by everything that looks, and no sequence is given out again.

The store is killed (everything written is there, nothing was tidied up) or stopped cleanly; then blocks are removed,
emptied or cut. Whatever still knows of the messages must be enough.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace._core import Disk
from headrace.cli.main import run
from headrace.config.model import ConsumerConfig
from headrace.layouts.base import Damage
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.ops.look import inspect, verify
from headrace.streams.stream.dedup_state import DedupState
from headrace.testing import FakeClock
from tests.crash.witness import PATH, STREAM, STREAM_DIR, open_volume

MESSAGES = 60
MSGS = f"{STREAM_DIR}/msgs"
SIDE = f"{STREAM_DIR}/headrace"
Ruin = Callable[[Disk], None]


def killed(
    clean: bool = False, work: Callable[[FileStreamStore], None] | None = None, **config: object
) -> Disk:
    """A store of 60 acknowledged messages in several blocks, as kill -9 or a clean stop leaves it."""
    disk = Disk.memory()
    volume = open_volume(disk, create=True)
    store = volume.create(STREAM, subjects=["s.>"], **config)
    for first in range(1, MESSAGES + 1, 10):
        batch = headrace.batch("s.a", [b"%03d" % n + b"x" * 80 for n in range(first, first + 10)])
        volume.commit([store.append(batch)])
    if work is not None:
        work(store)
        store.commit()
    if clean:
        volume.close()
    return disk.crash(0, "all")


def blocks(disk: Disk) -> list[int]:
    return sorted(int(name.partition(".")[0]) for name, _, _ in disk.list(MSGS) if name.endswith(".blk"))


def check_reported(disk: Disk, lost: range | None) -> None:
    """By opening, `damage`, inspect and verify; the next sequence is above all; afterwards the store is sound."""
    reader = open_volume(disk.crash(0, "all"), mode="r")
    found = [each for each in reader.open(STREAM).damage() if each.kind == "missing"]
    assert found, "the reader says nothing"
    if lost is not None:
        assert (found[0].first_seq, found[0].next_seq) == (lost.start, lost.stop), found
    for report in (verify(PATH, disk=disk), inspect(PATH, disk=disk), inspect(PATH, disk=disk, quick=True)):
        assert not report.sound
        assert _places(report.damage) == _places(found)

    volume = open_volume(disk)
    store = volume.open(STREAM)
    assert _places(store.damage()) == _places(found)
    assert _places(volume.damage()) == _places(found)
    ticket = store.append(headrace.batch("s.b", [b"after"]))
    volume.commit([ticket])
    assert ticket.first > MESSAGES, "a sequence that was acknowledged is given out again"
    survivors = [record.seq for record in store]
    if lost is not None:
        assert not set(survivors) & set(lost)
    after = disk.crash(0, "all")
    assert verify(PATH, disk=after).sound, "what was reported and pinned is not reported again"
    assert [record.seq for record in open_volume(after).open(STREAM)] == survivors


def _places(damage: list[Damage]) -> set[tuple[str, int, int]]:
    return {(each.file, each.offset, each.length) for each in damage if each.kind == "missing"}


def _remove_newest(disk: Disk) -> None:
    disk.remove_file(f"{MSGS}/{max(blocks(disk))}.blk")


def _empty_newest(disk: Disk) -> None:
    disk.open(f"{MSGS}/{max(blocks(disk))}.blk", "write").set_len(0)


def _cut_newest(disk: Disk) -> None:
    """At the boundary of two records: everything that is left is sound."""
    disk.open(f"{MSGS}/{max(blocks(disk))}.blk", "write").set_len(_record_bytes(disk))


def _remove_two(disk: Disk) -> None:
    _remove_newest(disk)
    _remove_newest(disk)


def _remove_all(disk: Disk) -> None:
    disk.remove_dir_all(MSGS)


def _record_bytes(disk: Disk) -> int:
    return int.from_bytes(disk.read(f"{MSGS}/1.blk")[:4], "little")


@pytest.mark.parametrize("ruin", [_remove_newest, _empty_newest, _cut_newest, _remove_two, _remove_all])
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_the_end_of_the_blocks_is_gone(ruin: Ruin, clean: bool) -> None:
    disk = killed(clean)
    ruin(disk)
    check_reported(disk, None)


def test_exactly_what_was_lost_is_named() -> None:
    disk = killed()
    per_block = disk.entry(f"{MSGS}/1.blk").size // _record_bytes(disk)  # type: ignore[union-attr]
    first = per_block * (len(blocks(disk)) - 1) + 1
    _remove_newest(disk)
    check_reported(disk, range(first, MESSAGES + 1))


@pytest.mark.parametrize("how", ["removed", "cut"])
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_a_sealed_block_is_gone(how: str, clean: bool) -> None:
    disk = killed(clean)
    per_block = disk.entry(f"{MSGS}/1.blk").size // _record_bytes(disk)  # type: ignore[union-attr]
    if how == "removed":
        disk.remove_file(f"{MSGS}/2.blk")
        check_reported(disk, range(per_block + 1, 2 * per_block + 1))
    else:
        disk.open(f"{MSGS}/2.blk", "write").set_len(3 * _record_bytes(disk))
        check_reported(disk, range(per_block + 4, 2 * per_block + 1))


def _only(*kept: str) -> Ruin:
    """No messages, and beside them only these files."""

    def ruin(disk: Disk) -> None:
        for name, is_dir, _ in disk.list(MSGS):
            if not is_dir and not name.startswith(kept):
                disk.remove_file(f"{MSGS}/{name}")
        for name, is_dir, _ in disk.list(SIDE):
            if not is_dir and not name.endswith(kept):
                disk.remove_file(f"{SIDE}/{name}")

    return ruin


def _with_consumer(store: FileStreamStore) -> None:
    consumer = store.consumer_store("C", ConsumerConfig(durable_name="C"))
    for seq in range(1, MESSAGES + 1):
        consumer.update_delivered(seq, seq, 1, 1)
    store.consumers.commit()


def _with_ids(store: FileStreamStore) -> None:
    memory = DedupState(store, FakeClock())
    memory.window.accepted(b"id", MESSAGES, FakeClock()())
    memory.save()


@pytest.mark.parametrize(
    ("kept", "clean", "work"),
    [
        ("durable", False, None),
        ("clean.json", True, None),
        (".guard", True, None),
        ("index.db", True, None),
        ("journal", False, _with_consumer),
    ],
)
def test_one_witness_is_enough(
    kept: str, clean: bool, work: Callable[[FileStreamStore], None] | None
) -> None:
    disk = killed(clean, work)
    _only(kept)(disk)
    check_reported(disk, None)


def test_ids_and_producers_keep_sequences_from_being_given_out_again() -> None:
    disk = killed(work=_with_ids)
    _only("dedupe")(disk)
    store = open_volume(disk).open(STREAM)
    assert store.append(headrace.batch("s.b", [b"after"])).first > MESSAGES


def _expire(store: FileStreamStore) -> None:
    store.clock.advance(3600)
    store.tick()
    store.commit()


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.purge(),
        lambda store: store.compact(35),
        lambda store: store.purge_ex("s.a", 0, 7),
        lambda store: store.truncate(33),
        lambda store: store.remove(range(1, MESSAGES + 1)),
        lambda store: store.erase_msg(MESSAGES),
        _expire,
    ],
    ids=["purge", "compact", "purge_ex", "truncate", "remove", "erase", "expire"],
)
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_what_was_removed_is_no_loss(work: Callable[[FileStreamStore], object], clean: bool) -> None:
    disk = killed(clean, lambda store: work(store) and None, max_age=60_000_000_000)
    assert verify(PATH, disk=disk).sound
    clock = FakeClock()
    clock.advance(3600 if work is _expire else 0)
    assert open_volume(disk.crash(0, "all"), mode="r", clock=clock).open(STREAM).damage() == []
    assert open_volume(disk, clock=clock).open(STREAM).damage() == []


WRITER = """
import sys, time, headrace
volume = headrace.open(sys.argv[1], mode="rw", create=True)
store = volume.create("S", subjects=["s.>"])
volume.commit([store.append(headrace.batch("s.a", [b"x" * 90] * 300))])
print("acknowledged", flush=True)
time.sleep(600)
"""


def test_a_killed_process_whose_newest_block_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it was found: 300 acknowledged messages, kill -9, the block removed; `verify` said "sound" and exit 0."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"acknowledged\n"
        process.send_signal(signal.SIGKILL)
    (tmp_path / "jetstream/$G/streams/S/msgs/1.blk").unlink()
    for command in ("verify", "inspect"):
        assert run([command, str(tmp_path)]) == 1
        assert "missing, sequences 1..300" in capsys.readouterr().out
    assert run(["cat", str(tmp_path), "-s", "S"]) == 1
    with headrace.open(str(tmp_path), mode="rw") as volume:
        assert volume.open("S").append(headrace.batch("s.a", [b"next"])).first == 301
