"""`Channel`: one channel as a Log. Positions are the channel's sequences, from 1.

append       encode → msgs.N.dat                        the slice rolls before a message that finds it full
commit       sync .dat → write .idx → sync .idx         an index entry on disk vouches for a synced record
limits       the oldest are dropped in memory; a slice's files go when all of it is dropped and another is there
"""

from __future__ import annotations

import logging
import re
import threading
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from headrace.errors import BadInput, KeyNeeded, ReadOnly, StoreClosed
from headrace.layouts.base import Damage, Log, LogState, Predicate, ScanTask, Ticket
from headrace.layouts.directories import make_dirs
from headrace.layouts.group_commit import GroupCommit
from headrace.layouts.nats_streaming import front
from headrace.layouts.nats_streaming._kernels import (
    Batch,
    DiskFile,
    stan_encode,
    stan_read,
    stan_seq_from_time,
)
from headrace.layouts.nats_streaming.home import Home
from headrace.layouts.nats_streaming.limits import slice_limits
from headrace.layouts.nats_streaming.marks import ChannelMark
from headrace.layouts.nats_streaming.names import HEAD, SUBS
from headrace.layouts.nats_streaming.opening import OpenedChannel
from headrace.layouts.nats_streaming.readers import ChannelReaders
from headrace.layouts.nats_streaming.scan_task import SliceTask, plan_slices
from headrace.layouts.nats_streaming.seal import Sealing, channel_key
from headrace.layouts.nats_streaming.slices import Slice, findings_to_damage
from headrace.layouts.nats_streaming.subscriptions import Subscriptions

LOG = logging.getLogger("headrace")
NO_LIMIT = (1 << 64) - 1
DAMAGE_MAX = 10_000
ROWS_AT_ONCE = 65_536
_SLICE = re.compile(r"/msgs\.\d+\.dat$")


class Channel(Log):
    """Get it from the volume. Thread-safe."""

    def __init__(self, home: Home, name: str, opened: OpenedChannel) -> None:
        self.name, self.home, self.directory = name, home, home.directory(name)
        self.slices, self.next_number = opened.slices, opened.next_number
        self.next = opened.next_sequence
        self.mark_file, self._damage = opened.mark_file, opened.damage
        self.limits = home.limits.of(name)
        self.slice_limits = slice_limits(home.options, self.limits)
        self.lock = threading.RLock()
        self.closed = False
        self.dropped_noted = False
        self._touched: list[Slice] = []
        self.messages = sum(found.count for found in self.slices)
        self.counted = sum(found.counted for found in self.slices)
        self.first = next((found.first for found in self.slices if found.count), self.next)
        self.last_time_ns = max((found.last_time_ns for found in self.slices), default=0)
        self.active_ns = home.clock()
        self._key = channel_key(home.key, name) if home.key else None
        self._sealing: Sealing | None = None
        self.group = GroupCommit(f"channel {name}", lambda: self.next, self._sync)
        self.group.raise_durable(self.next)
        self.subscriptions = Subscriptions(
            self.directory,
            opened.table,
            opened.subs_size,
            disk=home.disk,
            files=None if home.read_only else home.files,
            options=home.options,
            max_subs=self.limits.max_subs,
            begin=self.begin_life,
        )
        if opened.front > self.first:
            front.move(self, below=opened.front)

    @property
    def last(self) -> int:
        """The last sequence that was given out."""
        return self.next - 1

    @property
    def readers(self) -> ChannelReaders:
        return ChannelReaders(self)

    # Writing

    def append(self, batch: Batch, *, keep_positions: bool = False, lossy: bool = False) -> Ticket:
        """Write all messages. Subjects must be empty or the channel's name; a reply subject travels in the header
        `Nats-Streaming-Reply`. What has no place here is refused, or dropped with `lossy`."""
        with self.lock:
            self._check_writable()
            start, first = 0, self.next
            now = self.home.clock()
            while start < len(batch):
                taken, began = self._append_some(batch, start, now, keep_positions, lossy)
                first = began if start == 0 else first
                start += taken
            self.active_ns = now
            if not self.home.syncs:
                front.enforce(self)
            return Ticket(self.name, first, self.next, self.next)

    def append_copy(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """The same; what has no place here is dropped."""
        return self.append(batch, keep_positions=keep_positions, lossy=True)

    def _append_some(
        self, batch: Batch, start: int, now: int, keep_positions: bool, lossy: bool
    ) -> tuple[int, int]:
        current, limits = self._current(now), self.slice_limits
        msgs_left = limits.max_msgs - current.count if limits.max_msgs else NO_LIMIT
        bytes_left = limits.max_bytes - current.counted if limits.max_bytes else NO_LIMIT
        sealing = self._seal()
        records, entries, taken, first, following, first_ns, last_ns, counted, nonce = stan_encode(
            batch, start, self.name, self.next, keep_positions, now, self.last_time_ns, current.data_end,
            msgs_left, bytes_left, lossy, self.home.poly, sealing.parts() if sealing else None,
        )  # fmt: skip
        files = self.home.files
        if current not in self._touched[-1:]:
            self._touched.append(current)
        with files.use(current.data_path, "write") as file:
            file.write_at(current.data_end, records)
        files.wrote(current.data_path)
        if self.home.syncs:
            current.waiting.append(entries)
        else:
            self._write_index(current, entries)
        if sealing and nonce is not None:
            sealing.nonce = nonce
        if not current.count:
            current.first, current.first_time_ns = first, first_ns
        current.first_time_ns = min(current.first_time_ns, first_ns)
        if not self.messages:
            self.first = first
        current.last, current.last_time_ns = following - 1, max(current.last_time_ns, last_ns)
        current.count += taken
        current.counted += counted
        current.data_end += len(records)
        self.messages += taken
        self.counted += counted
        self.next, self.last_time_ns = following, last_ns
        return taken, first

    def _write_index(self, current: Slice, entries: bytes) -> None:
        with self.home.files.use(current.index_path, "write") as file:
            file.write_at(current.index_end, entries)
        self.home.files.wrote(current.index_path)
        current.indexed += len(entries) // 32

    def _seal(self) -> Sealing | None:
        options = self.home.options
        if options.encrypt and self._sealing is None:
            self._sealing = Sealing(self.home.key, self.name, options.encryption_cipher, self.next)
        return self._sealing

    def _current(self, now: int) -> Slice:
        """The slice that takes the next message; a new one when the last is full (all tests are ≥)."""
        limits = self.slice_limits
        if self.slices:
            last = self.slices[-1]
            full = last.count > 0 and (
                (0 < limits.max_msgs <= last.count)
                or (0 < limits.max_bytes <= last.counted)
                or (0 < limits.max_age <= now - last.first_time_ns)
            )
            if not full and not last.ended and last.index is None:
                self.begin_life()
                return last
        return self._roll()

    def _roll(self) -> Slice:
        self.begin_life()
        made = Slice(self.next_number, self.directory)
        make_files(self.home, self.directory, [made.data_path, made.index_path])
        self.next_number += 1
        self.slices.append(made)
        return made

    def begin_life(self) -> None:
        """Before the first write since it was opened: note up to where everything is sound."""
        if self.mark_file.begun:
            return
        last = self.slices[-1] if self.slices else None
        entry = self.home.disk.entry(f"{self.directory}/{SUBS}")
        self.mark_file.begin(
            ChannelMark(
                slice=last.number if last else self.next_number - 1,
                data=last.data_end if last else 0,
                records=entry.size if entry else 0,
            )
        )

    # Durability

    def acknowledge(self, mark: int) -> None:
        """What a ticket waits for: the sync in mode `sync`, the write alone in mode `interval`."""
        if self.home.syncs:
            self.commit(mark)

    def commit(self, mark: int | None = None) -> None:
        """Return once everything up to the mark (default: all so far) is on disk; callers share a sync."""
        if self.home.read_only:
            return
        self.group.commit(self.next if mark is None else mark)
        with self.lock:
            front.enforce(self)

    def _sync(self) -> None:
        files = self.home.files
        with self.lock:
            dirty, self._touched = self._touched, self._touched[-1:]
            taken = [(found, found.waiting) for found in dirty if found.waiting]
            for found, _ in taken:
                found.waiting = []
            self.subscriptions.flush()
            end = self.end_mark()
        paths = [found.data_path for found in dirty]
        for path in paths:
            files.sync(path)
        for found, entries in taken:
            with self.lock:
                self._write_index(found, b"".join(entries))
        for found in dirty:
            files.sync(found.index_path)
        files.sync(self.subscriptions.path)
        for directory in (self.directory, self.home.root):
            if directory in self.home.new_names:
                self.home.disk.sync_dir(directory)
                self.home.new_names.discard(directory)
        if self.home.marks is not None:
            self.home.marks.publish(self.name, end)

    def end_mark(self) -> tuple[int, int, int]:
        """(newest slice, bytes of it, last sequence)"""
        newest = self.slices[-1] if self.slices else None
        return (newest.number, newest.data_end, self.last) if newest is not None else (0, 0, self.last)

    # Reading

    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        """Messages from `first` on; in mode `sync` only what is on disk. Bad ones are passed over and reported."""
        position = max(first, self.first)
        below = self._visible()
        while position < below:
            batch, position = self._read_some(position, below, max_msgs, max_bytes)
            if filter is not None:
                batch = batch.filter(None, None, None, None, [filter])
            if len(batch):
                return batch
        return Batch.build(self.name, [])

    def _visible(self) -> int:
        self._check_open()
        return self.group.durable if self.home.syncs and not self.home.read_only else self.next

    def _read_some(self, position: int, below: int, max_msgs: int, max_bytes: int) -> tuple[Batch, int]:
        with self.lock:
            at = bisect_left(self.slices, position, key=lambda found: found.last if found.count else NO_LIMIT)
            if at == len(self.slices) or not self.slices[at].indexed:
                return Batch.build(self.name, []), below
            found = self.slices[at]
            following = next((later.first for later in self.slices[at + 1 : at + 2] if later.count), below)
            count, first = found.indexed, found.first
        with self.files_of(found) as (data, index):
            batch, reached, findings, not_opened = stan_read(
                data, index, count, first, position, min(below, max(following, first)), max_msgs,
                max_bytes, self.home.poly, self.home.options.file_crc, self._key,
            )  # fmt: skip
        if findings:
            self._note(findings_to_damage(found.data_path, found.index_path, findings))
        if not_opened:
            raise KeyNeeded(
                found.data_path, 0, "cipher: message authentication failed", "payloads sealed with the key given",
                "give the server's key (encryption_key, or its environment variable)",
            )  # fmt: skip
        return batch, max(reached, position + 1)

    @contextmanager
    def files_of(self, found: Slice) -> Generator[tuple[DiskFile, DiskFile]]:
        """The data file and the index of a slice, open."""
        with ExitStack() as stack:
            data = stack.enter_context(self.home.files.use(found.data_path))
            index = found.index or stack.enter_context(self.home.files.use(found.index_path))
            yield data, index

    def _note(self, found: list[Damage]) -> None:
        with self.lock:
            known = {(one.file, one.offset, one.kind) for one in self._damage}
            for one in found:
                if (one.file, one.offset, one.kind) not in known and len(self._damage) < DAMAGE_MAX:
                    self._damage.append(one)
                    LOG.warning("%s: %s at byte %d: %s", one.file, one.kind, one.offset, one.detail)

    def seq_from_time(self, time_ns: int) -> int:
        """The first sequence whose time is not before; last + 1 if there is none."""
        with self.lock:
            self._check_open()
            for found in self.slices:
                if not found.indexed or found.last_time_ns < time_ns or found.last < self.first:
                    continue
                with self.files_of(found) as (_, index):
                    sequence = stan_seq_from_time(index, found.indexed, time_ns)
                if sequence is not None:
                    return max(sequence, self.first)
            return self.next

    def state(self) -> LogState:
        """What the channel holds; bytes are counted as the product does, payload and 40 for each message."""
        with self.lock:
            self._check_open()
            oldest = next((f for f in self.slices if f.count and f.last >= self.first), None)
            times = (oldest.first_time_ns, self.last_time_ns) if oldest and self.messages else (None, None)
            if oldest and self.messages and oldest.first != self.first:
                times = (self._time_of_first(), self.last_time_ns)
            span = self.next - self.first
            return LogState(
                messages=self.messages,
                bytes=self.counted,
                first_seq=self.first,
                last_seq=self.last,
                first_time_ns=times[0],
                last_time_ns=times[1],
                num_subjects=1 if self.messages else 0,
                num_deleted=max(span - self.messages, 0) if self.messages else 0,
                consumers=len(self.subscriptions),
                lost_messages=sum(
                    (d.next_seq - d.first_seq)
                    for d in self._damage
                    if d.kind == "bad-record" and d.first_seq is not None and d.next_seq is not None
                ),
            )

    def _time_of_first(self) -> int | None:
        batch, _ = self._read_some(self.first, self.first + 1, 1, 1)
        return batch[0].time_ns if len(batch) else None

    def damage(self) -> list[Damage]:
        """What was found unsound since the channel was opened."""
        return list(self._damage)

    def unreachable_damage(self) -> list[Damage]:
        """And slices in which nothing is left: none of the tasks reads them."""
        found = super().unreachable_damage()
        lost = [each for each in self.damage() if each.costs_messages and _SLICE.search(each.file)]
        if lost:
            read = {task.data_path for task in self.scan_tasks() if isinstance(task, SliceTask)}
            found += [
                each
                for each in lost
                if each.file not in read and (each.next_seq is None or each.next_seq > self.first)
            ]
        return found

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """One task per slice that may hold a match."""
        self._check_open()
        return plan_slices(self, predicate or Predicate(), self._key)

    def batches(self, predicate: Predicate | None = None) -> Iterator[Batch]:
        """Every message that matches, read `file_read_buffer_size` at a time: small enough for the processor's cache."""
        want, ahead = predicate or Predicate(), max(self.home.options.file_read_buffer_size, 1)
        position = max(want.first or 0, self.first)
        if want.since_ns is not None:
            # By slices only: in a copy of another log times need not be in order.
            late = (s.first for s in self.slices if s.count and s.last_time_ns >= want.since_ns)
            position = max(position, next(late, self.next))
        below = min(self._visible(), want.next if want.next is not None else self.next)
        while position < below:
            batch, position = self._read_some(position, below, ROWS_AT_ONCE, ahead)
            if predicate is not None:
                batch = batch.filter(want.first, want.next, want.since_ns, want.until_ns, list(want.subjects))
            if len(batch):
                yield batch

    # The rest of the interface

    def remove(self, positions: Sequence[int]) -> Ticket:
        """Not possible here: the files have no mark for a single message that is gone."""
        raise BadInput(
            f"channel {self.name}: NATS Streaming keeps no marks for single messages; drop_front removes the oldest"
        )

    def drop_front(self, seq: int) -> int:
        """Drop everything below `seq`, also for later openings by Headrace; the real server would bring back what
        shares a slice with messages that stay."""
        with self.lock:
            self._check_writable()
            self.commit()
            return front.drop(self, seq)

    def tick(self) -> None:
        """Age, and what waits to be written or synced."""
        with self.lock:
            if self.closed or self.home.read_only:
                return
            self.subscriptions.flush()
            front.expire(self)

    def close(self) -> None:
        """Clean stop: everything synced, the life's mark removed."""
        with self.lock:
            if self.closed:
                return
            if not self.home.read_only:
                self.subscriptions.flush()
                if self.group.poisoned is None:
                    self._sync()
                    self.mark_file.end()
            self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"channel {self.name} was closed; open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if self.home.read_only:
            raise ReadOnly(f"{self.home.root} was opened for reading; open it with mode='rw'")
        if self.group.poisoned is not None:
            self.group.commit(self.next + 1)


def make_files(home: Home, directory: str, paths: list[str]) -> None:
    """New files with their heads. With syncs a name never stands for less than the whole head: the real server does
    not start over a file without one."""
    make_dirs(home.disk, directory, durable=home.syncs)
    for path in paths:
        file = home.disk.open(f"{path}.tmp" if home.syncs else path, "write")
        file.set_len(0)
        file.write_at(0, HEAD)
        if home.syncs:
            file.sync_data()
        else:
            home.files.wrote(path)
    if home.syncs:
        for path in paths:
            home.disk.rename(f"{path}.tmp", path)
        home.disk.sync_dir(directory)
    else:
        home.new_names |= {directory, home.root}
