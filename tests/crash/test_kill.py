"""Promise 1 with a real process on a real disk: SIGKILL at random moments; the lock; readers beside a writer."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import headrace
from headrace.errors import StoreLocked
from tests.crash.witness import STREAM

ROUNDS = 8
LIFE_S = (0.05, 0.45)

# Appends batches whose payload tells the sequence, prints what was acknowledged, removes some, rolls often.
WRITER = """
import sys
import headrace
from headrace.layouts.jetstream.volume import JetStreamVolume

path, durability, max_msgs = sys.argv[1:4]
volume = JetStreamVolume(path, mode="rw", create=True, durability=durability, block_bytes=20_000)
store = volume.create("S", subjects=["k.>"], max_msgs=int(max_msgs))
print("open", flush=True)
while True:
    first = store.state().last_seq + 1
    seqs = range(first, first + 1 + first % 40)
    batch = headrace.batch([f"k.{n % 5}" for n in seqs], [b"%d:" % n + b"x" * (n % 97) for n in seqs])
    ticket = store.append(batch)
    volume.commit([ticket])
    print("stored", ticket.first, ticket.next, flush=True)
    if first % 3 == 0:
        print("removing", first, flush=True)
        removed = store.remove([first])
        volume.commit([removed])
        print("removed", first, flush=True)
"""


def payload(seq: int) -> bytes:
    return b"%d:" % seq + b"x" * (seq % 97)


class Writer:
    """The process, and a thread that reads what it says (a full pipe would hold it up)."""

    def __init__(self, path: Path, durability: str, max_msgs: int) -> None:
        command = [sys.executable, "-c", WRITER, str(path), durability, str(max_msgs)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._opened = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._opened.wait(60) and self.process.poll() is None, "the writer did not start"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "open\n":
                self._opened.set()
            elif line.endswith("\n"):  # else it was killed in the middle of a word
                self.lines.append(line)
        self._opened.set()

    def kill(self) -> list[str]:
        """SIGKILL; the whole lines that it had said by then."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        return self.lines


@contextlib.contextmanager
def writer(path: Path, durability: str = "sync", max_msgs: int = -1) -> Generator[Writer]:
    process = Writer(path, durability, max_msgs)
    try:
        yield process
    finally:
        process.kill()


class Acknowledged:
    """What the writer was told to be stored or removed, over all its lives."""

    def __init__(self) -> None:
        self.stored: set[int] = set()
        self.begun: set[int] = set()
        self.removed: set[int] = set()

    def note(self, lines: list[str]) -> None:
        for line in lines:
            word, *numbers = line.split()
            if word == "stored":
                fresh = set(range(int(numbers[0]), int(numbers[1])))
                assert not fresh & self.stored, "a sequence was given out twice"
                self.stored |= fresh
            else:
                (self.begun if word == "removing" else self.removed).add(int(numbers[0]))

    def check(self, store: headrace.Log) -> None:
        found = {record.seq: record.data for record in store}
        lost = self.stored - self.begun - found.keys()
        assert not lost, f"acknowledged and lost: {sorted(lost)[:10]}"
        assert not self.removed & found.keys(), "a removed message came back"
        assert all(data == payload(seq) for seq, data in found.items())
        assert store.state().last_seq >= max(self.stored, default=0)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "interval"])
def test_kill_loses_nothing(durability: str, tmp_path: Path, headrace_seed: int) -> None:
    """Neither mode loses anything to a kill: what `write` took is the kernel's."""
    chance = random.Random(headrace_seed)
    acknowledged = Acknowledged()
    for _ in range(ROUNDS):
        with writer(tmp_path, durability) as process:
            time.sleep(chance.uniform(*LIFE_S))
            acknowledged.note(process.kill())
        volume = headrace.open(str(tmp_path))
        store = volume.open(STREAM)
        acknowledged.check(store)
        assert {each.kind for each in volume.damage()} <= {"unsound-tail"}
        volume.close()
    assert len(acknowledged.stored) > 100
    print(f"{durability}: {len(acknowledged.stored)} acknowledged over {ROUNDS} kills")

    with headrace.open(str(tmp_path), mode="rw", maintenance=False) as volume:
        store = volume.open(STREAM)
        acknowledged.check(store)
        before = store.state()
        ticket = store.append(headrace.batch("k.0", [b"next"]))
        assert ticket.first > before.last_seq >= max(acknowledged.stored)
    report = headrace.verify(str(tmp_path))
    assert not report.problems and {each.kind for each in report.damage} <= {"unsound-tail"}


def test_two_writers_cannot_open_one_store(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        with pytest.raises(StoreLocked, match=str(process.process.pid)):
            headrace.open(str(tmp_path), mode="rw")
        headrace.open(str(tmp_path)).close()
        process.kill()
    with headrace.open(str(tmp_path), mode="rw", maintenance=False) as volume:
        volume.open(STREAM)
        with pytest.raises(StoreLocked):
            headrace.open(str(tmp_path), mode="rw")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "interval"])
def test_readers_beside_a_writer(durability: str, tmp_path: Path) -> None:
    """They see what is durable, never less than a reader before them saw, and never raise, though the writer
    removes blocks all the time."""
    with writer(tmp_path, durability, max_msgs=3000) as process:
        seen_last, opened, damage = 0, 0, []
        until = time.monotonic() + 4
        while time.monotonic() < until:
            volume = headrace.open(str(tmp_path))
            store = volume.open(STREAM)
            found = {record.seq: record.data for record in store}
            last = store.state().last_seq
            assert all(data == payload(seq) for seq, data in found.items())
            assert last >= seen_last, "a reader saw less than the one before"
            assert max(found, default=0) <= last
            seen_last, opened = last, opened + 1
            damage += volume.damage()
            volume.close()
        lines = process.kill()
        stored = [int(line.split()[2]) for line in lines if line.startswith("stored")]
    assert opened > 3
    assert not damage, damage[:3]
    if durability == "sync":
        assert 0 < seen_last < stored[-1] + 200
