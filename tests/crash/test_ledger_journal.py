"""Ledgers in the journal: a power cut at any sync leaves what was committed, and nothing that never was.

The same changes are made with every point at which the power may go; what is found afterwards is the state as it
stood at one of the flushes, none older than the last commit that returned.
"""

from __future__ import annotations

import random

import pytest

from headrace._core import Disk
from headrace.config.model import ConsumerConfig
from headrace.errors import DiskFault, StorePoisoned
from headrace.layouts.base import ConsumerState, Pending
from headrace.layouts.jetstream.consumers import consumers as module
from headrace.layouts.jetstream.consumers.consumers import Consumers

DIR, STREAM = "/js/S", "S"
T = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
NAMES = ("A", "B")


def coarse(state: ConsumerState) -> ConsumerState:
    """o.dat keeps whole seconds."""
    pending = {
        seq: Pending(each.sequence, each.time_ns // SECOND * SECOND) for seq, each in state.pending.items()
    }
    return ConsumerState(state.delivered, state.ack_floor, pending, state.redelivered)


class Run:
    """Random deliveries, acks, naks, purges on two consumers, with flushes, commits and checkpoints between."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self.random = random.Random(seed)
        self.flushed: dict[str, list[ConsumerState]] = {name: [ConsumerState()] for name in NAMES}
        self.committed = dict.fromkeys(NAMES, 0)
        consumers = Consumers(disk, DIR, STREAM)
        for name in NAMES:
            consumers.create(name, ConsumerConfig(ack_policy="explicit", max_deliver=3).filled(), T)
        self.go(consumers)

    def go(self, consumers: Consumers) -> None:
        ledgers = {name: consumers.get(name).ledger() for name in NAMES}
        now = T
        for _ in range(60):
            name = self.random.choice(NAMES)
            ledger, kind = ledgers[name], self.random.randrange(9)
            now += self.random.randrange(20 * SECOND)
            last = ledger.delivered.stream
            pending = [seq for seq, _, _ in ledger.state()[2]]
            if kind < 3:
                first = last + 1 + self.random.choice([0, 0, 3])
                for seq in range(first, first + self.random.randrange(1, 6)):
                    ledger.sent(seq, now)
            elif kind < 5 and pending:
                for seq in self.random.sample(pending, min(3, len(pending))):
                    ledger.ack(seq, ledger.delivered.consumer)
            elif kind == 5 and pending:
                ledger.nak(pending[0], self.random.choice([0, 5 * SECOND]), now)
                ledger.expire(now)
                for seq in ledger.due(4):
                    ledger.sent(seq, now)
            elif kind == 6 and last:
                ledger.removed_below(self.random.randrange(last) + 1, self.random.random() < 0.3)
            elif kind == 7:
                consumers.get(name).reset(last)
                # A record of its own: a torn write may end behind it.
                self.flushed[name].append(coarse(consumers.state_of(name)))
            self.save(consumers)

    def save(self, consumers: Consumers) -> None:
        how = self.random.randrange(6)
        if how == 0:
            return
        for name in NAMES:
            self.flushed[name].append(coarse(consumers.state_of(name)))
        consumers.flush()
        if how == 1:
            consumers.checkpoint()
        elif how == 2:
            consumers.commit()
            self.committed = {name: len(self.flushed[name]) - 1 for name in NAMES}


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_power_cut_at_every_sync(keep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_BYTES_MAX", 400)
    for seed in range(2):
        whole = Disk.memory()
        Run(whole, seed)
        for point in range(whole.sync_points() + 1):
            disk = Disk.memory()
            disk.power_cut_at(point)
            run = Run.__new__(Run)
            try:
                run.__init__(disk, seed)
            except (DiskFault, StorePoisoned):
                pass
            after = disk.crash(point, keep)
            if after.entry(DIR) is None:
                continue
            seen = Consumers(after, DIR, STREAM, writable=False)
            assert [d.detail for d in seen.damage() if d.kind not in ("unsound-tail", "metadata")] == []
            for name in set(NAMES).intersection(seen.names()):
                state = coarse(seen.state_of(name))
                assert state in run.flushed[name][run.committed[name] :], (seed, point, name)
                folded = Consumers(after, DIR, STREAM)
                assert coarse(folded.state_of(name)) == state
                folded.stop()


def test_a_clean_stop_leaves_no_journal_and_the_same_state() -> None:
    disk = Disk.memory()
    run = Run(disk, 7)
    consumers = Consumers(disk.crash(0, "all"), DIR, STREAM)
    consumers.stop()
    assert coarse(consumers.state_of("A")) in run.flushed["A"]


def test_many_deliveries_and_acks_take_few_bytes() -> None:
    disk = Disk.memory()
    consumers = Consumers(disk, DIR, STREAM)
    ledger = consumers.create("C", ConsumerConfig(ack_policy="explicit").filled(), T).ledger()
    for first in range(1, 100_001, 500):
        for seq in range(first, first + 500):
            ledger.sent(seq, T + first)
        for seq in range(first, first + 500):
            ledger.ack(seq, seq)
        consumers.flush()
    place = f"{DIR}/headrace"
    sizes = [size for name, _, size in disk.list(place) if name.endswith(".journal")]
    assert sum(sizes) < 12_000
    again = Consumers(disk.crash(0, "all"), DIR, STREAM, writable=False).state_of("C")
    assert (again.delivered.stream, again.ack_floor.consumer, again.pending) == (100_000, 100_000, {})
