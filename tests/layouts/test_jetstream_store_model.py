"""The store against a plain model: a dict from sequence to message, and the rules of `StreamStore` in Python.

Blocks are tiny, so every run crosses many of them. Clean stops, stops whose stamp is lost (a scan follows) and
reopening without any index are rules like the others. Hypothesis prints what replays a failure.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from headrace._core import Batch, Disk, subject_matches
from headrace.config.model import StreamConfig
from headrace.errors import BadInput, EndOfStream, MessageNotFound, StoreFull
from headrace.layouts.base import LogState, SimpleState
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
ROOT = "/store"
MSGS = f"{ROOT}/jetstream/$G/streams/S/msgs"
SIDE = f"{ROOT}/jetstream/$G/streams/S/headrace"

subjects = st.sampled_from(["a", "a.b", "a.c", "a.b.c", "b.b", "b.c.d"])
filters = st.sampled_from(["", ">", "a", "a.b", "a.*", "*.b", "a.>", "*.*", "*.*.*", "b.>", "none", "none.*"])
payloads = st.binary(max_size=60)
messages = st.tuples(subjects, st.sampled_from([None, HEADER]), payloads)
near = st.integers(min_value=0, max_value=80)


class Message:
    """One message of the model."""

    def __init__(self, subject: str, headers: bytes | None, data: bytes, time_ns: int) -> None:
        self.subject, self.headers, self.data, self.time_ns = subject, headers, data, time_ns
        self.size = 30 + len(subject) + len(data) + (4 + len(headers) if headers else 0)


class Model:
    """What the documented rules say that a store holds."""

    def __init__(self) -> None:
        self.live: dict[int, Message] = {}
        self.last = 0
        self.last_time = 0

    @property
    def first(self) -> int:
        return min(self.live, default=self.last + 1)

    @property
    def bytes(self) -> int:
        return sum(message.size for message in self.live.values())

    def matching(self, filter: str, start: int = 0, below: int | None = None) -> list[int]:
        return [
            seq
            for seq, message in sorted(self.live.items())
            if seq >= start
            and (below is None or seq < below)
            and (not filter or subject_matches(filter, message.subject))
        ]

    def deleted(self) -> tuple[int, ...]:
        if not self.live:
            return ()
        return tuple(seq for seq in range(self.first, self.last + 1) if seq not in self.live)

    def take_out(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.live[seq]
        return len(seqs)

    def trim_subjects(self, config: StreamConfig) -> int:
        """The limit per subject; returns how many went."""
        before = len(self.live)
        if config.max_msgs_per_subject > 0:
            for subject in {message.subject for message in self.live.values()}:
                self.take_out(self.matching(subject)[: -config.max_msgs_per_subject])
        return before - len(self.live)

    def trim_front(self, config: StreamConfig) -> int:
        """The limits on the whole, unless they refuse; returns how many went."""
        before = len(self.live)
        while self.live and config.discard == "old" and self.over(config):
            del self.live[self.first]
        return before - len(self.live)

    def over(self, config: StreamConfig) -> bool:
        return 0 < config.max_msgs < len(self.live) or 0 < config.max_bytes < self.bytes

    def expire(self, config: StreamConfig, now_ns: int) -> int:
        """Ages; returns how many went. Times grow with sequences, so the old ones are in front."""
        old = [seq for seq, message in self.live.items() if message.time_ns < now_ns - config.max_age]
        return self.take_out(old) if config.max_age else 0


class StoreMachine(RuleBasedStateMachine):
    """Every rule does the same to the store and to the model; `agree` compares them after each."""

    @initialize(
        block_bytes=st.sampled_from([200, 400, 1500]),
        compression=st.sampled_from(["none", "s2"]),
        durability=st.sampled_from(["sync", "interval"]),
    )
    def begin(self, block_bytes: int, compression: str, durability: str) -> None:
        self.disk = Disk.memory()
        self.block_bytes, self.durability = block_bytes, durability
        self.now = T0
        self.model = Model()
        self.ever: list[bytes] = []
        self.time_unsure = False
        """The last sequence has no message, and its time went with a file."""
        self.evicted = False
        """Limits took messages out without tombstones: without index.db some would be back."""
        self.volume = self.open_volume(create=True)
        self.config = StreamConfig(name="S", subjects=("a", "a.>", "b.>"), compression=compression).filled()  # type: ignore[arg-type]
        self.store: FileStreamStore = self.volume.create("S", config=self.config)
        self.listen()

    def teardown(self) -> None:
        if hasattr(self, "volume"):
            self.volume.close()

    def open_volume(self, create: bool = False) -> JetStreamVolume:
        options: dict[str, Any] = {"disk": self.disk, "clock": lambda: self.now, "maintenance": False}
        return JetStreamVolume(
            ROOT,
            mode="rw",
            create=create,
            block_bytes=self.block_bytes,
            durability=self.durability,  # type: ignore[arg-type]
            cache_bytes=2000,
            **options,
        )

    def listen(self) -> None:
        state = self.store.fast_state()
        self.counted_msgs, self.counted_bytes = state.messages, state.bytes

        def hear(msgs: int, size: int, seq: int, subject: str) -> None:
            self.counted_msgs += msgs
            self.counted_bytes += size

        self.store.register_storage_updates(hear)

    # Writing

    def admit(self, batch: list[tuple[str, bytes | None, bytes]]) -> str | None:
        """The refusal that the model expects, if any: what a server says that takes them one by one."""
        if self.config.discard != "new":
            return None
        config, per_subject = self.config, self.config.max_msgs_per_subject
        trial = Model()
        trial.live, trial.last = dict(self.model.live), self.model.last
        for each in batch:
            message, known = Message(*each, 0), trial.matching(each[0])
            replaces = trial.live[known[0]] if 0 < per_subject <= len(known) else None
            if replaces is None and 0 < config.max_msgs <= len(trial.live):
                return "maximum messages exceeded"
            too_large = 0 < config.max_bytes < trial.bytes + message.size
            if too_large and (replaces is None or message.size > replaces.size):
                return "maximum bytes exceeded"
            trial.last += 1
            trial.live[trial.last] = message
            trial.trim_subjects(config)
        return None

    def stored(self, batch: list[tuple[str, bytes | None, bytes]], seqs: list[int], time_ns: int) -> None:
        for (subject, headers, data), seq in zip(batch, seqs, strict=True):
            self.ever.append(data)
            self.model.live[seq] = Message(subject, headers, data, time_ns)
            self.model.last, self.model.last_time = seq, time_ns
        self.time_unsure = False
        self.evicted |= self.model.trim_subjects(self.config) + self.model.trim_front(self.config) > 0

    @rule(message=messages)
    def store_msg(self, message: tuple[str, bytes | None, bytes]) -> None:
        expected = self.model.last + 1
        refusal = self.admit([message])
        if refusal:
            with pytest.raises(StoreFull, match=refusal):
                self.store.store_msg(*message)
            return
        time_ns = max(self.now, self.model.last_time)
        assert self.store.store_msg(*message) == (expected, time_ns)
        self.stored([message], [expected], time_ns)

    @rule(batch=st.lists(messages, min_size=1, max_size=25))
    def append(self, batch: list[tuple[str, bytes | None, bytes]]) -> None:
        if self.admit(batch):
            with pytest.raises(StoreFull):
                self.store.append(self.build(batch))
            return
        first = self.model.last + 1
        time_ns = max(self.now, self.model.last_time)
        ticket = self.store.append(self.build(batch))
        assert (ticket.first, ticket.next) == (first, first + len(batch))
        self.stored(batch, list(range(first, ticket.next)), time_ns)

    @staticmethod
    def build(batch: list[tuple[str, bytes | None, bytes]]) -> Batch:
        return Batch.build([m[0] for m in batch], [m[2] for m in batch], [m[1] for m in batch])

    @rule(message=messages, hole=st.sampled_from([0, 0, 1, 3, 70, 20_000]), later=st.integers(0, 3))
    def store_raw_msg(self, message: tuple[str, bytes | None, bytes], hole: int, later: int) -> None:
        if hole > 100 and self.model.live and self.model.last > 100_000:
            return  # one or two wide holes are enough
        seq, time_ns = self.model.last + 1 + hole, max(self.now, self.model.last_time) + later
        if self.admit([message]):
            return
        self.store.store_raw_msg(*message, seq, time_ns)
        self.stored([message], [seq], time_ns)

    @rule(message=messages, back=st.integers(0, 5))
    def store_raw_msg_refuses_used_sequences(
        self, message: tuple[str, bytes | None, bytes], back: int
    ) -> None:
        if self.model.last and not self.admit([message]):
            with pytest.raises(BadInput):
                self.store.store_raw_msg(*message, max(self.model.last - back, 0), self.now)

    @rule(count=st.sampled_from([None, 1, 2, 40]))
    def skip_msg(self, count: int | None) -> None:
        target = self.model.last + (count or 1)
        assert self.store.skip_msg(None if count is None else target) == target
        self.model.last, self.model.last_time = target, max(self.now, self.model.last_time)
        self.time_unsure = False

    # Removing

    @rule(data=st.data())
    def remove_msg(self, data: st.DataObject) -> None:
        seq = self.some_seq(data)
        assert self.store.remove_msg(seq) == (seq in self.model.live)
        self.model.live.pop(seq, None)

    @rule(data=st.data(), count=st.integers(1, 6))
    def remove_many(self, data: st.DataObject, count: int) -> None:
        seqs = [self.some_seq(data) for _ in range(count)]
        self.store.remove(seqs)
        for seq in seqs:
            self.model.live.pop(seq, None)

    @rule(data=st.data())
    def erase_msg(self, data: st.DataObject) -> None:
        seq = self.some_seq(data)
        if seq in self.model.live:
            secret = self.model.live.pop(seq)
            assert self.store.erase_msg(seq)
            self.store.commit()
            if len(secret.data) >= 12 and sum(secret.data in data for data in self.ever) == 1:
                for name, _, _ in self.disk.list(MSGS):
                    assert secret.data not in self.disk.read(f"{MSGS}/{name}")
        else:
            with pytest.raises(EndOfStream if seq > self.model.last else MessageNotFound):
                self.store.erase_msg(seq)

    def some_seq(self, data: st.DataObject) -> int:
        known = sorted(self.model.live)
        if known and data.draw(st.integers(0, 4)):
            return data.draw(st.sampled_from(known))
        return data.draw(st.integers(max(self.model.first - 2, 0), self.model.last + 2))

    @rule()
    def purge(self) -> None:
        assert self.store.purge() == len(self.model.live)
        self.model.live.clear()
        self.evicted = False

    @rule(filter=filters, data=st.data())
    def purge_ex(self, filter: str, data: st.DataObject) -> None:
        seq, keep = 0, 0
        match data.draw(st.sampled_from(["all", "seq", "keep"])):
            case "seq":
                seq = data.draw(st.integers(2, self.model.last + 5))
            case "keep":
                keep = data.draw(st.integers(1, 6))
        doomed = self.model.matching(filter, 0, seq or None)
        if keep:
            doomed = doomed[:-keep]
        assert self.store.purge_ex(filter, seq, keep) == len(doomed)
        self.model.take_out(doomed)
        if filter in ("", ">") and seq > self.model.last:
            self.model.last = seq - 1

    @rule()
    def purge_ex_takes_one_bound(self) -> None:
        with pytest.raises(BadInput):
            self.store.purge_ex("a", 3, 2)

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(1, self.model.last + 5))
        doomed = self.model.matching("", 0, seq)
        assert self.store.compact(seq) == len(doomed)
        self.model.take_out(doomed)
        self.model.last = max(self.model.last, seq - 1)

    @precondition(lambda self: self.model.last > 0)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(max(1, self.model.last - 30), self.model.last))
        self.store.truncate(seq)
        self.model.take_out(self.model.matching("", seq + 1))
        self.model.last = seq
        self.time_unsure = seq not in self.model.live
        if not self.time_unsure:
            self.model.last_time = self.model.live[seq].time_ns

    @rule()
    def truncate_beyond_the_end(self) -> None:
        with pytest.raises(BadInput):
            self.store.truncate(self.model.last + 1)

    # Limits and time

    @rule(
        max_msgs=st.sampled_from([-1, -1, 5, 20]),
        max_bytes=st.sampled_from([-1, -1, 60, 600]),
        per_subject=st.sampled_from([-1, -1, 1, 3]),
        discard=st.sampled_from(["old", "old", "new"]),
        max_age=st.sampled_from([0, 0, 5]),
    )
    def update_config(self, **limits: Any) -> None:
        self.config = structs.replace(
            self.config,
            max_msgs=limits["max_msgs"],
            max_bytes=limits["max_bytes"],
            max_msgs_per_subject=limits["per_subject"],
            discard=limits["discard"],
            max_age=limits["max_age"] * SECOND,
            duplicate_window=SECOND,
        )
        self.store.update_config(self.config)
        self.evicted |= self.model.trim_front(self.config) + self.model.trim_subjects(self.config) > 0
        self.evicted |= self.model.expire(self.config, self.now) > 0

    @rule(seconds=st.sampled_from([0, 1, 4, 200]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.store.tick(self.now)
        self.evicted |= self.model.expire(self.config, self.now) > 0

    # Stopping and opening again

    def reopen(self, *without: str) -> None:
        self.volume.close()
        for path in without:
            if self.disk.entry(path) is not None:
                self.disk.remove_file(path)
        self.volume = self.open_volume()
        self.store = self.volume.open("S")
        self.evicted |= self.model.expire(self.config, self.now) > 0
        assert self.store.damage() == []
        self.listen()

    @rule()
    def stop_and_open(self) -> None:
        self.reopen()

    @rule()
    def stop_and_open_by_scan(self) -> None:
        self.reopen(f"{SIDE}/clean.json")

    @precondition(lambda self: not self.evicted)
    @rule(guards=st.booleans())
    def stop_and_open_without_indexes(self, guards: bool) -> None:
        also = (
            [f"{SIDE}/{name}" for name, _, _ in self.disk.list(SIDE) if name.endswith("guard")]
            if guards
            else []
        )
        self.reopen(f"{SIDE}/clean.json", f"{MSGS}/index.db", *also)
        self.time_unsure |= self.model.last not in self.model.live

    @rule()
    def read_beside_the_writer(self) -> None:
        self.store.commit()
        beside = JetStreamVolume(ROOT, disk=self.disk, cache_bytes=2000, clock=lambda: self.now)
        seen = {record.seq: record.data for record in beside.open("S")}
        if not self.evicted:
            assert seen == {seq: message.data for seq, message in self.model.live.items()}
        beside.close()

    @rule(form=st.sampled_from(["archive", "tar"]))
    def snapshot_and_restore(self, form: str) -> None:
        result = self.store.snapshot(60, True, True, form)
        other = JetStreamVolume(
            "/other", mode="rw", create=True, disk=Disk.memory(), clock=lambda: self.now, maintenance=False
        )
        copy = other.restore("S", result.chunks, self.config)
        try:
            expected = self.store.state()
            assert result.state == expected
            assert replace_time(copy.state(), self.time_unsure) == replace_time(expected, self.time_unsure)
            assert list(copy) == list(self.store)
        finally:
            other.close()

    # Comparing

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "store"):
            return
        model, state = self.model, self.store.state()
        assert state.messages == len(model.live)
        assert state.bytes == model.bytes
        assert state.first_seq == (model.first if model.last else 0)
        assert state.last_seq == model.last
        if self.time_unsure:
            model.last_time = state.last_time_ns or 0
        assert (state.last_time_ns or 0) == model.last_time
        first = model.live.get(model.first)
        assert state.first_time_ns == (first.time_ns if first else None)
        assert state.num_subjects == len({message.subject for message in model.live.values()})
        assert state.deleted == model.deleted()
        assert state.num_deleted == len(state.deleted)
        assert (self.counted_msgs, self.counted_bytes) == (state.messages, state.bytes)
        total, reported = self.store.utilization()
        assert reported == state.bytes
        if self.config.compression == "none":
            assert total >= reported

    @invariant()
    def every_message_is_there(self) -> None:
        if not hasattr(self, "store"):
            return
        seen = {r.seq: (r.subject, r.headers, r.data, r.time_ns) for r in self.store}
        assert seen == {s: (m.subject, m.headers, m.data, m.time_ns) for s, m in self.model.live.items()}

    @rule(filter=filters, data=st.data())
    def by_subject(self, filter: str, data: st.DataObject) -> None:
        model = self.model
        start = data.draw(st.one_of(st.just(0), st.integers(max(model.first - 3, 0), model.last + 3)))
        found = model.matching(filter, start)
        ends = SimpleState(len(found), found[0], found[-1]) if found else SimpleState()
        assert self.store.filtered_state(start, filter) == ends
        per_subject: dict[str, SimpleState] = {}
        ordered = sorted(model.matching(filter), key=lambda seq: (model.live[seq].subject, seq))
        for subject, group in itertools.groupby(ordered, key=lambda seq: model.live[seq].subject):
            seqs = list(group)
            per_subject[subject] = SimpleState(len(seqs), seqs[0], seqs[-1])
        assert self.store.subjects_state(filter) == per_subject
        if filter:
            self.check_next_and_last(filter, start, found)

    def check_next_and_last(self, filter: str, start: int, found: list[int]) -> None:
        if found:
            assert self.store.load_next_msg(filter, start).seq == found[0]
        else:
            with pytest.raises(EndOfStream):
                self.store.load_next_msg(filter, start)
        everywhere = self.model.matching(filter)
        if everywhere:
            last = self.store.load_last_msg(filter)
            assert (last.seq, last.data) == (everywhere[-1], self.model.live[everywhere[-1]].data)
        else:
            with pytest.raises(MessageNotFound):
                self.store.load_last_msg(filter)

    @rule(data=st.data())
    def by_sequence(self, data: st.DataObject) -> None:
        seqs = [self.some_seq(data) for _ in range(5)]
        there = [seq for seq in seqs if seq in self.model.live]
        assert self.store.load_msgs(seqs).positions() == there
        for seq in seqs:
            if seq in self.model.live:
                assert self.store.load_msg(seq).data == self.model.live[seq].data
            else:
                with pytest.raises(EndOfStream if seq > self.model.last else MessageNotFound):
                    self.store.load_msg(seq)

    @rule(offset=st.integers(-2, 260), exact=st.booleans())
    def by_time(self, offset: int, exact: bool) -> None:
        wanted = T0 + offset * SECOND
        times = sorted({message.time_ns for message in self.model.live.values()})
        if exact and times:
            wanted = times[offset % len(times)]
        expected = min(
            (seq for seq, message in self.model.live.items() if message.time_ns >= wanted),
            default=self.model.last + 1,
        )
        assert self.store.seq_from_time(wanted) == expected


def replace_time(state: LogState, unsure: bool) -> LogState:
    return replace(state, last_time_ns=None) if unsure else state


def test_the_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=250,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
