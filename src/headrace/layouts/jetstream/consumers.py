"""The consumers of one stream: open, create, delete; every change journalled, o.dat as checkpoint.

    <stream>/obs/<name>/meta.inf meta.sum o.dat       what nats-server reads
    <stream>/headrace/consumers.<n>.journal           changes since each o.dat (consumer_log.py)
    <stream>/headrace/{new,gone}/<name>               a consumer being made or removed: one rename decides
    <stream>/headrace/damaged/                        files that could not be relied on, kept

A change is durable after `commit` (what a double ack waits for). A consumer with a ledger (consumer_store.py) notes
its changes there: `flush` writes them into the journal, many as one record. `tick` writes o.dat for what changed,
at most once a second, and holds up nobody meanwhile; `stop` does it for all and leaves no journal. Opening for
writing first folds the journal into the o.dat files, so that any server that takes the directory later sees
everything.
"""

from __future__ import annotations

import threading

from headrace.errors import AlreadyExists, NotFound, ReadOnly, StoreClosed
from headrace.layouts.base import ConsumerState, Cursors, Damage, SequencePair
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.config import ConsumerConfig
from headrace.layouts.jetstream.config_json import encode_consumer_meta
from headrace.layouts.jetstream.consumer_log import Kind, created_payload
from headrace.layouts.jetstream.consumer_recovery import (
    CONSUMERS_DIR,
    FoundConsumer,
    consumer_names,
    recover_consumers,
)
from headrace.layouts.jetstream.consumer_state import STATE_FILE, encode_state
from headrace.layouts.jetstream.consumer_store import FileConsumerStore
from headrace.layouts.jetstream.meta import finish_meta, write_meta
from headrace.layouts.jetstream.names import check_name
from headrace.layouts.jetstream.paths import DAMAGED, SIDE, make_dirs
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.journal import SUFFIX, Journal

CHECKPOINT_EVERY_NS = 1_000_000_000
# A large o.dat is written less often: the journal has everything all the same.
LARGE_STATE_BYTES = 256 << 10
CHECKPOINT_LARGE_EVERY_NS = 10 * CHECKPOINT_EVERY_NS
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
        self._lock, self._saving = threading.RLock(), threading.Lock()
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
        """The highest stream sequence that any consumer has seen: evidence for the next one.

        One that was given nothing yet has seen nothing: its start may lie beyond the end.
        """
        with self._lock:
            delivered = [store.delivered for store in self._stores.values()]
            return max([self._evidence, *(each.stream for each in delivered if each.consumer)])

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
            store.fresh = True
            return store

    def delete(self, name: str) -> None:
        """Remove a consumer with its files; it does not come back after a crash."""
        with self._lock:
            self._check_writable()
            store = self.get(name)
        with store.saving, self._lock:
            store.close()
            gone = f"{self._dir}/{SIDE}/gone"
            make_dirs(self._disk, gone)
            if self._disk.entry(f"{gone}/{name}") is not None:
                self._disk.remove_dir_all(f"{gone}/{name}")
            self._disk.rename(self.directory_of(name), f"{gone}/{name}")
            self._disk.sync_dir(f"{self._dir}/{CONSUMERS_DIR}")
            del self._stores[name]
            self._disk.remove_dir_all(f"{gone}/{name}")

    # Durability

    def flush(self) -> None:
        """What ledgers noted into the journal, and the journal to the operating system."""
        with self._lock:
            self._flush_ledgers()
            if self._journal_open:
                self._journal.write()

    def mark(self) -> int:
        """A mark for `commit`: everything up to now."""
        with self._lock:
            self._flush_ledgers()
            return self._position

    def commit(self, mark: int | None = None) -> None:
        """Return once every change up to the mark (default: all so far) is on disk. Threads share one sync."""
        target = self.mark() if mark is None else mark
        if self._journal_open:
            self._journal.commit(target)

    def tick(self, now_ns: int) -> bool:
        """Write o.dat for what changed, if the last time is a second ago. True if it did."""
        with self._lock:
            last = self._last_checkpoint_ns
            due = last is None or not 0 <= now_ns - last < CHECKPOINT_EVERY_NS
            if self._closed or not due or not any(s.unsaved for s in self._stores.values()):
                return False
            self._last_checkpoint_ns = now_ns
        self.checkpoint(now_ns)
        return True

    def checkpoint(self, now_ns: int | None = None) -> None:
        """Write o.dat for what changed; begin a new journal when this one has grown large.

        With a time, large states that were written a moment ago wait, unless the journal is to go.
        """
        with self._saving:
            with self._lock:
                self._check_writable()
                full = self._journal_open and self._journal.size > JOURNAL_BYTES_MAX
            if full:
                self._journal.rotate()
            self._save(None if full else now_ns, now_ns)
            if full:
                self._journal.drop_older()

    def stop(self) -> None:
        """Clean stop: every o.dat written, no journal left."""
        with self._saving:
            if self._closed:
                return
            if self._writable:
                self.commit()
                self._save(None)
            with self._lock:
                self._closed = True
                if self._writable:
                    self._journal.close(remove=True)

    # For FileConsumerStore

    @property
    def lock(self) -> threading.RLock:
        return self._lock

    @property
    def position(self) -> int:
        """Of the last record in the journal."""
        return self._position

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
        with store.saving:
            with self._lock:
                data = store.checkpoint(f"{self.stream}/{store.name}")
            self._write_state(store, data)

    def _write_state(self, store: FileConsumerStore, data: bytes) -> None:
        try:
            self._disk.replace_file(f"{self.directory_of(store.name)}/{STATE_FILE}", data)
        except BaseException:
            store.dirty = True
            raise

    def _save(self, now_ns: int | None, saved_ns: int | None = None) -> None:
        """Every o.dat that is behind. Nobody waits for the disk but who deletes that very consumer."""
        for store in list(self._stores.values()):
            with store.saving:
                with self._lock:
                    if (
                        self._stores.get(store.name) is not store
                        or not store.unsaved
                        or self._wait(store, now_ns)
                    ):
                        continue
                    data = store.checkpoint(f"{self.stream}/{store.name}")
                self._write_state(store, data)
                store.saved_ns, store.saved_bytes = saved_ns, len(data)

    def _wait(self, store: FileConsumerStore, now_ns: int | None) -> bool:
        if now_ns is None or store.saved_ns is None or store.saved_bytes < LARGE_STATE_BYTES:
            return False
        return 0 <= now_ns - store.saved_ns < CHECKPOINT_LARGE_EVERY_NS

    def _flush_ledgers(self) -> None:
        for store in self._stores.values():
            store.flush()

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
        self._save(None)
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
