"""Blocks as columns in one pass: the same rows and the same findings as reading messages first and making columns of them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.arrow import schema
from headrace.layouts.base import Damage, Predicate, ScanTask
from headrace.layouts.jetstream.store.scan_task import BlockTask

# More than one piece of the kernel, and subjects and headers of every kind in each.
MESSAGES = 2500
GONE = [1, 2, 700, 701, 1050, MESSAGES]
SUBJECTS = ["s.a", "s.b", "s.straße.ü", "s." + "x" * 300]
HEADERS = [
    None,
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n",
    b"NATS/1.0 503\r\nStatus: yes\r\n\r\n",
    "NATS/1.0\r\nGruß: zürich\r\nNo colon\r\n\r\n".encode(),
]
RANGES = [Predicate(), Predicate(first=1000, next=1100), Predicate(first=2400), Predicate(next=3)]


@pytest.fixture
def tasks(tmp_path: Path) -> list[BlockTask]:
    chance = random.Random(7)
    with headrace.open(str(tmp_path), "rw", create=True) as volume:
        log = volume.create("S", subjects=["s.>"])
        for _ in range(0, MESSAGES, 500):
            chosen = range(500)
            log.append(
                headrace.Batch.build(
                    [chance.choice(SUBJECTS) for _ in chosen],
                    [chance.randbytes(chance.randrange(200)) for _ in chosen],
                    [chance.choice(HEADERS) for _ in chosen],
                )
            )
        log.remove(GONE)
    with headrace.open(str(tmp_path)) as volume:
        found = volume.open("S").scan_tasks()
    assert all(isinstance(task, BlockTask) for task in found) and any(task.dead for task in found)  # type: ignore[union-attr]
    return found  # type: ignore[return-value]


def both(task: BlockTask, want: Predicate) -> tuple[pa.Table, list[Damage]]:
    """By one pass and by messages: what they agree on."""
    quick_damage: list[Damage] = []
    slow_damage: list[Damage] = []
    quick = pa.Table.from_batches(task.scan(None, want, quick_damage), schema())
    slow = pa.Table.from_batches(ScanTask.scan(task, None, want, slow_damage), schema())
    assert quick.equals(slow), f"{quick.num_rows} and {slow.num_rows} rows"
    assert quick_damage == slow_damage
    quick.validate(full=True)
    return quick, quick_damage


@pytest.mark.parametrize("want", RANGES, ids=str)
def test_one_pass_gives_what_messages_give(tasks: list[BlockTask], want: Predicate) -> None:
    seqs: list[object] = []
    for task in tasks:
        rows, damage = both(task, want)
        assert not damage
        seqs += rows["seq"].to_pylist()
    wanted = range(max(want.first or 1, 1), min(want.next or MESSAGES + 1, MESSAGES + 1))
    assert seqs == [seq for seq in wanted if seq not in GONE]


def test_one_pass_finds_the_same_damage(tasks: list[BlockTask]) -> None:
    path = Path(tasks[0].path)
    whole = path.read_bytes()
    chance = random.Random(11)
    reported = 0
    for _ in range(40):
        broken = bytearray(whole)
        at = chance.randrange(len(broken))
        broken[at] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        rows, damage = both(tasks[0], Predicate())
        reported += bool(damage)
        assert rows.num_rows >= len(whole) // 400, "one bit costs no more than one message"
    path.write_bytes(whole)
    assert reported == 40
