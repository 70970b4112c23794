"""A witness beside a store: what was acknowledged, what was under way when it stopped, and what must hold then.

confirmed   the store as it was when the last step was acknowledged: all of it must be found again
step        what was under way: which messages it may take, which it may add, how far the last may fall
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

import headrace
from headrace._core import Batch, Disk
from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.layouts.base import ConsumerState, Pending
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.testing import FakeClock

PATH, STREAM = "/store", "S"
STREAM_DIR = f"{PATH}/jetstream/$G/streams/{STREAM}"
BLOCK_BYTES = 1500

Content = tuple[str, bytes | None, bytes | None]
"""Subject, headers, data."""


def content_of(record: headrace.Record) -> Content:
    return record.subject, record.headers, record.data


@dataclass(frozen=True)
class Snapshot:
    """Everything that a store shows."""

    messages: dict[int, tuple[int, Content]] = field(default_factory=dict)
    last: int = 0
    config: StreamConfig | None = None
    consumers: dict[str, ConsumerState] = field(default_factory=dict)

    @classmethod
    def of(cls, store: FileStreamStore) -> Snapshot:
        messages = {record.seq: (record.time_ns, content_of(record)) for record in store}
        consumers = {name: in_seconds(store.consumers.state_of(name)) for name in store.consumers.names()}
        return cls(messages, store.state().last_seq, store.config, consumers)


def in_seconds(state: ConsumerState) -> ConsumerState:
    """o.dat has whole seconds, the journal nanoseconds: both are right."""
    for seq, pending in state.pending.items():
        state.pending[seq] = Pending(pending.sequence, pending.time_ns // 1_000_000_000)
    return state


@dataclass
class Step:
    """What may have happened of a step that was not acknowledged."""

    name: str
    may_remove: Callable[[int], bool] = lambda _seq: False
    adds: dict[int, Content] = field(default_factory=dict)
    lowers_last_to: int | None = None
    config: StreamConfig | None = None
    consumers: list[dict[str, ConsumerState]] = field(default_factory=list)


class Witness:
    """Writes to a store and remembers what it was promised."""

    def __init__(self) -> None:
        self.confirmed = Snapshot()
        self.created = False
        self.clock = FakeClock()
        self.store: FileStreamStore | None = None
        self.step: Step | None = None
        self.done: list[str] = []

    @contextmanager
    def doing(self, store: FileStreamStore, step: Step) -> Generator[None]:
        """Around one step; leaving it means that the step was acknowledged."""
        self.step = step
        yield
        self.confirmed, self.step = Snapshot.of(store), None
        self.done.append(step.name)

    def note_addition(self, seq: int, content: Content) -> None:
        """Something more was appended while (or after) the last step was under way."""
        self.step = self.step or Step("nothing")
        self.step.adds[seq] = content

    # Steps

    def create(self, volume: JetStreamVolume, **options: object) -> FileStreamStore:
        self.step = Step("create")
        store = self.store = volume.create(STREAM, **options)
        self.created, self.confirmed, self.step = True, Snapshot.of(store), None
        return store

    def append(self, store: FileStreamStore, messages: Iterable[Content], *, evicts: bool = False) -> None:
        messages = list(messages)
        first = store.state().last_seq + 1
        step = Step("append", adds={first + at: message for at, message in enumerate(messages)})
        if evicts:
            step.may_remove = lambda _seq: True
        with self.doing(store, step):
            ticket = store.append(as_batch(messages))
            store.commit(ticket.mark)
            assert (ticket.first, ticket.next) == (first, first + len(messages))

    def remove(self, store: FileStreamStore, seqs: list[int]) -> None:
        with self.doing(store, Step("remove", lambda seq: seq in seqs)):
            store.commit(store.remove(seqs).mark)
        assert not set(seqs) & self.confirmed.messages.keys()

    def erase(self, store: FileStreamStore, seq: int) -> None:
        with self.doing(store, Step("erase", lambda each: each == seq)):
            assert store.erase_msg(seq)
        assert seq not in self.confirmed.messages

    def purge(self, store: FileStreamStore) -> None:
        with self.doing(store, Step("purge", lambda _seq: True)):
            store.purge()
        assert not self.confirmed.messages

    def purge_subject(self, store: FileStreamStore, subject: str, keep: int = 0) -> None:
        doomed = [seq for seq, (_, what) in self.confirmed.messages.items() if what[0] == subject]
        doomed = doomed[: len(doomed) - keep]
        with self.doing(store, Step("purge_ex", lambda seq: seq in doomed)):
            assert store.purge_ex(subject, 0, keep) == len(doomed)
        assert not set(doomed) & self.confirmed.messages.keys()

    def compact(self, store: FileStreamStore, seq: int) -> None:
        with self.doing(store, Step("compact", lambda each: each < seq)):
            store.compact(seq)
        assert min(self.confirmed.messages, default=seq) >= seq

    def truncate(self, store: FileStreamStore, seq: int) -> None:
        with self.doing(store, Step("truncate", lambda each: each > seq, lowers_last_to=seq)):
            store.truncate(seq)
        assert self.confirmed.last == seq

    def update_config(self, store: FileStreamStore, **changes: object) -> None:
        config = msgspec.structs.replace(store.config, **changes)
        with self.doing(store, Step("update_config", lambda _seq: True, config=config)):
            store.update_config(config)

    def add_consumer(self, store: FileStreamStore, name: str) -> None:
        config = ConsumerConfig(durable_name=name, ack_policy="explicit").filled()
        with self.doing(store, Step("add_consumer", consumers=[{name: ConsumerState()}])):
            store.consumer_store(name, config)

    def consume(self, store: FileStreamStore, name: str, seqs: list[int], acks: list[int]) -> None:
        """Deliver and ack, all in one commit: after a crash any beginning of it may be found."""
        consumer = store.consumers.get(name)
        step = Step("consume")
        at = consumer.state().delivered.consumer
        own = {seq: at + 1 + index for index, seq in enumerate(seqs)}
        with self.doing(store, step):
            for seq in seqs:
                consumer.update_delivered(own[seq], seq, 1, store.clock())
                step.consumers.append({name: in_seconds(consumer.state())})
            for seq in acks:
                consumer.update_acks(consumer.state().pending[seq].sequence, seq)
                step.consumers.append({name: in_seconds(consumer.state())})
            consumer.commit()


def as_batch(messages: list[Content]) -> Batch:
    subjects, headers, data = zip(*messages, strict=True)
    return headrace.batch(list(subjects), list(data), list(headers) if any(headers) else None)


def open_volume(disk: Disk, **options: object) -> JetStreamVolume:
    options = {"mode": "rw", "maintenance": False, "clock": FakeClock(), "block_bytes": BLOCK_BYTES} | options
    return JetStreamVolume(PATH, disk=disk, **options)  # type: ignore[arg-type]


def check_found(witness: Witness, found: Snapshot) -> None:
    """What a store shows after a stop against what was promised before."""
    before, step = witness.confirmed, witness.step or Step("nothing")
    for seq, message in before.messages.items():
        if seq in found.messages:
            assert found.messages[seq] == message, f"message {seq} changed"
        else:
            assert step.may_remove(seq), f"acknowledged message {seq} is lost (during {step.name})"
    for seq in found.messages.keys() - before.messages.keys():
        assert seq in step.adds, f"message {seq} came back or out of nowhere (during {step.name})"
        assert found.messages[seq][1] == step.adds[seq], f"message {seq} is not what was appended"
    lowest = before.last if step.lowers_last_to is None else step.lowers_last_to
    assert found.last >= lowest, f"the last sequence fell from {before.last} to {found.last}"
    configs = [before.config] if step.config is None else [before.config, step.config]
    assert found.config in configs, "the configuration is neither the old nor the new one"
    for name, state in found.consumers.items():
        allowed = [states[name] for states in (before.consumers, *step.consumers) if name in states]
        assert state in allowed, f"consumer {name} is at {state}, none of {len(allowed)} known states"
    assert before.consumers.keys() <= found.consumers.keys(), "a consumer is lost"


def delete_shortcuts(disk: Disk) -> None:
    """Every index and sidecar; the blocks, the metadata and o.dat stay."""
    for path in (f"{STREAM_DIR}/msgs/index.db", f"{STREAM_DIR}/headrace"):
        entry = disk.entry(path)
        if entry is not None:
            (disk.remove_dir_all if entry.is_dir else disk.remove_file)(path)
