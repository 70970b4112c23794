"""`RabbitLog`: one queue. A change goes to the journal, then into the map; the map is flushed into segments.

append   stage → store file (large messages) → journal.jif → map
commit   store synced → journal synced: then it is confirmed, and readers see it
flush    more than queue_index_max_journal_entries records, too much memory, or idle:
         N.idx of fully acked segments deleted, others appended to and synced → journal cleared
sleep    an idle queue keeps a few numbers per segment, as the checkpoint of a clean stop does; a segment is read
         again when something in it is used
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import DiskFault, HeadraceError, ReadOnly, StoreClosed, StorePoisoned
from headrace.layouts.base import Damage, Log, LogState, Predicate, ScanTask, Ticket
from headrace.layouts.group_commit import GroupCommit
from headrace.layouts.marks import NOTHING
from headrace.layouts.places import may_pass
from headrace.layouts.rabbitmq import files, segment_files
from headrace.layouts.rabbitmq._kernels import Batch, RabbitQueue, RabbitWrite
from headrace.layouts.rabbitmq.checkpoint import Rest
from headrace.layouts.rabbitmq.names import QueueName
from headrace.layouts.rabbitmq.readers import QueueReaders
from headrace.layouts.shortcuts import unreadable
from headrace.randomness import random_bytes

if TYPE_CHECKING:
    from headrace.layouts.rabbitmq.vhost import Vhost


_PENDING_MAX = 1 << 40
BUSY_BYTES = 1 << 20
"""A journal that has grown to this size before it is cleared will do so again."""


class RabbitLog(Log):
    """One queue of a vhost. Open it through `RabbitVolume`."""

    def __init__(self, vhost: Vhost, name: str, queue: QueueName, directory: str) -> None:
        self.vhost, self.name, self.queue, self.directory = vhost, name, queue, directory
        self.disk, self.options, self.read_only = vhost.disk, vhost.options, vhost.read_only
        self.journal_path = f"{directory}/{files.JOURNAL}"
        self.lock = threading.RLock()
        self.found: list[Damage] = []
        self._kernel: RabbitQueue | None = None
        self._asleep: LogState | None = None
        self._next = self._visible = self._mark = 0
        self._journal_bytes = 0
        self._held: list[tuple[int, int]] = []
        self._sent: list[int] = []
        self._renamed = False
        self._spare: str | None = None
        self._tail_unread = True
        self._closed = False
        self._index_files: int | None = None
        self._group = GroupCommit(name, lambda: self._mark, self._sync)
        self.used_ns = self.dirty_ns = 0
        self.recovered = vhost.read_only
        """False while, and if, opening for writing failed: then nothing is written."""
        self.next_deliver = 0
        self.resting: Rest | None = None
        """What the queue is while it is not awake; None while the files say more than these numbers."""

    @property
    def readers(self) -> QueueReaders:
        return QueueReaders(self)

    # The map

    @property
    def kernel(self) -> RabbitQueue:
        """The queue's map, loaded if it is not there."""
        if self._kernel is None:
            self._kernel = self._load()
        return self._kernel

    @property
    def awake(self) -> bool:
        return self._kernel is not None

    def fresh_kernel(self) -> RabbitQueue:
        return RabbitQueue(self.vhost.entry_count, random_bytes(16))

    def _load(self) -> RabbitQueue:
        kernel = self.fresh_kernel()
        if self.resting is not None:
            kernel.restore(self.resting.rows)
            kernel.raise_next(self.resting.next)
            self.resting = None
            self._warm(kernel, kernel.cold_of(self._sent))
            kernel.mark_sent(self._sent)
            return kernel
        self.found += files.misplaced(self.disk, self.directory)
        for number in files.numbered(self.disk, self.directory, "idx"):
            path = f"{self.directory}/{number}.idx"
            data = self._content(path, files.SEGMENT_BYTES_MAX)
            if data is not None:
                self.found += files.damage_of(path, kernel.load_segment(number, data))
        data = self._content(self.journal_path, files.JOURNAL_BYTES_MAX)
        if data is not None:
            self.found += files.damage_of(self.journal_path, kernel.load_journal(data))
        kernel.raise_next(files.saved_next(self.disk, self.directory))
        if self.vhost.lone:
            kernel.raise_next(self.note_lost(kernel.totals().next))
        self._take(kernel)
        if kernel.segments():
            self.vhost.store.scan()
            self.note_missing(kernel.reference(self.vhost.store.kernel, False))
        return kernel

    def _content(self, path: str, bytes_max: int) -> bytes | None:
        """A file of the queue; None when it is not there. For a reader one that cannot be read counts as lost."""
        try:
            return self.disk.read(path, bytes_max) if self.disk.entry(path) is not None else None
        except DiskFault as problem:
            if not self.read_only or may_pass(problem, path):
                raise
            self.found.append(unreadable(path, problem, "missing"))
            return None

    def _warm(self, kernel: RabbitQueue, numbers: list[int]) -> None:
        """Read segments that were known by their numbers only. What is unsound is put right, as in recovery."""
        from headrace.layouts.rabbitmq.recovery import mend

        stored = set(kernel.cold_stored()) if numbers else set[int]()
        for number in numbers:
            path = f"{self.directory}/{number}.idx"
            found: list[Damage] = []
            if self.disk.entry(path) is not None:
                findings, lost = kernel.load_for_reading(self.disk, self.directory, number)
                found = files.damage_of(path, findings)
                self.note_missing(lost)
            else:
                kernel.load_segment(number, b"")
                if not self.read_only:
                    self.found.append(Damage(path, 0, 0, "missing", "it went away while the queue was open"))
            if found and not self.read_only:
                data = self.disk.read(path)
                kernel.load_segment(number, mend(self, number, path, data, found))
            else:
                self.found += found
            if number in stored:
                self.vhost.store.scan()
                self.note_missing(kernel.reference_segment(number, self.vhost.store.kernel))

    def rest(self, resting: Rest) -> None:
        """From the checkpoint of a clean stop: nothing is read before it is used."""
        kernel = self.fresh_kernel()
        kernel.restore(resting.rows)
        kernel.raise_next(resting.next)
        self._renamed, self.recovered = True, True
        self._take(kernel)
        self._asleep, self.resting = self._state_of(kernel), resting

    def forget(self) -> None:
        """Back to what it was before `rest`."""
        self._asleep = self.resting = self._kernel = None
        self._next = self._visible = 0
        self.recovered = self.read_only

    def _take(self, kernel: RabbitQueue) -> None:
        self._next = self._visible = kernel.totals().next

    def adopt(self, kernel: RabbitQueue, next_seq: int, journal_bytes: int) -> None:
        """From recovery: a map that was loaded and repaired."""
        kernel.raise_next(next_seq)
        self._kernel, self._journal_bytes = kernel, journal_bytes
        self._renamed = True  # what an earlier life renamed may not be on disk
        self.recovered = True
        self._take(kernel)

    def note_missing(self, sequences: list[int]) -> None:
        """Messages that the index knows and no store file has."""
        self.found += files.missing_of(self.directory, sequences)

    @property
    def mark_name(self) -> str:
        """The queue among the marks."""
        return self.directory.rsplit("/", 1)[-1]

    def note_lost(self, following: int) -> int:
        """Report what a writer of ours had on disk and is not there; returns the sequence that it would have given next."""
        known, count, _ = self.vhost.before.of(self.mark_name) or NOTHING
        there = len(files.numbered(self.disk, self.directory, "idx"))
        if known > following:
            detail = f"messages {following} to {known - 1} were on disk; the index ends before them"
            self.found.append(Damage(self.directory, 0, 0, "missing", detail, following, known))
        elif there < count:
            detail = f"{count - there} of {count} index files are not there: their messages are lost"
            self.found.append(Damage(self.directory, 0, 0, "missing", detail))
        return known

    def publish_mark(self, *, gone: int = 0) -> None:
        """Say how far the queue is on disk; before index files go, so that their absence is no loss."""
        marks = self.vhost.marks
        if marks is None:
            return
        if self._index_files is None:
            self._index_files = len(files.numbered(self.disk, self.directory, "idx"))
        self._index_files -= gone
        (marks.retract if gone else marks.publish)(self.mark_name, (self._visible, self._index_files, 0))

    def check_writable(self) -> None:
        """Raise unless a change may be made now."""
        self._check(writing=True)

    def _check(self, *, writing: bool = False) -> None:
        if self._closed:
            raise StoreClosed(f"{self.name} was closed; open it again")
        if writing and self.read_only:
            raise ReadOnly(f"{self.name} was opened for reading; open the volume with mode='rw'")
        if writing and not self.recovered:
            raise DiskFault(f"{self.name}: could not be recovered for writing; open the volume again")
        if writing and self._group.poisoned is not None:
            raise StorePoisoned(f"{self.name}: a sync failed ({self._group.poisoned}); open the volume again")

    # Writing

    def append(self, batch: Batch, *, keep_positions: bool = False, ids: bytes = b"") -> Ticket:
        """Write all messages or none. `ids`: those of messages that another queue of the vhost has taken."""
        with self.lock:
            self._check(writing=True)
            ticket, _ = self.publish(batch, keep_positions, ids)
            return ticket

    def publish(self, batch: Batch, keep_positions: bool, ids: bytes) -> tuple[Ticket, bytes]:
        """`append`, and the ids that the messages were given (so that another queue can take the same)."""
        kernel, store = self.kernel, self.vhost.store
        if self._tail_unread:
            self._warm(kernel, kernel.cold_of([kernel.totals().next]))
            self._tail_unread = False
        now = self.vhost.clock() if self.options.timestamp_new_messages else 0
        with store.gate:
            store_bytes, store_limit = store.current()
            write = kernel.stage_publish(
                batch,
                store.kernel,
                self.queue.vhost.encode("utf-8", "surrogateescape"),
                self.queue.queue.encode("utf-8", "surrogateescape"),
                now,
                keep_positions,
                self.options.queue_index_embed_msgs_below,
                self.options.deliver_at_publish,
                ids,
                store_bytes,
                store_limit,
            )
            try:
                stores = write.chunks > 1 or bool(write.chunk(0))
                if stores:
                    store.write(write)
                leans = stores or bool(ids)  # another queue's write of the same bodies may not be synced yet
                self._write_journal(write, hold=leans and self.vhost.durability == "sync")
            except BaseException:
                kernel.abandon()
                raise
            kernel.apply(store.kernel)
        self._next = write.next
        return self._changed(write), write.ids

    def _changed(self, write: RabbitWrite) -> Ticket:
        self._mark += 1
        ticket = Ticket(self.name, write.first, write.next, self._mark)
        self.vhost.touched(self)
        totals = self.kernel.totals()
        if (
            totals.journal_records > self.options.queue_index_max_journal_entries
            or totals.journal_bytes > self.options.queue_index_max_journal_bytes
        ):
            self._flush_if_possible()
        if self.vhost.durability == "interval":
            self._visible = self._next
        return ticket

    def _write_journal(self, write: RabbitWrite, hold: bool) -> None:
        """To the journal's end. In mode `sync` an entry for a stored message waits until the store is synced, so that
        no power cut leaves an entry without its message."""
        start, end = write.journal
        if start == end:
            return
        if hold:
            self._held.append(write.journal)
            return
        self._put(write.journal)

    def _put(self, piece: tuple[int, int]) -> None:
        self._sync_journal_name()
        journal = self.vhost.handles.get(self.journal_path)
        try:
            self.kernel.write_journal(piece, journal, self._journal_bytes)
        except HeadraceError:
            journal.set_len(self._journal_bytes)
            raise
        self._journal_bytes += piece[1] - piece[0]

    def moves(self, positions: Sequence[int], *, ack: bool, record: bool = True) -> Ticket:
        """Deliver or ack records for the positions that are there."""
        with self.lock:
            self._check(writing=True)
            kernel, positions = self.kernel, list(positions)
            self._warm(kernel, kernel.cold_of(positions))
            write = kernel.stage_moves(positions, ack, record)
            try:
                self._write_journal(write, hold=False)
            except BaseException:
                kernel.abandon()
                raise
            kernel.apply(self.vhost.store.kernel)
            return self._changed(write)

    def remove(self, positions: Sequence[int]) -> Ticket:
        """Ack single messages; those that are gone already are passed over."""
        return self.moves(positions, ack=True)

    def drop_front(self, seq: int) -> int:
        """Ack everything below `seq`, on disk when it returns; returns how many went."""
        with self.lock:
            self._check(writing=True)
            self._warm(self.kernel, self.kernel.cold_below(seq))
            below = self.kernel.unacked_below(seq)
            if below:
                self.acknowledge(self.moves(below, ack=True).mark)
            return len(below)

    # Durability

    def acknowledge(self, mark: int) -> None:
        """Return when everything up to `mark` may be confirmed."""
        self._check()
        if self.vhost.durability == "sync":
            self._group.commit(mark)

    def sync(self) -> None:
        """Everything written so far, on disk."""
        self._group.commit(self._mark)

    @property
    def unsynced(self) -> bool:
        return self._group.durable < self._mark

    def _sync(self) -> None:
        with self.lock:
            seen, held = self._next, len(self._held)
        self.vhost.store.sync()
        with self.lock:
            for piece in self._held[:held]:
                self._put(piece)
            del self._held[:held]
            self._sync_journal_name()
            journal = self.vhost.handles.get(self.journal_path) if self._journal_bytes else None
        if journal is not None:
            journal.sync_data()
        with self.lock:
            self._visible = max(self._visible, seen)
            self.publish_mark()

    def _flush_if_possible(self) -> None:
        """The change itself is in the journal: a full disk only puts the flush off."""
        try:
            self.flush()
        except StorePoisoned:
            raise
        except DiskFault as problem:
            self.vhost.warn(f"{self.name}: the journal could not be flushed, it is tried again: {problem}")

    def flush(self) -> None:
        """Journal into segments. Afterwards the journal is empty and everything is on disk."""
        with self.lock:
            if self._kernel is None or self.read_only or not self.recovered:
                return
            self._check_not_poisoned()
            kernel = self._kernel
            plan = kernel.plan_flush()
            if not plan and not self._journal_bytes and not self._held:
                return
            sizes = {number: size for number, _, size, _ in kernel.segments()}
            self.vhost.store.sync()
            if self.vhost.durability == "sync" and self.unsynced and self._journal_bytes:
                # Recovery believes the journal where a half-written segment says something else.
                self.vhost.handles.get(self.journal_path).sync_data()
            self._save_next()
            written = self._append_segments(
                kernel, {number: sizes[number] for number, stays in plan if stays}
            )
            self._remove_segments([number for number, stays in plan if not stays and sizes[number]])
            self._clear_journal()
            kernel.flushed()
            for number, size in written.items():
                kernel.set_file_bytes(number, size)
            self._held.clear()
            if self.unsynced:
                # Until the empty journal is on disk, an older one without the last acks may come back.
                self._sync_journal_name()
            self._visible = self._next
            self._group.raise_durable(self._mark)
            self.publish_mark()

    def _check_not_poisoned(self) -> None:
        if self._group.poisoned is not None:
            raise StorePoisoned(f"{self.name}: a sync failed ({self._group.poisoned}); open the volume again")

    def _append_segments(self, kernel: RabbitQueue, sizes: dict[int, int]) -> dict[int, int]:
        """Write what is new into these segments, each of its present size; returns their new sizes."""
        written = segment_files.append(self.disk, self.directory, kernel, sizes)
        if not all(sizes.values()):
            # Before the mark counts them: a new file whose name is not on disk is no loss when it is not there.
            self.disk.sync_dir(self.directory)
            self._index_files = None
        return written

    def _remove_segments(self, gone: list[int]) -> None:
        """Segments whose messages are all acked."""
        if gone:
            self.publish_mark(gone=len(gone))
            for number in gone:
                files.try_remove(self.disk, f"{self.directory}/{number}.idx")
            self.disk.sync_dir(self.directory)

    def _clear_journal(self) -> None:
        """By an empty file under the same name: after a power cut there is the old journal, whole, or the new one.

        A busy queue takes two files in turn: inodes that come and go with every flush slow the making of all others
        (ext4 searches past those freed in the last minute). The old file is cut to nothing, and that is synced before
        its turn comes. Between the two renames there is no journal: recovery takes that for an empty one, and the
        segments hold everything by now.
        """
        if not self._journal_bytes:
            return
        fresh, used = (f"{self.directory}/{name}" for name in files.FRESH_JOURNALS)
        if self._spare is None:
            files.try_remove(self.disk, fresh)  # left by a crash, it may hold old records
            self.disk.open(fresh, "create_new")
        else:
            fresh, used = self._spare, fresh if self._spare == used else used
            self.disk.open(fresh, "write").sync_data()
        old = self.vhost.handles.get(self.journal_path)
        self.vhost.handles.forget(self.journal_path)
        self._renamed, self._spare = True, None
        if self._journal_bytes >= BUSY_BYTES:
            self.disk.rename(self.journal_path, used)
            self._journal_bytes = 0
            self.disk.rename(fresh, self.journal_path)
            old.set_len(0)
            self._spare = used
        else:
            self.disk.rename(fresh, self.journal_path)
            self._journal_bytes = 0

    def _drop_spare(self) -> None:
        if self._spare is not None:
            files.try_remove(self.disk, self._spare)
            self._spare = None

    def _sync_journal_name(self) -> None:
        """The new journal's name must be on disk before a record in it is worth anything."""
        if self._renamed:
            self.disk.sync_dir(self.directory)
            self._renamed = False

    def _save_next(self) -> None:
        """When the files will no longer show which sequence comes next, say so beside them first."""
        if self._next and self.kernel.next_after_flush() < self._next:
            path = f"{self.directory}/{files.NEXT}"
            text = f"{self._next}\n".encode()
            if files.read_small(self.disk, path) != text:
                self.disk.replace_file(path, text)

    # Reading

    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        """Unacked messages from `first` on; at most one segment's at once."""
        with self.lock:
            self._check()
            kernel, store = self.kernel, self.vhost.store
            self.vhost.touched(self)
            below = self._visible
            while True:
                while (cold := kernel.cold_from(first)) is not None and cold * self.vhost.entry_count < below:
                    self._warm(kernel, [cold])
                with store.gate:
                    batch, following, findings, lost = kernel.read(
                        self.disk, self.directory, store.kernel, first, max_msgs, max_bytes, below
                    )
                self.found += files.damage_of(self.directory, findings)
                if not findings:
                    self.note_missing(lost)
                if filter is not None:
                    batch = batch.filter(None, None, None, None, [filter])
                if len(batch) or following >= below:
                    return batch
                first = following

    def seq_from_time(self, time_ns: int) -> int:
        """The first message whose own time is not before; messages without one count as from 1970."""
        for batch in self.batches(Predicate()):
            late = batch.filter(None, None, time_ns, None, [])
            if len(late):
                return late.first_position
        return self._next

    def state(self) -> LogState:
        """Unacked messages; bytes are those of their bodies."""
        with self.lock:
            self._check()
            if self._kernel is None and self._asleep is not None:
                return self._asleep
            return self._state_of(self.kernel)

    def _state_of(self, kernel: RabbitQueue) -> LogState:
        totals = kernel.totals()
        first, last = kernel.first_live(), kernel.last_live()
        return LogState(
            messages=totals.messages,
            bytes=totals.bytes,
            first_seq=totals.next if first is None else first,
            last_seq=totals.next - 1 if last is None else last,
            num_deleted=0 if first is None or last is None else last + 1 - first - totals.messages,
            lost_messages=totals.lost,
        )

    @property
    def next_seq(self) -> int:
        """The sequence that the next message gets."""
        with self.lock:
            return max(self._next, self.kernel.totals().next)

    def damage(self) -> list[Damage]:
        """What was found unsound since the queue was opened."""
        with self.lock:
            self._check()
            _ = self.kernel
            return list(self.found)

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """One task per segment."""
        from headrace.layouts.rabbitmq.scan_task import plan_segments

        with self.lock:
            self._check()
            if not self.read_only:
                self.sync()
            self._warm(self.kernel, self.kernel.cold_stored())  # the tasks know which store files to read
            return plan_segments(self, self._visible, predicate or Predicate())

    # Life

    def sleep(self) -> None:
        """Flush, keep the numbers, give up the memory and the open file."""
        with self.lock:
            if self._kernel is None or self._closed or self.read_only:
                return
            self.flush()
            self._next = self.next_seq
            self._asleep = self.state()
            self._keep_segment_rows()
            self._drop_spare()
            self._sent = self._kernel.pending(_PENDING_MAX)
            self._kernel = None
            self.vhost.handles.forget(self.journal_path)

    def _keep_segment_rows(self) -> None:
        """After a flush: the segments' numbers are all that is needed of the map."""
        if self.recovered and not self._journal_bytes:
            self.resting, self._tail_unread = Rest(self.next_seq, self.kernel.rows()), True

    def close(self) -> None:
        """Everything on disk, then closed."""
        with self.lock:
            if self._closed:
                return
            try:
                if not self.read_only and self._kernel is not None:
                    self.flush()
                    self._keep_segment_rows()
                    self._drop_spare()
            finally:
                self._closed = True
                self._kernel = None
                self.vhost.handles.forget(self.journal_path)
