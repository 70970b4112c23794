"""`RocketVolume`: a store of RocketMQ, opened for reading or for writing.

One append goes to one place, whatever the topic: encode, one write to the commit log, 20 bytes per message to the queue's
file (not synced: made again from the log), keys to the index. Durability is that of the commit log.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from headrace.errors import BadInput, NotFound
from headrace.layouts import posix_lock
from headrace.layouts.base import Damage, Durability, Ticket
from headrace.layouts.directories import make_dirs
from headrace.layouts.directory_volume import DirectoryVolume
from headrace.layouts.group_commit import GroupCommit
from headrace.layouts.marks import NOTHING, Marks, MarksBefore, MarksBeside
from headrace.layouts.open_files import OpenFiles, SideBySide
from headrace.layouts.places import disk_given
from headrace.layouts.rocketmq import recovery
from headrace.layouts.rocketmq._kernels import (
    Batch,
    Disk,
    RocketIndex,
    RocketScan,
    rocketmq_encode,
)
from headrace.layouts.rocketmq.commit_log import CommitLog
from headrace.layouts.rocketmq.index_files import IndexFiles
from headrace.layouts.rocketmq.log import RocketQueue
from headrace.layouts.rocketmq.names import (
    ABORT,
    COMMIT_LOG,
    LOCK,
    OUR_LOCK,
    QUEUES,
    is_log_name,
    numbered,
    queue_dirs,
    split_name,
)
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.queue_files import QueueFiles
from headrace.record import Record

NS_PER_MS = 1_000_000
HOUR_MS = 3_600_000
LOG = logging.getLogger("headrace")


class RocketVolume(DirectoryVolume):
    """An opened store. Use `headrace.open`."""

    layout = "rocketmq"

    def __init__(
        self,
        path: str,
        *,
        mode: str = "r",
        create: bool = False,
        durability: Durability = "sync",
        options: RocketOptions | None = None,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.time_ns,
        maintenance: bool = True,
    ) -> None:
        super().__init__(mode, durability, clock)
        disk = disk_given(path, disk)
        self.disk, self._real = disk or Disk.real(path), disk is None
        self.path, self.options = path.rstrip("/") or "/", options or RocketOptions()
        self._host = _host(self.options.store_host)
        if not create and self.disk.entry(f"{self.path}/{COMMIT_LOG}") is None:
            raise NotFound(
                f"{self.path}: no commit log of RocketMQ there (no {COMMIT_LOG!r} directory; DLedger's is not read here); "
                "create=True makes one"
            )
        self.commit_log = CommitLog(self.disk, self.path, self.options.mapped_file_size_commit_log)
        self._queues: dict[str, RocketQueue] = {}
        self._side_by_side = SideBySide(parallel=self._real)
        self.files = OpenFiles(self.options.open_queues_max, self._side_by_side)
        self._published, self._beside = Marks(self.disk, self.path), MarksBeside(self.disk, self.path)
        self.durable_end: int | None = None
        self._last_store_ms, self._keyed, self._unsynced = 0, False, False
        self.commits = GroupCommit(self.path, lambda: self.commit_log.next, self._sync)
        self.index = IndexFiles(self.disk, self.path, self.options)
        if self.read_only:
            self._damage += self.commit_log.pass_over_unreadable()
            if self.disk.lock_holder(f"{self.path}/{OUR_LOCK}") is not None:
                self.follow()
            elif self.writer_pid() is None:
                self._damage += recovery.lost_end(self.disk, self.commit_log, self.synced_before())
            return
        self._take(create)
        if maintenance:
            self._start_upkeep()

    def _take(self, create: bool) -> None:
        if create:
            make_dirs(self.disk, f"{self.path}/{COMMIT_LOG}")
            make_dirs(self.disk, f"{self.path}/{QUEUES}")
        self._lock = self.disk.lock(f"{self.path}/{OUR_LOCK}", "headrace")
        try:
            if self._real:
                self._broker_lock = posix_lock.PosixLock(f"{self.path}/{LOCK}", "RocketMQ broker")
            clean = self.disk.entry(f"{self.path}/{ABORT}") is None
            self.disk.replace_file(f"{self.path}/{ABORT}", str(os.getpid()).encode())
            self._recover(clean, self.synced_before())
            self._published.begin()
            self._published.publish(COMMIT_LOG, (self.commit_log.next, 0, 0))
        except BaseException:
            self._release()
            raise

    def follow(self) -> bool:
        """A reader beside a writer of ours goes as far as that one has synced; whether there is more than before."""
        mark = self._beside.of(COMMIT_LOG)
        if not self.read_only or mark is None or mark[0] <= (self.durable_end or -1):
            return False
        self.durable_end = mark[0]
        self.commit_log.files = numbered(self.disk, self.commit_log.directory)
        return True

    def synced_before(self) -> int:
        """Up to which address the last writer of ours had synced the commit log; 0 if that is not known."""
        return (MarksBefore.read(self.disk, self.path).of(COMMIT_LOG) or NOTHING)[0]

    def _recover(self, clean: bool, synced: int) -> None:
        keys = self.options.message_index_enable
        found = recovery.recover(
            self.disk, self.path, self.commit_log, clean=clean, keys=keys and not clean, synced=synced
        )
        self.commit_log.next, self._last_store_ms = found.next, found.last_store_ms
        self._damage += found.damage
        for finding in found.damage:
            LOG.warning("%s: %s at byte %d: %s", finding.file, finding.kind, finding.offset, finding.detail)
        touched: dict[str, QueueFiles] = {}
        for scan in found.scans:
            for topic, queue, first, entries in scan.queues():
                name = f"{topic}-{queue}"
                if name not in touched:
                    touched[name] = self._files(name)
                recovery.dispatch(touched[name], first, entries)
                touched[name].park()
        unsure = list[str]() if clean else list(queue_dirs(self.disk, self.path))
        for name in unsure:
            if name not in touched:
                touched[name] = self._files(name)
            recovery.cut_queue(touched[name], found.next, found.tails)
            touched[name].park()
        # A clean stop says that queues are whole, also those that nobody opens until then.
        if problems := self._side_by_side.each(QueueFiles.finish, touched.values()):
            raise problems[0]
        self.index.begin()
        if keys and not clean:
            after = self.index.end_address
            for scan in found.scans:
                first, total = scan.keys_upto(after), scan.keys_upto(2**62)
                self.index.put(partial(_put_scanned, scan), first, total, self.clock())

    def _files(self, name: str) -> QueueFiles:
        topic, queue = split_name(name)
        directory = f"{self.path}/{QUEUES}/{topic}/{queue}"
        return QueueFiles(self.disk, directory, self.options.mapped_file_size_consume_queue)

    # Logs

    def logs(self) -> list[str]:
        """`<topic>-<queue>` of every queue."""
        self._check_open()
        return sorted({*queue_dirs(self.disk, self.path), *self._queues}, key=split_name)

    def open(self, name: str) -> RocketQueue:
        """One queue; opened once, shared afterwards."""
        with self._mutex:
            self._check_open()
            if name not in self._queues:
                if not is_log_name(name) or not self._exists(name):
                    raise NotFound(
                        f"{self.path}: no log {name!r}; there are: {', '.join(self.logs()[:20]) or 'none'}"
                    )
                files = self._files(name)
                if self.read_only and (problems := files.problems()):
                    self._damage += problems
                    size = self.options.mapped_file_size_consume_queue
                    files = recovery.queue_from_log(self.disk, self.commit_log, *split_name(name), size)
                self._queues[name] = RocketQueue(self, name, files, files.end(self.durable_end))
            return self._queues[name]

    def create(self, name: str, **options: Any) -> RocketQueue:
        """A new queue (or the existing one). Queues have no options of their own."""
        return self.create_many([name], **options)[0]

    def create_many(self, names: Sequence[str], **options: Any) -> list[RocketQueue]:
        """The same for many, which costs less than one by one: their syncs run side by side."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            if options:
                raise BadInput("a queue of RocketMQ has no options of its own; give them to the store")
            absent = [name for name in dict.fromkeys(names) if not self._exists(name)]
            if absent:
                made = [self._files(name).directory for name in absent]
                for directory in made:
                    self.disk.create_dir_all(directory)
                topics = dict.fromkeys(directory.rpartition("/")[0] for directory in made)
                if problems := self._side_by_side.each(self.disk.sync_dir, topics):
                    raise problems[0]
                self.disk.sync_dir(f"{self.path}/{QUEUES}")
            return [self.open(name) for name in names]

    def _exists(self, name: str) -> bool:
        topic, queue = split_name(name)
        entry = self.disk.entry(f"{self.path}/{QUEUES}/{topic}/{queue}")
        return name in self._queues or (entry is not None and entry.is_dir)

    def delete(self, name: str) -> None:
        """Remove a queue's files. Its messages stay in the commit log until their file goes."""
        with self._mutex:
            self.open(name).check_writable()
            directory = self._queues.pop(name).files.directory
            self.disk.remove_dir_all(directory)
            self.disk.sync_dir(directory.rpartition("/")[0])

    def append(self, log: RocketQueue, batch: Batch, keep_positions: bool) -> Ticket:
        """Encode for the next address of the shared log, write, dispatch."""
        self.files.use(log)
        with self._mutex:
            self._check_open()
            log.check_writable()
            if self.commits.poisoned is not None:
                self.commits.commit(self.commit_log.next + 1)  # raises, with the reason
            now_ms = max(self.clock() // NS_PER_MS, self._last_store_ms)
            encoded = rocketmq_encode(
                *(batch, log.topic, log.queue, log.next, keep_positions),
                *(self.commit_log.next, self.commit_log.file_bytes, now_ms),
                *(self.options.max_message_size, self._host, self.options.enabled_append_prop_crc),
            )
            first = log.next
            if encoded.messages:
                self.commit_log.append(encoded)
                log.files.write(first, encoded.entries())
                log.next, self._last_store_ms, self._unsynced = first + encoded.messages, now_ms, True
                if encoded.keys and self.options.message_index_enable:
                    self.index.put(
                        lambda index, start: index.put(encoded, start), 0, encoded.keys, self.clock()
                    )
            return Ticket(log.name, first, log.next, self.commit_log.next)

    def find_by_key(self, topic: str, key: str, max_hits: int = 64) -> list[Record]:
        """Messages of a topic with that key, newest first: index, then the log itself is asked."""
        found: list[Record] = []
        reader = self.commit_log.reader()
        for address in self.index.find(topic, key, max_hits):
            who = reader.identify(address)
            if who is None or who.topic != topic or f"{topic}-{who.queue}" not in self.logs():
                continue
            batch = self.open(f"{topic}-{who.queue}").read(who.offset, 1)
            hits = [r for r in batch if r.position == who.offset]
            found += [r for r in hits if key in (r.key or b"").decode("utf-8", "replace").split(" ")]
        return found

    # Durability and life

    def _sync(self) -> None:
        self._unsynced, point = False, self.commit_log.next
        self.commit_log.sync()
        self._published.publish(COMMIT_LOG, (point, 0, 0))

    def commit(self, tickets: Iterable[Ticket]) -> None:
        """One sync of the commit log serves all queues."""
        self._check_open()
        mark = max((ticket.mark for ticket in tickets), default=0)
        if self.durability == "sync":
            self.commits.commit(mark)

    def tick(self) -> None:
        """What time brings: interval syncs, and files whose time is over."""
        if self._unsynced:
            self.commits.commit(self.commit_log.next)
        self.apply_retention()

    def apply_retention(self) -> int:
        """Delete whole commit-log files older than fileReservedTime, for all topics at once; how many went."""
        hours = self.options.file_reserved_time
        if hours < 0:
            return 0
        count = 0
        with self._mutex:
            starts = list(self.commit_log.files)
            for start, following in itertools.pairwise(starts):
                reader = self.commit_log.reader()
                newest = reader.store_time(following, 1 << 20)
                if newest is None or self.clock() // NS_PER_MS - newest <= hours * HOUR_MS:
                    break
                self.disk.remove_file(self.commit_log.path(start))
                self.disk.sync_dir(self.commit_log.directory)
                del self.commit_log.files[start]
                count += 1
            if count:
                for name in self._queues:
                    self._queues[name] = RocketQueue(self, name, self._files(name), self._queues[name].next)
        return count

    @property
    def _upkeep_every_s(self) -> float:
        return self.options.flush_interval_commit_log / 1000

    def _upkeep(self) -> None:
        self.tick()

    def writer_pid(self) -> int | None:
        """The process that has the store open for writing."""
        held = self.disk.lock_holder(f"{self.path}/{OUR_LOCK}")
        if held is not None:
            return held.pid
        return posix_lock.holder(f"{self.path}/{LOCK}") if self._real else None

    def own_damage(self) -> list[Damage]:
        """What was found outside the logs' own messages, so far."""
        return list(self._damage)

    def damage(self) -> list[Damage]:
        """What recovery and readers found."""
        self._check_open()
        return [*self._damage, *(finding for queue in self._queues.values() for finding in queue.damage())]

    def _stop_logs(self) -> None:
        """Everything synced, the checkpoint written; last the file `abort` goes."""
        try:
            if not self.read_only:
                self._finish()
        finally:
            for queue in self._queues.values():
                queue.close()
            self.index.close()
            self._side_by_side.close()

    def _finish(self) -> None:
        self.commits.commit(self.commit_log.next)
        problems = self._side_by_side.each(lambda queue: queue.files.finish(), self._queues.values())
        if problems:
            raise problems[0]
        recovery.write_checkpoint(self.disk, self.path, self._last_store_ms, self.commit_log.next)
        recovery.write_clean_end(self.disk, self.path, self.commit_log, self._last_store_ms)
        self.disk.remove_file(f"{self.path}/{ABORT}")
        self.disk.sync_dir(self.path)


def _put_scanned(scan: RocketScan, index: RocketIndex, start: int) -> int:
    return index.put_scanned(scan, start)


def _host(text: str) -> bytes:
    """An address as messages carry it: four bytes, and the port as four."""
    host, _, port = text.rpartition(":")
    try:
        return ipaddress.IPv4Address(host).packed + int(port).to_bytes(4, "big")
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"storeHost {text!r}: an IPv4 address and a port, for instance 127.0.0.1:10911"
        ) from error
