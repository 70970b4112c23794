"""The consumers of one stream: open, create, delete; every change journalled, o.dat as checkpoint.

    <stream>/obs/<name>/meta.inf meta.sum o.dat       what nats-server reads
    <stream>/headrace/consumers.<n>.journal           changes since each o.dat, new consumers (log.py)
    <stream>/headrace/{new,gone}/<name>               a consumer being made or removed
    <stream>/headrace/damaged/                        files that could not be relied on, kept

A change is durable after `commit` (what a double ack waits for). So is a new consumer: the journal holds all of it, its
directory is written at once and synced later (`_file`), before the journal goes. A consumer with a ledger (store.py) notes
its changes there: `flush` writes them into the journal, many as one record. `tick` writes o.dat for what changed,
at most once a second, and holds up nobody meanwhile; `stop` does it for all and leaves no journal. Opening for
writing first folds the journal into the o.dat files, so that any server that takes the directory later sees
everything.

Consumers with `mem_storage` are kept in the same way on a disk that is memory (`_in_memory`): they end with the process.
"""

from __future__ import annotations

import threading

from headrace.config.meta_json import encode_consumer_meta
from headrace.config.model import ConsumerConfig
from headrace.config.names import check_name
from headrace.errors import AlreadyExists, DiskFault, HeadraceError, NotFound, ReadOnly, StoreClosed
from headrace.layouts.base import ConsumerState, Damage, SequencePair
from headrace.layouts.directories import make_dirs
from headrace.layouts.jetstream._kernels import CommitHandle, Disk
from headrace.layouts.jetstream.consumers.log import Kind, created_payload, name_payload
from headrace.layouts.jetstream.consumers.recovery import (
    CONSUMERS_DIR,
    ConsumerRecovery,
    FoundConsumer,
    consumer_names,
    recover_consumers,
)
from headrace.layouts.jetstream.consumers.state import STATE_FILE, encode_state
from headrace.layouts.jetstream.consumers.store import FileConsumerStore
from headrace.layouts.jetstream.meta import (
    META_FILE,
    SUM_FILE,
    finish_meta,
    meta_files,
    write_meta,
)
from headrace.layouts.jetstream.paths import DAMAGED, SIDE
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.journal import SUFFIX, Journal
from headrace.layouts.shortcuts import is_there
from headrace.layouts.stream_store import ConsumerStores

CHECKPOINT_EVERY_NS = 1_000_000_000
# A large o.dat is written less often: the journal has everything all the same.
LARGE_STATE_BYTES = 256 << 10
CHECKPOINT_LARGE_EVERY_NS = 10 * CHECKPOINT_EVERY_NS
JOURNAL_BYTES_MAX = 4 << 20


class Consumers(ConsumerStores):
    """All consumers of the stream in `stream_dir`. Thread-safe; give it to nobody else to write."""

    def __init__(
        self,
        disk: Disk,
        stream_dir: str,
        stream: str,
        *,
        writable: bool = True,
        secret: StoreKey | None = None,
        is_memory: bool = False,
        is_new: bool = False,
    ) -> None:
        """`is_new`: of a stream that was just made; nothing is looked for."""
        if writable and not is_new and is_sealed(disk, stream_dir):
            raise ReadOnly(f"{stream_dir} is encrypted: encrypted stores are read, not written")
        self.stream, self._disk, self._dir, self._writable = stream, disk, stream_dir, writable
        self._lock, self._saving = threading.RLock(), threading.Lock()
        self._closed = self._journal_open = self._dirs_made = False
        self._changing: set[str] = set()
        """Names of consumers that are being made or removed."""
        self._unfiled: set[str] = set()
        """Consumers whose directories may not be on disk yet: the journal holds them."""
        self._made_lately = False
        self._last_checkpoint_ns: int | None = None
        self._journal = Journal(disk, f"{stream_dir}/{SIDE}", "consumers")
        if writable and not is_new:
            self._clear_leftovers()
        found = ConsumerRecovery()
        if not is_new:
            found = recover_consumers(disk, stream_dir, stream, self._journal, secret, strict=writable)
        self._damage, self._evidence = found.damage, found.max_stream_seq
        self._position = found.journal_position
        self._stores = {each.name: FileConsumerStore(self, each) for each in found.consumers}
        self._is_memory = is_memory
        self._in_memory: Consumers | None = None
        if writable and not is_new:
            self._fold(found.consumers)

    # What is there

    def names(self) -> list[str]:
        """Every consumer, sorted."""
        with self._lock:
            return sorted([*self._stores, *(self._in_memory.names() if self._in_memory else ())])

    def __len__(self) -> int:
        return len(self._stores) + (len(self._in_memory) if self._in_memory else 0)

    def __contains__(self, name: str) -> bool:
        return name in self._stores or (self._in_memory is not None and name in self._in_memory)

    def state_of(self, name: str) -> ConsumerState:
        """A copy of a consumer's state."""
        return self.get(name).state()

    def get(self, name: str) -> FileConsumerStore:
        """An existing consumer."""
        with self._lock:
            if name in self._stores:
                return self._stores[name]
            if self._in_memory is not None and name in self._in_memory:
                return self._in_memory.get(name)
            raise NotFound(f"stream {self.stream} has no consumer {name!r}")

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
            if name not in self:
                return self.create(name, config, created_ns)
            store = self.get(name)
            if store.config != config:
                store.update_config(config)
            return store

    def create(
        self, name: str, config: ConsumerConfig, created_ns: int, *, start_after: int = 0
    ) -> FileConsumerStore:
        """A new consumer, on disk when this returns; who makes others at the same time shares the sync.

        It counts everything up to stream sequence `start_after` as delivered and acked. Its o.dat says
        so from the beginning: a real server that finds one does not look at the deliver policy again.
        """
        check_name("consumer", name)
        config.validate()
        if config.mem_storage and not self._is_memory:
            return self._create_in_memory(name, config, created_ns, start_after)
        start = SequencePair(0, start_after)
        with self._lock:
            self.prepare()
            target = self.directory_of(name)
            taken = name in self._stores or name in self._changing
            if taken or self._disk.entry(target) is not None:
                raise AlreadyExists(f"stream {self.stream} already has a consumer {name!r}")
            if not self._dirs_made:
                for each in (f"{SIDE}/new", CONSUMERS_DIR):
                    make_dirs(self._disk, f"{self._dir}/{each}")
                self._dirs_made = True
            data = encode_consumer_meta(name, config, created_ns)
            position = self.note(Kind.CREATED, created_payload(name, start_after, data))
            self._changing.add(name)
        # Without the lock: acks of other consumers go on, and whoever makes a consumer beside shares the sync.
        found = FoundConsumer(name, config, created_ns, ConsumerState(start, start), position, current=True)
        staged, key_text = f"{self._dir}/{SIDE}/new/{name}", f"{self.stream}/{name}"
        try:
            state = encode_state(found.state, key_text, position)
            self._disk.write_files(staged, [(STATE_FILE, state), *meta_files(key_text, data).items()])
            self._journal.commit(position)
            self._disk.rename(staged, target)
        except BaseException:
            self._note_deleted(name)  # nobody got an answer for it: it must not come back
            raise
        else:
            with self._lock:
                store = self._stores[name] = FileConsumerStore(self, found)
                self._unfiled.add(name)
                self._made_lately = True
            return store
        finally:
            with self._lock:
                self._changing.discard(name)

    def _note_deleted(self, name: str) -> int | None:
        """A consumer that the journal may hold is no more; None where nothing can be noted."""
        with self._lock:
            self._unfiled.discard(name)
            try:
                return self.note(Kind.DELETED, name_payload(name))
            except HeadraceError:
                return None

    def _create_in_memory(
        self, name: str, config: ConsumerConfig, created_ns: int, start_after: int
    ) -> FileConsumerStore:
        with self._lock:
            self._check_writable()
            if name in self:
                raise AlreadyExists(f"stream {self.stream} already has a consumer {name!r}")
            if self._in_memory is None:
                self._in_memory = Consumers(Disk.memory(), f"/{self.stream}", self.stream, is_memory=True)
            return self._in_memory.create(name, config, created_ns, start_after=start_after)

    def delete(self, name: str) -> None:
        """Remove a consumer with its files; it does not come back after a crash."""
        with self._lock:
            self._check_writable()
            if self._in_memory is not None and name in self._in_memory:
                self._in_memory.delete(name)
                return
            store = self.get(name)
        with store.saving:  # nobody writes its o.dat meanwhile
            with self._lock:
                store.close()
                del self._stores[name]
                self._changing.add(name)
            try:
                gone = f"{self._dir}/{SIDE}/gone"
                make_dirs(self._disk, gone)
                if self._disk.entry(f"{gone}/{name}") is not None:
                    self._disk.remove_dir_all(f"{gone}/{name}")
                self._disk.rename(self.directory_of(name), f"{gone}/{name}")
                self._disk.sync_dir(f"{self._dir}/{CONSUMERS_DIR}")
                # After the directory, so that whoever finds this record finds no directory.
                if name in self._unfiled and (position := self._note_deleted(name)) is not None:
                    self._journal.commit(position)
                self._disk.remove_dir_all(f"{gone}/{name}")
            finally:
                with self._lock:
                    self._changing.discard(name)

    # Durability

    def flush(self, only: FileConsumerStore | None = None) -> None:
        """What ledgers (or one of them) noted into the journal, and the journal to the operating system."""
        with self._lock:
            if only is not None:
                only.note_changes()
            else:
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

    @property
    def commit_handle(self) -> CommitHandle:
        """For a `Committer`: makes a mark durable without the interpreter."""
        return self._journal.commit_handle()

    def tick(self, now_ns: int) -> bool:
        """Write o.dat for what changed, if the last time is a second ago, and new directories to disk. True for the former."""
        if self._in_memory is not None:
            self._in_memory.tick(now_ns)
        with self._lock:
            last = self._last_checkpoint_ns
            due = last is None or not 0 <= now_ns - last < CHECKPOINT_EVERY_NS
            # While consumers are being made the disk is theirs: the journal has what the directories lack.
            to_file, self._made_lately = bool(self._unfiled) and not self._made_lately, False
            to_save = due and any(store.unsaved for store in self._stores.values())
            if self._closed or not (to_file or to_save):
                return False
            if to_save:
                self._last_checkpoint_ns = now_ns
        if to_save:
            self.checkpoint(now_ns)
        if to_file:
            with self._saving:
                self._file()
        return to_save

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
                self._file()
                self._journal.drop_older()

    def stop(self) -> None:
        """Clean stop: every o.dat written, no journal left."""
        if self._in_memory is not None:
            self._in_memory.stop()
        with self._saving:
            if self._closed:
                return
            if self._writable:
                self.commit()
                self._save(None)
                self._file(note=False)
            with self._lock:
                self._closed = True
                if self._writable:
                    self._journal.close(remove=True)

    def abandon(self) -> None:
        """No more changes, nothing is saved: the directory goes, the journal with it."""
        if self._in_memory is not None:
            self._in_memory.abandon()
        with self._saving, self._lock:
            if not self._closed:
                self._closed = True
                self._journal.close()

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

    def save_config(self, store: FileConsumerStore, config: ConsumerConfig) -> None:
        """Write a consumer's configuration; whoever calls holds `store.saving`."""
        self._check_writable()
        if store.name in self._unfiled:
            self._sync_directory(store.name)
            self._note_filed([store.name])
        data = encode_consumer_meta(store.name, config, store.created_ns)
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

    def _file(self, *, note: bool = True) -> None:
        """Directories of new consumers to disk: the journal need not hold these any more, and says so unless it goes."""
        filed: list[str] = []
        for name in sorted(self._unfiled):
            store = self._stores.get(name)
            if store is not None:
                with store.saving:
                    if self._stores.get(name) is store:
                        self._sync_directory(name, with_parent=False)
                        filed.append(name)
        if filed:
            self._disk.sync_dir(f"{self._dir}/{CONSUMERS_DIR}")
            if note:
                self._note_filed(filed)
            else:
                self._unfiled.clear()

    def _sync_directory(self, name: str, *, with_parent: bool = True) -> None:
        self._disk.sync_files(self.directory_of(name), (STATE_FILE, META_FILE, SUM_FILE))
        if with_parent:
            self._disk.sync_dir(f"{self._dir}/{CONSUMERS_DIR}")

    def _note_filed(self, names: list[str]) -> None:
        with self._lock:
            for name in names:
                if name in self._unfiled and self._journal_open:
                    self.note(Kind.FILED, name_payload(name))
                self._unfiled.discard(name)

    def _wait(self, store: FileConsumerStore, now_ns: int | None) -> bool:
        if now_ns is None or store.saved_ns is None or store.saved_bytes < LARGE_STATE_BYTES:
            return False
        return 0 <= now_ns - store.saved_ns < CHECKPOINT_LARGE_EVERY_NS

    def _flush_ledgers(self) -> None:
        for store in self._stores.values():
            store.note_changes()

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

    def _fold(self, found: list[FoundConsumer]) -> None:
        """Everything that the journal holds into the consumers' files; then it is not needed any more."""
        for consumer in found:
            if consumer.unfiled:
                self._unfiled.add(consumer.name)
                make_dirs(self._disk, directory := self.directory_of(consumer.name))
                if consumer.lost_meta:
                    key_text = f"{self.stream}/{consumer.name}"
                    self._disk.write_files(directory, [*meta_files(key_text, consumer.lost_meta).items()])
        for damage in self._damage:
            if damage.file.endswith((STATE_FILE, SUFFIX)) and damage.kind not in ("repaired", "index"):
                self._keep(damage.file)
        self._save(None)
        self._file(note=False)
        self._journal.close(remove=True)

    def _keep(self, file: str) -> None:
        """Set a copy of a file aside before it is written anew or removed."""
        kept = f"{self._dir}/{DAMAGED}"
        make_dirs(self._disk, kept)
        if is_there(self._disk, file):
            name = file.removeprefix(f"{self._dir}/").replace("/", "-")
            taken = {each for each, _, _ in self._disk.list(kept)}
            free = next(n for n in range(len(taken) + 1) if f"{name}.{n}" not in taken)
            target = f"{kept}/{name}.{free}"
            try:
                self._disk.replace_file(target, self._disk.read(file))
            except DiskFault:
                # It cannot be read, or there is no room for a copy: then it goes there itself.
                self._disk.rename(file, target)
