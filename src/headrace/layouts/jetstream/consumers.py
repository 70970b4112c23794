"""The consumers of one stream: open, create, delete; every change journalled, o.dat as checkpoint.

    <stream>/obs/<name>/meta.inf meta.sum o.dat       what nats-server reads
    <stream>/headrace/consumers.<n>.journal           changes since each o.dat (consumer_log.py)
    <stream>/headrace/{new,gone}/<name>               a consumer being made or removed: one rename decides
    <stream>/headrace/damaged/                        files that could not be relied on, kept

A change is durable after `commit` (what a double ack waits for). `tick` writes o.dat for what changed, at
most once a second; `stop` does it for all and leaves no journal. Opening for writing first folds the
journal into the o.dat files, so that any server that takes the directory later sees everything.
"""

from __future__ import annotations

import threading
from typing import Any

from headrace.errors import AlreadyExists, BadInput, NotFound, ReadOnly, StoreClosed
from headrace.layouts.base import ConsumerState, ConsumerStore, Cursors, Damage, SequencePair
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.config import ConsumerConfig
from headrace.layouts.jetstream.config_json import encode_consumer_meta
from headrace.layouts.jetstream.consumer_log import (
    Kind,
    acked_payload,
    created_payload,
    delivered_payload,
    state_payload,
)
from headrace.layouts.jetstream.consumer_moves import (
    Rules,
    apply_acks,
    apply_delivered,
    apply_update,
    copy_state,
    replace_state,
)
from headrace.layouts.jetstream.consumer_recovery import (
    CONSUMERS_DIR,
    FoundConsumer,
    consumer_names,
    recover_consumers,
)
from headrace.layouts.jetstream.consumer_state import STATE_FILE, encode_state
from headrace.layouts.jetstream.meta import finish_meta, write_meta
from headrace.layouts.jetstream.names import check_name
from headrace.layouts.jetstream.paths import DAMAGED, SIDE, make_dirs
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.journal import SUFFIX, Journal

CHECKPOINT_EVERY_NS = 1_000_000_000
JOURNAL_BYTES_MAX = 4 << 20


class Consumers(Cursors):
    """All consumers of the stream in `stream_dir`. Thread-safe; give it to nobody else to write."""

    def __init__(
        self,
        disk: Disk,
        stream_dir: str,
        stream: str,
        *,
        writable: bool = True,
        secret: StoreKey | None = None,
    ) -> None:
        if writable and is_sealed(disk, stream_dir):
            raise ReadOnly(f"{stream_dir} is encrypted: encrypted stores are read, not written")
        self.stream, self._disk, self._dir, self._writable = stream, disk, stream_dir, writable
        self._lock = threading.RLock()
        self._closed = self._journal_open = False
        self._last_checkpoint_ns: int | None = None
        self._journal = Journal(disk, f"{stream_dir}/{SIDE}", "consumers")
        if writable:
            self._clear_leftovers()
        found = recover_consumers(disk, stream_dir, stream, self._journal, secret)
        self._damage, self._evidence = found.damage, found.max_stream_seq
        self._position = found.journal_position
        self._stores = {each.name: FileConsumerStore(self, each) for each in found.consumers}
        if writable:
            self._fold()

    # What is there

    def names(self) -> list[str]:
        """Every consumer, sorted."""
        with self._lock:
            return sorted(self._stores)

    def __len__(self) -> int:
        return len(self._stores)

    def state_of(self, name: str) -> ConsumerState:
        """A copy of a consumer's state."""
        return self.get(name).state()

    def get(self, name: str) -> FileConsumerStore:
        """An existing consumer."""
        with self._lock:
            if name not in self._stores:
                raise NotFound(f"stream {self.stream} has no consumer {name!r}")
            return self._stores[name]

    def damage(self) -> list[Damage]:
        """What was found unsound when the consumers were read."""
        return list(self._damage)

    def max_stream_seq(self) -> int:
        """The highest stream sequence that any consumer has seen: evidence for the next one."""
        with self._lock:
            return max([self._evidence, *(store.delivered.stream for store in self._stores.values())])

    def doubtful(self) -> list[str]:
        """Consumers whose o.dat was not sound: their floor must not be used to delete messages."""
        with self._lock:
            return sorted(name for name, store in self._stores.items() if store.doubtful)

    # Making and removing

    def open(self, name: str, config: ConsumerConfig, created_ns: int) -> FileConsumerStore:
        """The consumer of that name, created if it is not there; a changed configuration is saved."""
        with self._lock:
            if name not in self._stores:
                return self.create(name, config, created_ns)
            store = self._stores[name]
            if store.config != config:
                store.update_config(config)
            return store

    def create(
        self, name: str, config: ConsumerConfig, created_ns: int, *, start_after: int = 0
    ) -> FileConsumerStore:
        """A new consumer, complete on disk when this returns.

        It counts everything up to stream sequence `start_after` as delivered and settled. Its o.dat says
        so from the beginning: a real server that finds one does not look at the deliver policy again.
        """
        check_name("consumer", name)
        config.validate()
        with self._lock:
            self.prepare()
            target = self.directory_of(name)
            if name in self._stores or self._disk.entry(target) is not None:
                raise AlreadyExists(f"stream {self.stream} already has a consumer {name!r}")
            staged = f"{self._dir}/{SIDE}/new/{name}"
            make_dirs(self._disk, staged)
            make_dirs(self._disk, f"{self._dir}/{CONSUMERS_DIR}")
            position = self.note(Kind.CREATED, created_payload(name))
            start = SequencePair(0, start_after)
            found = FoundConsumer(
                name, config, created_ns, ConsumerState(start, start), position, current=True
            )
            key_text = f"{self.stream}/{name}"
            self._disk.replace_file(f"{staged}/{STATE_FILE}", encode_state(found.state, key_text, position))
            write_meta(self._disk, staged, key_text, encode_consumer_meta(name, config, created_ns))
            self._disk.rename(staged, target)
            self._disk.sync_dir(f"{self._dir}/{CONSUMERS_DIR}")
            store = self._stores[name] = FileConsumerStore(self, found)
            return store

    def delete(self, name: str) -> None:
        """Remove a consumer with its files; it does not come back after a crash."""
        with self._lock:
            self._check_writable()
            self.get(name).close()
            gone = f"{self._dir}/{SIDE}/gone"
            make_dirs(self._disk, gone)
            if self._disk.entry(f"{gone}/{name}") is not None:
                self._disk.remove_dir_all(f"{gone}/{name}")
            self._disk.rename(self.directory_of(name), f"{gone}/{name}")
            self._disk.sync_dir(f"{self._dir}/{CONSUMERS_DIR}")
            del self._stores[name]
            self._disk.remove_dir_all(f"{gone}/{name}")

    # Durability

    def commit(self) -> None:
        """Return once every change so far is on disk. Threads that wait share one sync."""
        if self._journal_open:
            self._journal.commit()

    def tick(self, now_ns: int) -> bool:
        """Write o.dat for what changed, if the last time is a second ago. True if it did."""
        with self._lock:
            last = self._last_checkpoint_ns
            due = last is None or not 0 <= now_ns - last < CHECKPOINT_EVERY_NS
            if self._closed or not due or not any(s.dirty for s in self._stores.values()):
                return False
            self._last_checkpoint_ns = now_ns
            self.checkpoint()
            return True

    def checkpoint(self) -> None:
        """Write o.dat for what changed; begin a new journal when this one has grown large."""
        with self._lock:
            self._check_writable()
            if self._journal_open and self._journal.size > JOURNAL_BYTES_MAX:
                self._journal.checkpoint(self._save_dirty)
            else:
                self._save_dirty()

    def stop(self) -> None:
        """Clean stop: every o.dat written, no journal left."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._writable:
                self.commit()
                self._save_dirty()
                self._journal.close(remove=True)

    # For FileConsumerStore

    @property
    def lock(self) -> threading.RLock:
        return self._lock

    def directory_of(self, name: str) -> str:
        return f"{self._dir}/{CONSUMERS_DIR}/{name}"

    def has_state_file(self, name: str) -> bool:
        """Whether there is an o.dat: without one a server applies the deliver policy when it starts."""
        return self._disk.entry(f"{self.directory_of(name)}/{STATE_FILE}") is not None

    def prepare(self) -> None:
        """Raise whatever stands in the way of a change, before any state is touched.

        The journal is begun with the first change: a stream without consumers gets none.
        """
        self._check_writable()
        if not self._journal_open:
            self._journal.start(after_position=self._position)
            self._journal_open = True
        self._journal.check()

    def note(self, kind: Kind, payload: bytes) -> int:
        """Append to the journal."""
        self._position = self._journal.append(kind, payload)
        return self._position

    def save_config(self, store: FileConsumerStore) -> None:
        self._check_writable()
        data = encode_consumer_meta(store.name, store.config, store.created_ns)
        write_meta(self._disk, self.directory_of(store.name), f"{self.stream}/{store.name}", data)

    def save_state(self, store: FileConsumerStore) -> None:
        """Write one o.dat."""
        data = encode_state(store.borrowed_state, f"{self.stream}/{store.name}", self._position)
        self._disk.replace_file(f"{self.directory_of(store.name)}/{STATE_FILE}", data)
        store.dirty = False

    def _save_dirty(self) -> None:
        for store in self._stores.values():
            if store.dirty:
                self.save_state(store)

    def _check_writable(self) -> None:
        if self._closed:
            raise StoreClosed(f"the consumers of stream {self.stream} are closed")
        if not self._writable:
            raise ReadOnly(f"stream {self.stream} was opened for reading")

    # Opening

    def _clear_leftovers(self) -> None:
        """Halves of an interrupted create or delete (never answered), or of a change of meta.inf."""
        for half in ("new", "gone"):
            if self._disk.entry(f"{self._dir}/{SIDE}/{half}") is not None:
                self._disk.remove_dir_all(f"{self._dir}/{SIDE}/{half}")
        for name in consumer_names(self._disk, self._dir):
            finish_meta(self._disk, self.directory_of(name), f"{self.stream}/{name}")

    def _fold(self) -> None:
        """Everything the journal told into the o.dat files; then the journal is not needed any more."""
        for damage in self._damage:
            if damage.file.endswith((STATE_FILE, SUFFIX)) and damage.kind not in ("repaired", "index"):
                self._keep(damage.file)
        self._save_dirty()
        self._journal.close(remove=True)

    def _keep(self, file: str) -> None:
        """Set a copy of a file aside before it is written anew or removed."""
        kept = f"{self._dir}/{DAMAGED}"
        make_dirs(self._disk, kept)
        if self._disk.entry(file) is not None:
            name = file.removeprefix(f"{self._dir}/").replace("/", "-")
            taken = {each for each, _, _ in self._disk.list(kept)}
            free = next(n for n in range(len(taken) + 1) if f"{name}.{n}" not in taken)
            self._disk.replace_file(f"{kept}/{name}.{free}", self._disk.read(file))


class FileConsumerStore(ConsumerStore):
    """One consumer's durable state. Made by `Consumers`."""

    def __init__(self, owner: Consumers, found: FoundConsumer) -> None:
        self.name, self.config, self.created_ns = found.name, found.config, found.created_ns
        self.doubtful, self.dirty = found.doubtful, not found.current
        self._owner, self._state, self._rules = owner, found.state, Rules.of(found.config)
        self._closed = False

    @property
    def delivered(self) -> SequencePair:
        return self._state.delivered

    @property
    def borrowed_state(self) -> ConsumerState:
        """The state itself, not a copy: read it under the owner's lock."""
        return self._state

    def state(self) -> ConsumerState:
        """A copy of the present state."""
        with self._owner.lock:
            return copy_state(self._state)

    def update_delivered(self, consumer_seq: int, stream_seq: int, count: int, time_ns: int) -> None:
        """A delivery; `count` is 1 for the first one. At or below the floor it changes nothing."""
        with self._owner.lock:
            self._check()
            if apply_delivered(self._state, self._rules, consumer_seq, stream_seq, count, time_ns):
                payload = delivered_payload(self.name, consumer_seq, stream_seq, count, time_ns)
                self._note(Kind.DELIVERED, payload)

    def update_acks(self, consumer_seq: int, stream_seq: int) -> None:
        """An ack. At or below the floor it changes nothing; MessageNotFound if not pending."""
        with self._owner.lock:
            self._check()
            if apply_acks(self._state, self._rules, consumer_seq, stream_seq):
                self._note(Kind.ACKED, acked_payload(self.name, consumer_seq, stream_seq))

    def update(self, state: ConsumerState) -> None:
        """Replace the whole state; BadInput when it contradicts itself or goes backwards."""
        with self._owner.lock:
            self._check()
            apply_update(self._state, state)
            self._note(Kind.STATE, state_payload(self.name, self._state))

    def reset(self, stream_seq: int) -> None:
        """Begin anew behind `stream_seq`: nothing delivered, nothing pending."""
        with self._owner.lock:
            self._check()
            start = SequencePair(0, stream_seq)
            replace_state(self._state, ConsumerState(start, start))
            self._note(Kind.STATE, state_payload(self.name, self._state))

    def update_config(self, config: Any) -> None:
        """Save another configuration; it is on disk when this returns."""
        if not isinstance(config, ConsumerConfig):
            raise BadInput(f"a ConsumerConfig is needed, not {type(config).__name__}")
        config.validate()
        with self._owner.lock:
            self._check()
            before = self.config
            self.config = config
            try:
                self._owner.save_config(self)
            except BaseException:
                self.config = before
                raise
            self._rules = Rules.of(config)

    def commit(self) -> None:
        """Return once everything said so far is on disk."""
        self._owner.commit()

    def stop(self) -> None:
        """Write o.dat and take no more changes."""
        with self._owner.lock:
            if not self._closed and self.dirty:
                self._owner.save_state(self)
            self._closed = True

    def delete(self) -> None:
        """Remove the consumer with its files."""
        self._owner.delete(self.name)

    def close(self) -> None:
        """Take no more changes."""
        self._closed = True

    def _note(self, kind: Kind, payload: bytes) -> None:
        self.dirty = True
        self._owner.note(kind, payload)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"consumer {self.name!r} is closed")
        self._owner.prepare()
