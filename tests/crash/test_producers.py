"""Promise 9 on a bad day: the power goes at every sync point, every write and every sync fails once.

Two producers with interleaved tasks publish to a stream that keeps everything and to one whose limits throw blocks
away. Whoever was not answered sends again, afterwards everybody sends everything again. Then:

    a number that was answered               is a duplicate, however long its message is gone
    the stream that keeps everything         holds each number exactly once: none lost, none twice

In mode `interval` a power cut may take what was answered; then it is not done either, and is taken when it comes again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace._core import Disk, FaultPlan
from headrace.errors import HeadraceError
from headrace.testing import CrashDriver, CrashPoint
from tests.support.memory_model import SECOND, MemoryModel, StillClock, headers_of

WHOLE, SMALL = "U", "T"
CONFIGS: dict[str, dict[str, Any]] = {
    WHOLE: {"name": WHOLE, "duplicate_window": SECOND},
    SMALL: {"name": SMALL, "duplicate_window": SECOND, "max_msgs": 4},
}
PRODUCERS = ("app/1", "app/2")
ROUNDS = 6
TRIES = 4

Number = tuple[str, str, int]
"""Stream, producer, number."""


class Dark(HeadraceError):
    """Nothing is answered any more."""


@dataclass
class Said:
    clock: StillClock = field(default_factory=StillClock)
    created: set[str] = field(default_factory=set[str])
    sent: dict[Number, int] = field(default_factory=dict[Number, int])
    """Number → the first one that belongs to its message."""
    done: set[Number] = field(default_factory=set[Number])
    durability: str = "sync"


class Day:
    def __init__(self, disk: Disk, said: Said, *, stubborn: bool = False) -> None:
        self.disk, self.said, self.stubborn = disk, said, stubborn
        self.open()

    def open(self) -> None:
        self.model = MemoryModel(self.disk, self.said.clock, durability=self.said.durability)
        self.wire = self.model.wire()
        self.model.run()

    def ask(self, subject: str, body: bytes = b"") -> dict[str, Any]:
        for _ in range(TRIES if self.stubborn else 1):
            msg = self.wire.request(subject, body)
            if msg is not None and msg.data and "error" not in msg.json():
                return msg.json()
            self.model.pass_time(2 * SECOND)
        raise Dark(subject)

    def create(self) -> None:
        for name, config in CONFIGS.items():
            if name not in self.model.account().streams:
                self.wire.api(f"STREAM.CREATE.{name}", config)
            if name not in self.model.account().streams:
                raise Dark(name)
            self.said.created.add(name)

    def publish(self, numbers: list[Number]) -> None:
        """All in one buffer; what is refused goes again when somebody is stubborn."""
        for _ in range(TRIES if self.stubborn else 1):
            left: list[Number] = []
            requests: list[tuple[str, bytes | None, bytes]] = []
            for stream, producer, number in numbers:
                first = self.said.sent[stream, producer, number]
                text = f"{first}-{number}" if first < number else str(number)
                headers = headers_of(Headrace_Producer=producer, Headrace_Producer_Seq=text)
                requests.append((stream, headers, b"%s %d" % (producer.encode(), number)))
            for number, msg in zip(numbers, self.wire.ask(requests), strict=True):
                if msg is None or not msg.data or "error" in msg.json():
                    left.append(number)
                    continue
                said = msg.json()
                duplicate = said.get("duplicate", False)
                assert duplicate or number not in self.said.done, (
                    f"{number} was answered, and is stored again"
                )
                self.said.done.add(number)
            numbers = left
            if not numbers:
                return
            self.model.pass_time(2 * SECOND)
        raise Dark(f"{numbers}")

    def send(self, producer: str, wanted: list[tuple[int, int]]) -> None:
        numbers: list[Number] = []
        for stream in CONFIGS:
            for first, number in wanted:
                self.said.sent[stream, producer, number] = first
                numbers.append((stream, producer, number))
        self.publish(numbers)

    def send_everything_again(self) -> None:
        self.publish(list(self.said.sent))

    def counted(self) -> Counter[bytes]:
        store = self.model.account().streams[WHOLE].store
        return Counter(record.data or b"" for record in store.read(1, 10_000))


def working_day(disk: Disk, said: Said, *, stubborn: bool = False) -> None:
    day = Day(disk, said, stubborn=stubborn)
    day.create()
    for number in range(ROUNDS):
        base = number * 10
        # Two tasks, each in its own order; some numbers are left out on purpose, a batch is longer than a block.
        day.send(PRODUCERS[0], [(base + 1, base + 1), (base + 3, base + 4), (base, base)])
        day.send(
            PRODUCERS[1], [(base + 9, base + 9), (base + 2, base + 5), (base + 6, base + 8), (base, base)]
        )
        day.send(PRODUCERS[0], [(base + 2, base + 2), (base + 5, base + 9)])
        if number == 1:
            day.ask(f"$JS.API.STREAM.PURGE.{SMALL}")
        if number == 2:
            last = day.model.account().streams[SMALL].store.state().last_seq
            day.ask(f"$JS.API.STREAM.MSG.DELETE.{SMALL}", b'{"seq":%d}' % last)
            day.ask(f"$HEADRACE.API.PRODUCER.SETTLE.{WHOLE}", b'{"producer":"app/1","below":%d}' % (base + 3))
        if number == 3:
            day.model.close()
            said.clock.now_ns += 3 * SECOND
            day.open()
        day.model.pass_time([SECOND // 2, 2 * SECOND, 121 * SECOND][number % 3])
    day.model.close()


def check(disk: Disk, said: Said, _point: CrashPoint | None = None) -> None:
    said = replace(said, clock=copy(said.clock), done=set(said.done), created=set(said.created))
    day = Day(disk, said)
    account = day.model.account()
    assert not account.offline and said.created <= account.streams.keys()
    said.clock.now_ns += 5 * SECOND
    day.create()
    if said.durability == "interval":
        said.done.clear()
    day.send_everything_again()
    check_whole(day)
    if said.durability == "interval":
        said.done.clear()
    again = Day(disk.crash(0, "none"), said)
    again.send_everything_again()
    check_whole(again)


def check_whole(day: Day) -> None:
    found = day.counted()
    wanted = {
        b"%s %d" % (producer.encode(), number)
        for stream, producer, number in day.said.sent
        if stream == WHOLE
    }
    assert set(found) == wanted, f"lost: {sorted(wanted - set(found))}"
    twice = {data: count for data, count in found.items() if count > 1}
    assert not twice, f"more than once: {twice}"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of syncs fail, each of them with a line in the log."""
    loggers = [logging.getLogger(name) for name in ("headrace.engine", "headrace.streams", "headrace")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    yield
    for logger, was in zip(loggers, before, strict=True):
        logger.disabled = was


@pytest.mark.slow
def test_power_cut_at_every_sync_point(crash_driver: CrashDriver) -> None:
    report = crash_driver.run(working_day, check, notes=Said)
    print(f"{report.sync_points} sync points, {report.crashes} power cuts")
    assert report.sync_points > 100


@pytest.mark.slow
def test_power_cut_at_every_sync_point_in_mode_interval(crash_driver: CrashDriver) -> None:
    report = crash_driver.run(working_day, check, notes=lambda: Said(durability="interval"))
    assert report.sync_points > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "write"])
@pytest.mark.parametrize("stubborn", [True, False], ids=["goes on", "ends there"])
def test_every_write_and_every_sync_fails_once(kind: str, stubborn: bool) -> None:
    """The server goes on and clients that were refused send again, or everything ends there and then; opened again,
    each number is there once."""
    counting = FaultPlan()
    working_day(Disk.faulty(Disk.memory(), counting), Said(), stubborn=True)
    total = counting.syncs if kind == "sync" else counting.writes
    went_on = 0
    for k in range(total):
        error = ("ENOSPC", "EIO")[k % 2]
        plan = FaultPlan(fail_sync_at=k) if kind == "sync" else FaultPlan(fail_write_at=k, write_error=error)
        memory, said = Disk.memory(), Said()
        try:
            working_day(Disk.faulty(memory, plan), said, stubborn=stubborn)
            went_on += 1
        except HeadraceError:
            pass  # it wants to be opened again, or nobody tries again
        for keep in ("none", "all"):
            try:
                check(memory.crash(0, keep), said)
            except AssertionError as problem:
                raise AssertionError(f"{kind} {k}, keep={keep}: {problem}") from problem
    print(f"{total} faults ({kind}), after {went_on} the day went on to its end")
    assert not stubborn or went_on > total // 2
