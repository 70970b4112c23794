"""What the server said before the power went is true afterwards: pub-acks, double acks, sequences, message ids.

The whole model runs over a disk in memory, and the power goes at every sync point of a working day on three streams.
What counts as said is what reached a connection's output. Afterwards the model is opened over what is left:

    a publish that was acknowledged          is there, with its bytes, and its id is a duplicate
    a message whose double ack was answered  is never delivered again; on a work queue it is gone
    everything else that was acknowledged    is delivered (again), unless an ack without an answer got through
    the next publish                         gets a sequence that nobody ever saw
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace._core import Disk
from headrace.errors import HeadraceError
from headrace.testing import CrashDriver, CrashPoint
from tests.support.memory_model import SECOND, Got, MemoryModel, StillClock, Wire, headers_of, line_of

STREAMS = {"L": "limits", "W": "workqueue", "I": "interest"}
CONSUMERS = {("L", "l"): "", ("W", "w"): "", ("I", "i"): "", ("I", "a"): "I.a"}
ROUNDS = 7


def stream_config(name: str) -> dict[str, Any]:
    return {"name": name, "subjects": [f"{name}.*"], "retention": STREAMS[name]}


class Dark(HeadraceError):
    """Nothing is answered any more."""


@dataclass
class Said:
    """What clients know."""

    clock: StillClock = field(default_factory=StillClock)
    streams: set[str] = field(default_factory=set[str])
    consumers: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    stored: dict[tuple[str, int], tuple[str, bytes]] = field(
        default_factory=dict[tuple[str, int], tuple[str, bytes]]
    )
    """Subject and payload by stream and sequence."""
    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    acking: set[tuple[str, str, int]] = field(default_factory=set[tuple[str, str, int]])
    """Stream, consumer, sequence: an ack was sent."""
    acked: set[tuple[str, str, int]] = field(default_factory=set[tuple[str, str, int]])
    """Its double ack was answered."""
    deleting: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    deleted: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    highest: dict[str, int] = field(default_factory=dict[str, int])

    def saw(self, stream: str, seq: int) -> None:
        self.highest[stream] = max(self.highest.get(stream, 0), seq)

    def wanted_by(self, stream: str, seq: int) -> list[str]:
        """Consumers that did not ack it and are to get it."""
        subject = self.stored[stream, seq][0]
        return [
            name
            for (of, name), filter in CONSUMERS.items()
            if of == stream and filter in ("", subject) and (stream, name, seq) not in self.acking
        ]


class Day:
    """A working day: every step tells `said` what was answered, and stops when nothing is."""

    def __init__(self, disk: Disk, said: Said) -> None:
        self.disk, self.said = disk, said
        self.open()

    def open(self) -> None:
        self.model = MemoryModel(self.disk, self.said.clock)
        self.wire = self.model.wire()
        self.model.run()

    def close(self) -> None:
        self.model.close()

    def ask(self, endpoint: str, body: Any = None) -> dict[str, Any]:
        msg = self.wire.api_raw(endpoint, body)
        if msg is None or "error" in msg.json():
            raise Dark(f"{endpoint}: {msg}")
        return msg.json()

    def create(self) -> None:
        for name in STREAMS:
            self.ask(f"STREAM.CREATE.{name}", stream_config(name))
            self.said.streams.add(name)
        for (stream, name), filter in CONSUMERS.items():
            config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 30 * SECOND}
            if filter:
                config["filter_subject"] = filter
            self.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
            self.said.consumers.add((stream, name))

    def publish(self, stream: str, number: int) -> None:
        """Three in one buffer, one of them with an id; then the same id again."""
        sent = [(f"{stream}.{last}", b"%d-%s-%d" % (number, last.encode(), len(last))) for last in "abc"]
        msg_id = f"id-{number}"
        requests = [(subject, None, data) for subject, data in sent]
        requests[1] = (sent[1][0], headers_of(Nats_Msg_Id=msg_id), sent[1][1])
        answered = True
        for at, msg in enumerate(self.wire.ask(requests)):
            if msg is None or "error" in msg.json():
                answered = False
                continue
            seq = msg.json()["seq"]
            assert (stream, seq) not in self.said.stored, "a sequence was given out twice"
            self.said.stored[stream, seq] = sent[at]
            self.said.saw(stream, seq)
            if at == 1:
                self.said.ids[stream, msg_id] = seq
        if not answered:
            raise Dark("a publish")
        self.check_duplicate(stream, msg_id)

    def check_duplicate(self, stream: str, msg_id: str) -> None:
        msg = self.wire.ask([(f"{stream}.z", headers_of(Nats_Msg_Id=msg_id), b"again")])[0]
        if msg is None or "error" in msg.json():
            raise Dark("a duplicate")
        wanted = {"stream": stream, "seq": self.said.ids[stream, msg_id], "duplicate": True}
        assert msg.json() == wanted, f"{msg_id}: {msg.data!r}, not {wanted}"

    def fetch(self, stream: str, name: str, batch: int) -> list[Got]:
        got, _ = self.wire.fetch(stream, name, batch)
        for each in got:
            self.said.saw(stream, each.seq)
            where = (stream, name, each.seq)
            assert where not in self.said.acked, f"{where} was acked and is delivered again"
        return got

    def acknowledge(self, stream: str, name: str, got: list[Got], *, double: bool, body: bytes = b"") -> None:
        self.said.acking.update((stream, name, each.seq) for each in got)
        if not double:
            self.wire.send(b"".join(line_of(each.msg.reply, "", None, body) for each in got))
            return
        answers = self.wire.ask([(each.msg.reply, None, body) for each in got])
        for each, msg in zip(got, answers, strict=True):
            if msg is not None:
                self.said.acked.add((stream, name, each.seq))
        if None in answers:
            raise Dark("a double ack")

    def delete(self, stream: str, seq: int) -> None:
        self.said.deleting.add((stream, seq))
        self.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
        self.said.deleted.add((stream, seq))


def working_day(disk: Disk, said: Said) -> None:
    day = Day(disk, said)
    day.create()
    for number in range(ROUNDS):
        for stream in STREAMS:
            day.publish(stream, number)
        for stream, name in CONSUMERS:
            got = day.fetch(stream, name, 4)
            day.acknowledge(stream, name, got[:1], double=True)
            day.acknowledge(stream, name, got[1:2], double=False)
            if number % 2:
                day.acknowledge(stream, name, got[2:3], double=True, body=b"+TERM")
        if number == 2:
            day.delete("L", 2)
        if number == 4:
            day.close()
            said.clock.now_ns += 3 * SECOND
            day.open()
        day.model.pass_time([SECOND // 2, 2 * SECOND, 31 * SECOND][number % 3])
    day.close()


def check(disk: Disk, said: Said, point: CrashPoint) -> None:
    said = replace(said, clock=copy(said.clock))  # one life, several power cuts
    day = Day(disk, said)
    account = day.model.account()
    assert not account.offline, account.offline
    assert said.streams <= account.streams.keys(), "a stream is lost"
    for stream, name in said.consumers:
        assert name in account.streams[stream].consumers, f"consumer {name} is lost"
    for stream in STREAMS.keys() - said.streams:  # nobody was told that it exists: it can be made now
        day.ask(f"STREAM.CREATE.{stream}", stream_config(stream))
    if said.streams != STREAMS.keys() or said.consumers != CONSUMERS.keys():
        return
    check_stored(day)
    for stream, msg_id in list(said.ids)[-3:]:
        day.check_duplicate(stream, msg_id)
    check_sequences(day)
    got = check_delivered(day)
    for msgs in got.values():
        answers = day.wire.ask([(each.msg.reply, None, b"") for each in msgs])
        assert None not in answers
    again = MemoryModel(disk.crash(0, "none"), said.clock)
    again.clock.now_ns += 3600 * SECOND
    wire = again.wire()
    for (stream, name), msgs in got.items():
        left = {each.seq for each in drain(wire, stream, name)}
        back = left & {each.seq for each in msgs}
        assert not back, f"{back} were acked after the first power cut and came back after the second"


def check_stored(day: Day) -> None:
    """Every acknowledged publish, unless everybody's ack may have got through."""
    said = day.said
    for (stream, seq), (subject, data) in said.stored.items():
        log = day.model.account().streams[stream].store.log
        found = log.load(seq)
        if found is not None:
            record = day.model.account().streams[stream].store.load_msg(seq)
            assert (record.subject, record.data) == (subject, data), f"{stream} {seq} is another message"
        gone = (stream, seq) in said.deleting or (stream != "L" and not said.wanted_by(stream, seq))
        assert found is not None or gone, f"{stream} {seq} was acknowledged and is lost"
        assert found is None or (stream, seq) not in said.deleted, f"{stream} {seq} was deleted and is back"
        acked = stream == "W" and (stream, "w", seq) in said.acked
        assert found is None or not acked, f"{stream} {seq} was acked and is still in the queue"


def check_sequences(day: Day) -> None:
    for stream in STREAMS:
        msg = day.wire.ask([(f"{stream}.a", None, b"after the crash")])[0]
        assert msg is not None
        seq = msg.json()["seq"]
        assert seq > day.said.highest.get(stream, 0), f"{stream}: sequence {seq} was given out before"


def check_delivered(day: Day) -> dict[tuple[str, str], list[Got]]:
    """Everything comes that was not acked, nothing that was acked, nothing twice."""
    said, found = day.said, dict[tuple[str, str], list[Got]]()
    day.model.pass_time(60 * SECOND)
    for stream, name in CONSUMERS:
        got = found[stream, name] = drain(day.wire, stream, name)
        seqs = [each.seq for each in got]
        assert len(seqs) == len(set(seqs)), f"{name}: something came twice in {seqs}"
        acked = {seq for of, by, seq in said.acked if (of, by) == (stream, name)}
        assert not acked & set(seqs), f"{name}: {acked & set(seqs)} were acked and came back"
        owed = {
            seq
            for of, seq in said.stored
            if of == stream and (of, seq) not in said.deleting and name in said.wanted_by(of, seq)
        }
        assert owed <= set(seqs), f"{stream} {name}: {sorted(owed - set(seqs))} did not come, {seqs} did"
    return found


def drain(wire: Wire, stream: str, name: str) -> list[Got]:
    return wire.fetch(stream, name, 500)[0]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Thousands of syncs fail, each of them with a line in the log."""
    loggers = [logging.getLogger(name) for name in ("headrace.engine", "headrace.streams")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    yield
    for logger, was in zip(loggers, before, strict=True):
        logger.disabled = was


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_power_cut_at_every_sync_point_of_a_server(crash_driver: CrashDriver) -> None:
    report = crash_driver.run(working_day, check, notes=Said)
    print(f"{report.sync_points} sync points, {report.crashes} power cuts")
    assert report.sync_points > 100
