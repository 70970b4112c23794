"""`FileStreamStore`: the JetStream store of one stream, over the blocks that the core keeps.

One call here is one decision per batch: which block, whether it is full, what the limits evict, when a file
may go. The work on each message is the core's.

    append → BlockLog.append (encode, hash, one write) → roll when full → limits → Ticket
    commit → one fdatasync for all who wait → files that died before it are unlinked
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

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
    ConsumerStore,
    Damage,
    Durability,
    LogState,
    Predicate,
    ScanTask,
    SimpleState,
    SnapshotResult,
    Storage,
    StorageUpdate,
    StreamStore,
    Ticket,
)
from headrace.layouts.jetstream import removal, snapshot, upkeep
from headrace.layouts.jetstream._kernels import Batch, BlockLog, Disk, js_scan_block
from headrace.layouts.jetstream.admission import limits_meet, refuse_what_does_not_fit
from headrace.layouts.jetstream.config import StreamConfig, block_size
from headrace.layouts.jetstream.config_json import encode_stream_meta
from headrace.layouts.jetstream.consumers import Consumers
from headrace.layouts.jetstream.meta import write_meta
from headrace.layouts.jetstream.opening import OpenedStream, take_messages
from headrace.layouts.jetstream.paths import INDEX, block_numbers
from headrace.layouts.jetstream.scan_task import plan_blocks
from headrace.layouts.jetstream.scrub import Scrubber
from headrace.layouts.jetstream.sidecar import CleanStamp, Sidecar
from headrace.record import Record

DELETED_LISTED_MAX = 1_000_000
TAKEN_BACK_NS = 1
"""The time in a tombstone that says: this message was never stored, its batch failed. Others say when it was stored."""

_Block = tuple[int, int, int, int, int, int, int, int, int]


class FileStreamStore(StreamStore):
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
        self.consumers: Consumers = opened.consumers
        self.sidecar = Sidecar(disk, stream_dir)
        self.durability: Durability = durability
        self._storage: Storage = storage
        self.read_only, self.clock = read_only, clock
        self.lock = threading.RLock()
        self._block_bytes_given = block_bytes
        self.block_bytes = block_bytes or block_size(self.config)
        self.dead: list[upkeep.DeadBlock] = []
        self.unburied: list[int] = []
        self._half_done: str | None = None
        self.dirty = not opened.clean
        self.sync_every_ns, self.last_sync_ns, self.last_index_ns = sync_every_ns, clock(), clock()
        self._closed = False
        self.scrubber = Scrubber(self)
        self._damage = opened.damage
        self._handler: StorageUpdate | None = None
        self.trimmed = 0
        """Messages that the limit per subject took, wherever they were, since the store was opened."""
        self.before_unlink: Callable[[], None] | None = None
        """Called before files of messages go: what somebody needs of them must be saved first."""
        self.on_checkpoint: Callable[[int], None] | None = None
        """Called now and then, and before a message is overwritten: what records up to that sequence tell is saved."""
        self.complete: int = self.log.totals()[2]
        """The last sequence of a batch that was written whole. One that fails is taken back up to here."""

    @property
    def incarnation(self) -> str:
        """When the stream was made."""
        return str(self.created_ns)

    # Writing

    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Store all messages of the batch, or none if a limit refuses. If the disk fails in the middle, what was
        written before is taken back, or stays if it cannot be; nothing of the batch is acknowledged.

        With `keep_positions` the batch's own positions are taken (they must grow).
        """
        with self.lock:
            if self._closed or self._half_done is not None or self.read_only:
                self.check_writable()
            if self.config.discard == "new" or self.config.sealed:
                refuse_what_does_not_fit(self, batch)
            return self._append_in_order(batch, keep_positions)

    def _append_in_order(self, batch: Batch, keep_positions: bool) -> Ticket:
        """As if the messages came one by one: in parts where one limit may see what the other one does. A disk that fails
        between parts leaves those before it."""
        if len(batch) < 2 or not limits_meet(self, batch):
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
                stored, begin, next_seq, size, mark, _, out, out_bytes = self.log.append(
                    batch, start, now, keep_positions, self.block_bytes, limit
                )
            except (DiskFault, StorePoisoned):
                self._take_back(first, next_seq)
                raise
            first = first or begin
            start, stored_bytes = start + stored, stored_bytes + size
            trimmed, trimmed_bytes = trimmed + out, trimmed_bytes + out_bytes
            if start >= total:
                break
            try:
                upkeep.roll(self)
            except (DiskFault, StorePoisoned):
                self._take_back(first, next_seq)
                raise
        self.written(total, first, next_seq, stored_bytes, trimmed, trimmed_bytes)
        return Ticket(self.name, first, next_seq, mark)

    @property
    def takes_at_once(self) -> bool:
        """Whether messages may go straight into the newest block, where they fit: `written` is told afterwards. Not so
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
            out, out_bytes = self.apply_front_limits()
        if trimmed or out:
            upkeep.bury_dead(self)
        if self._handler is not None:
            self.tell(
                count - trimmed - out, stored_bytes - trimmed_bytes - out_bytes, first if count == 1 else 0
            )

    def _take_back(self, first: int, next_seq: int) -> None:
        """A batch is stored whole or not at all: what was written before the disk refused is removed again. Where not
        even that can be written it stays, as it would come back with the next start; nobody was told."""
        if not first:
            return
        begun = range(first, next_seq)
        try:
            self.with_reserve(lambda: self.log.write_tombstones([(seq, TAKEN_BACK_NS) for seq in begun]))
        except (DiskFault, StorePoisoned):
            self.dirty, self.complete = True, next_seq - 1
        else:
            self.log.forget(begun)

    def store_msg(self, subject: str, hdr: bytes | None, msg: bytes) -> tuple[int, int]:
        """Store one message; returns (sequence, time in ns). Durable after `commit`."""
        with self.lock:
            ticket = self.append(Batch.build(subject, [msg], [hdr] if hdr else None))
            return ticket.first, self.log.totals()[4]

    def store_raw_msg(self, subject: str, hdr: bytes | None, msg: bytes, seq: int, ts: int) -> None:
        """Store with a given sequence and time; skipped sequences count as deleted."""
        headers = [hdr] if hdr else None
        self.append(Batch.build(subject, [msg], headers, [ts], [seq]), keep_positions=True)

    def skip_msg(self, seq: int | None = None) -> int:
        """Use up the next sequence (or all up to `seq`) without a message; returns the last one used."""
        with self.lock:
            self.check_writable()
            target = seq if seq is not None else self.log.totals()[2] + 1
            if target <= self.log.totals()[2]:
                raise BadInput(f"sequence {target} is not above the last one, {self.log.totals()[2]}")
            self.log.skip(target, self.clock())
            self.dirty, self.complete = True, target
            return target

    def apply_front_limits(self) -> tuple[int, int]:
        """Evict the oldest until max_msgs and max_bytes hold; age is `upkeep`'s. `discard: new` evicts nothing."""
        config = self.config
        if config.discard == "new" or (config.max_msgs <= 0 and config.max_bytes <= 0):
            return 0, 0
        msgs, size, *_ = self.log.totals()
        over = 0 < config.max_msgs < msgs or 0 < config.max_bytes < size
        if not over:
            return 0, 0
        limit = config.max_msgs if config.max_msgs > 0 else None
        return self.log.evict_front(limit, config.max_bytes if config.max_bytes > 0 else None, None, None)

    # Durability

    def commit(self, mark: int | None = None) -> None:
        """Return once everything up to the mark (default: all so far) is on disk."""
        if self.read_only or self._storage == "memory":
            return
        target = mark if mark is not None else self.log.totals()[3]
        if self.log.durable()[0] < target:
            self.log.commit(target)
            self.publish()
        if self.dead:
            with self.lock:
                upkeep.unlink_dead(self)

    def acknowledge(self, mark: int) -> None:
        """What a ticket waits for: the sync in mode `sync`, the write alone in mode `interval`."""
        if self.durability == "sync":
            self.commit(mark)

    def publish(self) -> None:
        """Tell readers beside this writer how far they may read."""
        last = self.log.durable()[1]
        block = self.log.newest()
        self.sidecar.publish_mark(block[0], block[1], last)

    @property
    def poisoned(self) -> bool:
        """A sync or a change of several files failed: nothing is acknowledged until `heal` or opening again."""
        return self._half_done is not None or self.log.poisoned()

    def heal(self) -> None:
        """After a failed sync: write what is in doubt again, into a new block, and go on."""
        with self.lock:
            self._check_whole()
            blocks = self.log.blocks()
            self.log.rewrite_tail(blocks[-1][0] + 1)
            self.publish()
            upkeep.bury_dead(self)
            self.save_beside()  # messages that are gone already were not written again

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
            self.log, self.dead, self.unburied, self.dirty = seen.log, [], [], True
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
        below = self.log.durable()[1] + 1 if durable_only else None
        return self.log.read(first, max_msgs, max_bytes, filter, below)

    def history(self, wanted: Callable[[_Block], bool]) -> Generator[Batch]:
        """Every sound record of blocks (as `log.blocks()` shows them), the newest block first: removed messages
        are among them, those of a batch that failed are not. Files that only wait to go are always read."""
        listed = {block[0]: block for block in self.log.blocks()}
        never_stored: set[int] = set()
        for number in reversed(block_numbers(self.disk, self.msgs_dir)):
            block = listed.get(number)
            if block is not None and not wanted(block):
                continue
            cipher = self.log.cipher_of(number) if block is not None else None
            path = f"{self.msgs_dir}/{number}.blk"
            scan = js_scan_block(self.disk, path, self.name, number, cipher=cipher)
            never_stored.update(seq for seq, time_ns in scan.tombstones if time_ns == TAKEN_BACK_NS)
            batch = scan.batch
            if never_stored:
                batch = batch.select(bytes(seq not in never_stored for seq in batch.positions()))
            yield batch

    def load_msg(self, seq: int) -> Record:
        """One message. MessageNotFound if removed, EndOfStream beyond the last."""
        found = self.log.load(seq)
        if found is None:
            self._check_open()
            if seq > self.log.totals()[2]:
                raise EndOfStream(f"stream {self.name}: {seq} is beyond the last sequence")
            raise MessageNotFound(f"stream {self.name}: no message {seq}")
        return Record(found[0], found[1], found[2], found[4], found[3])

    def load_msgs(self, seqs: Sequence[int]) -> Batch:
        """Many at once, in the order asked; absent ones are left out."""
        self._check_open()
        return self.log.load_many(list(seqs))

    def load_last_msg(self, subject: str) -> Record:
        """The newest message on a subject (wildcards allowed)."""
        found = self.log.last_match(subject)
        if found is None:
            raise MessageNotFound(f"stream {self.name}: no message on {subject}")
        return Record(found[0], found[1], found[2], found[4], found[3])

    def load_next_msg(self, filter: str, start: int) -> Record:
        """The first message at or after `start` that matches."""
        found = self.log.next_match(filter, start)
        if found is None:
            raise EndOfStream(f"stream {self.name}: nothing on {filter} from {start} on")
        return Record(found[0], found[1], found[2], found[4], found[3])

    def seq_from_time(self, time_ns: int) -> int:
        """The first sequence whose time is not before `time_ns`; last + 1 if there is none."""
        return self.log.seq_from_time(time_ns)

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
        msgs, size, first, first_time, last, last_time, subjects, num_deleted, _ = self.log.state()
        lost = [f for f in self.log.findings() if f[1] in ("bad-record", "unsound-tail")]
        newborn = last == 0
        return LogState(
            messages=msgs,
            bytes=size,
            first_seq=0 if newborn else first,
            last_seq=last,
            first_time_ns=first_time,
            last_time_ns=last_time or None,
            num_subjects=subjects,
            num_deleted=num_deleted,
            deleted=deleted,
            consumers=len(self.consumers),
            lost_messages=sum(1 for f in lost if f[1] == "bad-record"),
            lost_bytes=sum(f[3] for f in lost),
        )

    def filtered_state(self, seq: int, subject: str) -> SimpleState:
        """Messages from `seq` on that match the filter ("" = all)."""
        return SimpleState(*self.log.filtered_state(seq, subject))

    def subjects_state(self, filter_subject: str) -> Mapping[str, SimpleState]:
        """Per subject that matches the filter: messages, first, last."""
        found = self.log.subjects_state(filter_subject)
        return {subject: SimpleState(*counts) for subject, counts in found.items()}

    def type(self) -> Storage:
        """`file` or `memory`."""
        return self._storage

    def utilization(self) -> tuple[int, int]:
        """(bytes on disk, bytes of live messages)."""
        state = self.log.state()
        return state[8], state[1]

    def note_damage(self, found: Damage) -> None:
        """Something beside the messages is not sound; `damage` tells."""
        self._damage = [*self._damage, found]

    def damage(self) -> list[Damage]:
        """What was found unsound since the store was opened."""
        found = list(self._damage) + self.consumers.damage()
        for number, kind, offset, length, first, following, detail in self.log.findings():
            path = f"{self.msgs_dir}/{number}.blk"
            found.append(Damage(path, offset, length, kind, detail, first, following))
        return found

    # Removing

    def remove(self, positions: Sequence[int]) -> Ticket:
        """Remove single messages (tombstones); those gone already are passed over."""
        return removal.remove(self, positions)

    def remove_msg(self, seq: int) -> bool:
        """Remove; the bytes stay in the file. False if there was nothing."""
        before = self.log.totals()[0]
        self.remove([seq])
        return self.log.totals()[0] < before

    def erase_msg(self, seq: int) -> bool:
        """Remove and overwrite the bytes with random ones."""
        return removal.erase(self, seq)

    def drop_front(self, seq: int) -> int:
        """Remove everything below `seq`."""
        return self.compact(seq)

    def purge(self) -> int:
        """Remove all messages; first becomes last + 1."""
        return removal.purge(self)

    def purge_ex(self, subject: str, seq: int, keep: int) -> int:
        """Purge by subject filter, below `seq`, keeping the newest `keep`."""
        return removal.purge_ex(self, subject, seq, keep)

    def compact(self, seq: int) -> int:
        """Remove everything below `seq`; past the end it moves the next sequence to `seq`."""
        return removal.compact(self, seq)

    def truncate(self, seq: int) -> None:
        """Remove everything above `seq`; the next sequence is seq + 1."""
        removal.truncate(self, seq)

    # Configuration and life

    def register_storage_updates(self, handler: StorageUpdate | None) -> None:
        """Be told of every change, once per batch."""
        self._handler = handler

    def tell(self, messages: int, size: int, seq: int = 0, subject: str = "") -> None:
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
            self.write_index()
            write_meta(self.disk, self.stream_dir, self.name, encode_stream_meta(config, self.created_ns))
            self.config = config
            self.block_bytes = self._block_bytes_given or block_size(config)
            upkeep.apply_limits(self)

    def consumer_store(self, name: str, config: Any) -> ConsumerStore:
        """Open or create the state of a consumer."""
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
        self.log.settled()

    def delete(self) -> None:
        """Remove the stream with all its files; half of it never shows up again."""
        with self.lock:
            self.check_writable()
            self._closed = True
            self.consumers.stop()
            self.log.end_writer()
            parent, _, base = self.stream_dir.rpartition("/")
            hidden = f"{parent}/.{base}"
            if self.disk.entry(hidden) is not None:
                self.disk.remove_dir_all(hidden)
            self.disk.rename(self.stream_dir, hidden)
            self.disk.sync_dir(parent)
            self.disk.remove_dir_all(hidden)

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
            self.log.commit(self.log.totals()[3])
            self.publish()
            upkeep.unlink_dead(self)
            number = self.log.newest()[0]
            self.log.end_writer()
            try:
                upkeep.write_guard(self, number)
                index = self.log.encode_index()
                self.disk.replace_file(f"{self.msgs_dir}/{INDEX}", index)
                sizes = {block[0]: block[5] for block in self.log.blocks()}
                self.sidecar.write_stamp(CleanStamp(index[-8:].hex(), self.log.totals()[2], sizes))
            except DiskFault:
                # Everything is synced; without the checkpoint the next start scans.
                self.sidecar.release_reserve()

    def tick(self, now_ns: int | None = None) -> None:
        """What time brings: expiry, interval syncs, checkpoints. Called by the volume."""
        now: int = now_ns if now_ns is not None else self.clock()
        if not self._closed and not self.read_only:
            self.consumers.tick(now)  # it writes files: nobody who appends should wait for that
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
