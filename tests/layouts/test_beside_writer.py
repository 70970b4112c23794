"""Readers beside a live writer of ours, in another process: they see what is durable, follow it, and nothing above it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from headrace._core import Disk
from headrace.layouts.kafka.layout import LAYOUT as KAFKA
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.marks import FILE, Marks, MarksBeside
from headrace.layouts.rocketmq.layout import LAYOUT as ROCKETMQ
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.volume import RocketVolume

LAYOUTS = ("kafka", "rocketmq")
SMALL = {
    "kafka": {"segment_bytes": 3000, "batch_size": 300, "index_interval_bytes": 200},
    "rocketmq": {
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 10,
        "max_index_num": 40,
    },
}
# Reads one word per line: append N, commit, close. Mode interval without upkeep: only `commit` syncs.
WRITER = """
import json, sys
from headrace._core import Batch
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.volume import RocketVolume
layout, path, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
kind, settings = {"kafka": (KafkaVolume, KafkaOptions), "rocketmq": (RocketVolume, RocketOptions)}[layout]
volume = kind(path, mode="rw", create=True, durability="interval", maintenance=False, options=settings(**options))
log = volume.create("orders-0")
print("ready", flush=True)
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "append":
        data = [b"%d" % (log.next + n) for n in range(int(number))]
        log.append(Batch.build("orders", data, header_codec="kafka"))
    elif word == "commit":
        log.commit() if layout == "kafka" else volume.commits.commit(volume.commit_log.next)
    else:
        volume.close()
    print(log.next, flush=True)
"""


class Writer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the writer ended"
        return line

    def do(self, what: str) -> int:
        """Returns the next position that the writer has."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def writing(layout: str, path: Path) -> Iterator[Writer]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, layout, str(path), json.dumps(SMALL[layout])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Writer(process)
    finally:
        process.kill()
        process.communicate()


def reading(layout: str, path: Path) -> KafkaVolume | RocketVolume:
    if layout == "kafka":
        return KafkaVolume(str(path), options=KafkaOptions(**SMALL[layout]))
    return RocketVolume(str(path), options=RocketOptions(**SMALL[layout]))


def seen(log: headrace.Log) -> list[bytes | None]:
    return [record.data for record in log]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_readers_stop_at_the_durable_mark(layout: str, tmp_path: Path) -> None:
    with writing(layout, tmp_path) as writer:
        writer.do("append 10")
        with reading(layout, tmp_path) as volume:
            log = volume.open("orders-0")
            assert seen(log) == [], "nothing is synced yet"
            writer.do("commit")
            assert seen(log) == numbers(10)
            # Over several segments and commit-log files, so that new ones must be noticed.
            for total in range(60, 360, 50):
                writer.do("append 50")
                assert len(seen(log)) == total - 50
                assert log.state().messages == total - 50
                assert sum(len(b) for task in log.scan_tasks() for b in task.batches()) == total - 50
                writer.do("commit")
                assert seen(log) == numbers(total)
                assert log.state().last_seq == total - 1
            writer.do("append 7")
            where = KAFKA if layout == "kafka" else ROCKETMQ
            view = where.inspect(str(tmp_path), log="orders-0")
            assert view.writer is not None and view.sound
            [shown] = view.logs
            assert shown.state is not None and shown.state.messages == 310
            assert log.damage() == []
            # A reader that comes now sees no more than the one that was here.
            with reading(layout, tmp_path) as late:
                assert seen(late.open("orders-0")) == numbers(310)
            writer.do("close")
            assert seen(log) == numbers(317), "a clean stop makes everything durable"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mark_counts_only_while_its_writer_lives(layout: str, tmp_path: Path) -> None:
    with writing(layout, tmp_path) as writer:
        writer.do("append 10")
        writer.do("commit")
        writer.do("append 5")
        writer.kill()
    # The process is gone, the machine is not: everything that was written is there.
    with reading(layout, tmp_path) as volume:
        assert seen(volume.open("orders-0")) == numbers(15)
    with writing(layout, tmp_path) as writer:
        assert writer.do("append 1") == 16
        with reading(layout, tmp_path) as volume:
            assert seen(volume.open("orders-0")) == numbers(15), "recovery synced what it found"


def test_a_slot_half_written_is_not_believed(tmp_path: Path) -> None:
    disk = Disk.real()
    marks = Marks(disk, str(tmp_path))
    marks.begin()
    marks.publish("a-0", (1, 2, 3))
    marks.publish("b-0", (4, 5, 6))
    marks.publish("a-0", (1, 20, 30))
    beside = MarksBeside(disk, str(tmp_path))
    assert (beside.of("a-0"), beside.of("b-0"), beside.of("c-0")) == ((1, 20, 30), (4, 5, 6), None)
    file = tmp_path / FILE
    whole = file.read_bytes()
    for at in range(36):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert MarksBeside(disk, str(tmp_path)).of("a-0") is None
    file.unlink()
    assert MarksBeside(disk, str(tmp_path)).of("a-0") is None
