"""`FileStreamStore`: the JetStream store of one stream, over the blocks that the core keeps.

One call here is one decision per batch: which block, whether it is full, what the limits evict, when a file
may go. The work on each message is the core's.

    append → BlockLog.append (encode, hash, one write) → roll when full → limits → Ticket
    commit → one fdatasync for all who wait → files that died before it are unlinked
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.config.meta_json import encode_stream_meta
from headrace.config.model import ConsumerConfig, StreamConfig, block_size
from headrace.errors import (
    BadInput,
    DiskFault,
    DiskFull,
    EndOfStream,
    MessageNotFound,
    ReadOnly,
    StoreClosed,
    StorePoisoned,
)
from headrace.layouts.base import (
    Damage,
    Durability,
    LogState,
    Predicate,
    ScanTask,
    Storage,
    Ticket,
)
from headrace.layouts.jetstream._kernels import Batch, BlockLog, CommitHandle, Disk
from headrace.layouts.jetstream.checks.findings import damage_of
from headrace.layouts.jetstream.consumers.consumers import Consumers
from headrace.layouts.jetstream.consumers.readers import StreamReaders
from headrace.layouts.jetstream.meta import write_meta
from headrace.layouts.jetstream.paths import INDEX
from headrace.layouts.jetstream.recovery.opening import OpenedStream, take_messages
from headrace.layouts.jetstream.snapshots import snapshot
from headrace.layouts.jetstream.store import admission, removal, upkeep
from headrace.layouts.jetstream.store.reads import StoreReads
from headrace.layouts.jetstream.store.scan_task import plan_blocks
from headrace.layouts.jetstream.store.scrub import Scrubber
from headrace.layouts.jetstream.store.sidecar import CleanStamp, Sidecar
from headrace.layouts.jetstream.store.state import StoreState
from headrace.layouts.stream_store import ConsumerStore, SnapshotResult, StorageUpdate
from headrace.record import Record
from headrace.units import clamp_time_ns

DELETED_LISTED_MAX = 1_000_000
RESTING_NS = 1_000_000_000


class FileStreamStore(StoreReads, StoreState):
    """One stream. Open it through `JetStreamVolume`, which holds the lock."""

    def __init__(
        self,
        disk: Disk,
        stream_dir: str,
        opened: OpenedStream,
        *,
        read_only: bool,
        durability: Durability = "sync",
        storage: Storage = "file",
        clock: Any = time.time_ns,
        block_bytes: int | None = None,
        sync_every_ns: int = 120 * 1_000_000_000,
    ) -> None:
        self.name, self.config, self.created_ns = opened.config.name, opened.config, opened.created_ns
        self.disk, self.stream_dir, self.msgs_dir = disk, stream_dir, opened.msgs_dir
        self.log: BlockLog = opened.log
        self._consumers = opened.consumers
        self.sidecar = Sidecar(disk, stream_dir)
        self.durability: Durability = durability
        self._storage: Storage = storage
        if storage == "memory":
            self.log.count_as_memory()
        self.read_only, self.clock = read_only, clock
        self.lock = threading.RLock()
        self._block_bytes_given = block_bytes
        self.block_bytes = block_bytes or block_size(self.config)
        self.dead: list[upkeep.DeadBlock] = []
        self.pending_unlink: list[int] = []
        self._half_done: str | None = None
        self.dirty = not opened.clean
        self.sync_every_ns, self.last_sync_ns, self.last_index_ns = sync_every_ns, clock(), clock()
        self._closed = False
        self.scrubber = Scrubber(self)
        self._damage = opened.damage
        self._handler: StorageUpdate | None = None
        self._seen_by_upkeep: tuple[int, int] | None = None
        self._upkeep_ns = 0
        self.trimmed = 0
        self.before_unlink = None
        self.expires_itself = True
        self.on_checkpoint = None
        if not read_only and storage == "file":
            self.log.set_mark_path(self.sidecar.mark_path)
        self.complete = self.log.last_seq

    @property
    def consumers(self) -> Consumers:
        """Who consumes it."""
        return self._consumers

    @property
    def incarnation(self) -> str:
        """When the stream was made."""
        return str(self.created_ns)

    @property
    def readers(self) -> StreamReaders:
        return StreamReaders(self)

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.config.subjects

    # Writing

    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Store all messages of the batch, or none if a limit refuses. If the disk fails in the middle, what was
        written before is taken back, or stays if it cannot be; nothing of the batch is acknowledged.

        With `keep_positions` the batch's own positions are taken (they must grow): a copy, whose subjects may be any.
        """
        if not keep_positions:
            self._check_open()
            admission.refuse_other_subjects(self.config, batch)
        return self.append_copy(batch, keep_positions=keep_positions)

    def append_copy(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """The same on any subject: transforms and sources store under others than the stream's own."""
        with self.lock:
            if self._closed or self._half_done is not None or self.read_only:
                self.check_writable()
            if self.config.discard == "new" or self.config.sealed:
                admission.refuse_what_does_not_fit(self, batch)
            return self._append_in_order(batch, keep_positions)

    def _append_in_order(self, batch: Batch, keep_positions: bool) -> Ticket:
        """As if the messages came one by one: in parts where one limit may see what the other one does. A disk that fails
        between parts leaves those before it."""
        if len(batch) < 2 or not admission.limits_meet(self, batch):
            return self._append(batch, keep_positions)
        middle = len(batch) // 2
        begun = self._append_in_order(batch.slice(0, middle), keep_positions)
        ended = self._append_in_order(batch.slice(middle, len(batch)), keep_positions)
        return Ticket(self.name, begun.first, ended.next, ended.mark)

    def _append(self, batch: Batch, keep_positions: bool) -> Ticket:
        limit = max(self.config.max_msgs_per_subject, 0)
        total, start, now, first, stored_bytes = len(batch), 0, self.clock(), 0, 0
        next_seq = mark = trimmed = trimmed_bytes = 0
        while True:
            try:
                done = self.log.append(batch, start, now, keep_positions, self.block_bytes, limit)
            except (DiskFault, StorePoisoned):
                removal.take_back(self, first, next_seq)
                raise
            first, next_seq, mark = first or done.first, done.next, done.mark
            start, stored_bytes = start + done.stored, stored_bytes + done.bytes
            trimmed, trimmed_bytes = trimmed + done.trimmed, trimmed_bytes + done.trimmed_bytes
            if start >= total:
                break
            try:
                upkeep.roll(self)
            except (DiskFault, StorePoisoned):
                removal.take_back(self, first, next_seq)
                raise
        self.written(total, first, next_seq, stored_bytes, trimmed, trimmed_bytes)
        return Ticket(self.name, first, next_seq, mark)

    @property
    def takes_at_once(self) -> bool:
        """Whether messages may go straight into the newest block, where they fit: `written` is called afterwards. Not so
        where a limit has to be asked first, or counts by subject."""
        config = self.config
        return (
            config.discard == "old"
            and config.max_msgs_per_subject <= 0
            and not (config.sealed or self._closed or self.read_only or self._half_done is not None)
        )

    def written(
        self,
        count: int,
        first: int,
        next_seq: int,
        stored_bytes: int,
        trimmed: int = 0,
        trimmed_bytes: int = 0,
    ) -> None:
        """Messages `[first, next_seq)` are in the log: what follows from that."""
        self.dirty, self.complete = True, next_seq - 1
        self.trimmed += trimmed
        out = out_bytes = 0
        if self.config.max_msgs > 0 or self.config.max_bytes > 0:
            out, out_bytes = admission.evict_front(self)
        if trimmed or out:
            upkeep.schedule_unlink(self)
        if self._handler is not None:
            self.notify(
                count - trimmed - out, stored_bytes - trimmed_bytes - out_bytes, first if count == 1 else 0
            )

    def store_msg(self, subject: str, hdr: bytes | None, msg: bytes) -> tuple[int, int]:
        """Store one message; returns (sequence, time in ns). Durable after `commit`."""
        with self.lock:
            ticket = self.append(Batch.build(subject, [msg], [hdr] if hdr else None))
            return ticket.first, self.log.last_time_ns

    def store_raw_msg(self, subject: str, hdr: bytes | None, msg: bytes, seq: int, ts: int) -> None:
        """Store with a given sequence and time; skipped sequences count as deleted."""
        headers = [hdr] if hdr else None
        self.append(Batch.build(subject, [msg], headers, [ts], [seq]), keep_positions=True)

    def skip_msg(self, seq: int | None = None) -> int:
        """Use up the next sequence (or all up to `seq`) without a message; returns the last one used."""
        with self.lock:
            self.check_writable()
            target = seq if seq is not None else self.log.last_seq + 1
            if target <= self.log.last_seq:
                raise BadInput(f"sequence {target} is not above the last one, {self.log.last_seq}")
            self.log.skip(target, self.clock())
            self.dirty, self.complete = True, target
            return target

    # Durability

    def commit(self, mark: int | None = None) -> None:
        """Return once everything up to the mark (default: all so far) is on disk."""
        if self.read_only or self._storage == "memory":
            return
        target = mark if mark is not None else self.log.mark
        if self.log.durable_mark < target:
            self.log.commit(target)
        if self.dead:
            self.unlink_dead()

    @property
    def commit_handle(self) -> CommitHandle:
        """For a `Committer`: makes a mark durable without the interpreter. `unlink_dead` is to follow."""
        return self.log.commit_handle()

    @property
    def has_dead_files(self) -> bool:
        """Files without messages wait to go: those that died before the last commit may."""
        return bool(self.dead)

    def unlink_dead(self) -> None:
        """Remove the files that died before the last commit."""
        with self.lock:
            if not self._closed:
                upkeep.unlink_dead(self)

    def acknowledge(self, mark: int) -> None:
        """What a ticket waits for: the sync in mode `sync`, the write alone in mode `interval`."""
        if self.durability == "sync":
            self.commit(mark)

    @property
    def poisoned(self) -> bool:
        """A sync or a change of several files failed: nothing is acknowledged until `heal` or opening again."""
        return self._half_done is not None or self.log.poisoned()

    def heal(self) -> None:
        """After a failed sync: write what is in doubt again, into a new block, and go on."""
        with self.lock:
            self._check_whole()
            self.log.rewrite_tail(self.log.newest_block + 1)
            upkeep.schedule_unlink(self)
            self.save_beside()  # messages that are gone already were not written again

    @property
    def can_heal(self) -> bool:
        """A poisoned store is written again from its doubtful tail on."""
        return True

    def sync(self) -> None:
        """Return once everything so far is on disk; files that died stay for now."""
        mark = self.log.mark
        if self.log.durable_mark < mark:
            self.log.commit(mark)

    def free_block_bytes(self) -> int | None:
        """Bytes that may be written before the newest block must be synced and sealed."""
        return upkeep.free_bytes(self)

    def roll_ahead(self) -> None:
        """Seal the newest block before messages come that would not fit."""
        upkeep.roll_ahead(self)

    @property
    def removal_needs_sync(self) -> bool:
        """Limits have evicted something that only memory knows of."""
        return upkeep.removal_needs_sync(self)

    def prepare_removal(self) -> None:
        """Sync what the next removal would have to wait for."""
        upkeep.prepare_removal(self)

    def save_beside(self) -> None:
        """What somebody keeps of the messages is on disk before their files go or change."""
        if self.before_unlink is not None:
            self.with_reserve(self.before_unlink)

    @contextmanager
    def whole_or_poisoned(self) -> Generator[None]:
        """Around changes of several files: when the disk fails in the middle, only opening again sorts it out."""
        try:
            yield
        except (DiskFault, StorePoisoned) as error:
            self._half_done = str(error)
            raise

    def _check_whole(self) -> None:
        if self._half_done is not None:
            raise StorePoisoned(
                f"stream {self.name}: a change stopped half way ({self._half_done}); open it again"
            )

    def mend(self, found: list[Damage]) -> None:
        """Damage turned up in a live store: replace the blocks by sound copies, take the counts anew."""
        with self.lock:
            self.commit()
            self.log.end_writer()
            self._damage += found
            seen = take_messages(
                self.disk,
                self.stream_dir,
                self.config,
                self.consumers.max_stream_seq(),
                block_bytes=self.block_bytes,
            )
            self.log, self.dead, self.pending_unlink, self.dirty = seen.log, [], [], True
            self.log.set_mark_path(self.sidecar.mark_path)
            upkeep.apply_limits(self)

    # Reading

    def read(
        self,
        first: int,
        max_msgs: int = 1000,
        max_bytes: int = 8 << 20,
        filter: str | None = None,
        *,
        durable_only: bool = False,
    ) -> Batch:
        """Messages from `first` on; see `Log.read`. `durable_only` stops at the last synced one."""
        self._check_open()
        below = self.log.durable_seq + 1 if durable_only else None
        return self.log.read(first, max_msgs, max_bytes, filter, below)

    def load_msg(self, seq: int) -> Record:
        """One message. MessageNotFound if removed, EndOfStream beyond the last."""
        self._check_open()
        found = self.log.load(seq)
        if found is None:
            if seq > self.log.last_seq:
                raise EndOfStream(f"stream {self.name}: {seq} is beyond the last sequence")
            raise MessageNotFound(f"stream {self.name}: no message {seq}")
        return found

    def load_msgs(self, seqs: Sequence[int], max_bytes: int | None = None) -> Batch:
        """Many at once, in the order asked; absent ones are left out."""
        self._check_open()
        return self.log.load_many(seqs) if max_bytes is None else self.log.load_many(seqs, max_bytes)

    def load_last_msg(self, subject: str) -> Record:
        """The newest message on a subject (wildcards allowed)."""
        self._check_open()
        found = self.log.last_match(subject)
        if found is None:
            raise MessageNotFound(f"stream {self.name}: no message on {subject}")
        return found

    def load_next_msg(self, filter: str, start: int) -> Record:
        """The first message at or after `start` that matches."""
        self._check_open()
        found = self.log.next_match(filter, start)
        if found is None:
            raise EndOfStream(f"stream {self.name}: nothing on {filter} from {start} on")
        return found

    def seq_from_time(self, time_ns: int) -> int:
        """The first sequence whose time is not before `time_ns`; last + 1 if there is none."""
        self._check_open()
        return self.log.seq_from_time(clamp_time_ns(time_ns))

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """One task per block that may hold a match."""
        self._check_open()
        return plan_blocks(self, predicate or Predicate())

    # State

    def state(self) -> LogState:
        """The whole state, deleted sequences included (up to a million of them)."""
        return self._state(tuple(self.log.deleted(DELETED_LISTED_MAX)))

    def fast_state(self) -> LogState:
        """`state` without the list of deleted sequences."""
        return self._state(())

    def _state(self, deleted: tuple[int, ...]) -> LogState:
        self._check_open()
        held = self.log.state()
        lost = [f for f in self.log.findings() if f.kind in ("bad-record", "unsound-tail")]
        return LogState(
            messages=held.messages,
            bytes=held.bytes,
            first_seq=held.first_seq if held.last_seq else 0,
            last_seq=held.last_seq,
            first_time_ns=held.first_time_ns,
            last_time_ns=held.last_time_ns or None,
            num_subjects=held.subjects,
            num_deleted=held.deleted,
            deleted=deleted,
            consumers=len(self.consumers),
            lost_messages=sum(1 for f in lost if f.kind == "bad-record"),
            lost_bytes=sum(f.length for f in lost),
        )

    def type(self) -> Storage:
        """`file` or `memory`."""
        return self._storage

    def note_damage(self, found: Damage) -> None:
        """Something beside the messages is not sound; `damage` shows what."""
        self._damage = [*self._damage, found]

    def damage(self) -> list[Damage]:
        """What was found unsound since the store was opened."""
        found = list(self._damage) + self.consumers.damage()
        return found + [damage_of(self.msgs_dir, finding) for finding in self.log.findings()]

    # Removing

    def remove(self, positions: Sequence[int]) -> Ticket:
        """Remove single messages (tombstones); those gone already are passed over."""
        return removal.remove(self, positions)

    def remove_msg(self, seq: int) -> bool:
        """Remove; the bytes stay in the file. False if there was nothing."""
        before = self.log.messages
        self.remove([seq])
        return self.log.messages < before

    def erase_msg(self, seq: int) -> bool:
        """Remove and overwrite the bytes with random ones."""
        return removal.erase(self, seq)

    def drop_front(self, seq: int) -> int:
        """Remove everything below `seq`."""
        return self.compact(seq)

    def purge(self) -> int:
        """Remove all messages; first becomes last + 1."""
        return removal.purge(self)

    def purge_ex(self, subject: str, seq: int, keep: int, below: int | None = None) -> int:
        """Purge by subject filter, below `seq`, keeping the newest `keep`; of what lies below `below`."""
        return removal.purge_ex(self, subject, seq, keep, below)

    def compact(self, seq: int) -> int:
        """Remove everything below `seq`; past the end it moves the next sequence to `seq`."""
        return removal.compact(self, seq)

    def truncate(self, seq: int) -> None:
        """Remove everything above `seq`; the next sequence is seq + 1."""
        removal.truncate(self, seq)

    # Configuration and life

    def register_storage_updates(self, handler: StorageUpdate | None) -> None:
        """The handler is called for every change, once per batch."""
        self._handler = handler

    def notify(self, messages: int, size: int, seq: int = 0, subject: str = "") -> None:
        """Pass a change on to whoever registered."""
        if self._handler is not None and (messages or size):
            self._handler(messages, size, seq, subject)

    def update_config(self, config: StreamConfig) -> None:
        """Take new limits; saved first, applied at once. Evictions so far are made permanent before."""
        with self.lock:
            self.check_writable()
            if config.name != self.name:
                raise BadInput(f"a stream keeps its name: {self.name}, not {config.name}")
            if config.storage != self.config.storage:
                raise BadInput("stream configuration update can not change storage type")
            config = config.filled()
            config.validate()
            upkeep.index_evictions(self)
            write_meta(self.disk, self.stream_dir, self.name, encode_stream_meta(config, self.created_ns))
            self.config = config
            self.block_bytes = self._block_bytes_given or block_size(config)
            upkeep.apply_limits(self)

    def consumer_store(self, name: str, config: ConsumerConfig) -> ConsumerStore:
        """Open or create the state of a consumer."""
        self._check_open()
        return self.consumers.open(name, config, self.clock())

    def snapshot(
        self, deadline_s: float, include_consumers: bool, check_msgs: bool, form: str = "archive"
    ) -> SnapshotResult:
        """The stream as a byte stream, S2-compressed."""
        return snapshot.take(self, deadline_s, include_consumers, check_msgs, form)

    def write_index(self) -> None:
        """Checkpoint: index.db of synced data, replaced atomically."""
        if self._storage == "memory":
            return
        self.commit()
        self.disk.replace_file(f"{self.msgs_dir}/{INDEX}", self.log.encode_index())
        self.dirty = False
        self.log.evictions_saved()

    def delete(self) -> None:
        """Remove the stream with all its files; half of it never shows up again."""
        with self.lock:
            self.check_writable()
            self._closed = True
            self.consumers.abandon()
            self.log.end_writer()
            self.log.set_mark_path(None)
            removal.remove_directory(self.disk, self.stream_dir)

    def stop(self) -> None:
        """Clean stop: everything synced, index and guard written, stamped."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.consumers.stop()
            if self.read_only or self._storage == "memory":
                return
            self._check_whole()
            self.log.commit(self.log.mark)
            self.log.publish_mark()
            upkeep.unlink_dead(self)
            number = self.log.newest_block
            self.log.end_writer()
            self.log.set_mark_path(None)
            try:
                upkeep.write_guard(self, number)
                index = self.log.encode_index()
                self.disk.replace_file(f"{self.msgs_dir}/{INDEX}", index)
                sizes = {block.number: block.file_bytes for block in self.log.blocks()}
                self.sidecar.write_stamp(CleanStamp(index[-8:].hex(), self.log.last_seq, sizes))
            except DiskFault:
                # Everything is synced; without the checkpoint the next start scans.
                self.sidecar.release_reserve()

    def tick(self, now_ns: int | None = None) -> None:
        """What time brings: expiry, interval syncs, checkpoints. Called by the volume; without a time a stream at rest is
        passed over for up to a second, so that a thousand of them cost next to nothing."""
        now: int = now_ns if now_ns is not None else self.clock()
        seen = (self.log.mark, self.consumers.position)
        if now_ns is None and seen == self._seen_by_upkeep and 0 <= now - self._upkeep_ns < RESTING_NS:
            return
        ages = self.config.max_age > 0 and self.expires_itself
        self._seen_by_upkeep, self._upkeep_ns = None if ages else seen, now
        if not self._closed and not self.read_only:
            upkeep.tick_unlocked(self, now)
        with self.lock:
            if not self._closed and not self.read_only:
                upkeep.tick(self, now)

    def check_writable(self) -> None:
        """Raise unless the store may be changed now."""
        self._check_open()
        self._check_whole()
        if self.read_only:
            raise ReadOnly(f"stream {self.name} was opened for reading; open the volume with mode='rw'")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"stream {self.name} was stopped; open it again")

    def with_reserve(self, action: Any) -> Any:
        """Run a removal; when the disk is full give the reserve back and try once more."""
        try:
            return action()
        except DiskFull:
            if not self.sidecar.release_reserve():
                raise
            return action()
