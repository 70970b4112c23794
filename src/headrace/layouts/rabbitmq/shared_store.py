"""`SharedStore`: the message store of a vhost, N.rdq files that all its queues write to.

    write    to the end of the current file; a file that has reached the limit is synced and followed by the next
    sync     shared by all who wait
    collect  files without a referenced message go; neighbours that are mostly garbage become one file

A merge writes the referenced records of both files under another name, syncs it, renames it over the left one and
then removes the right one. At every instant each message is in one of the files under its final name, so there is no
moment (as there is in RabbitMQ) at which a crash can lose one. What a merge or removal leaves out is what was acked;
those acks are synced before.

After a clean stop the files are known from the checkpoint and `headrace.index` says where each message lies; it is read
when the first stored message is asked for.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from itertools import pairwise

from headrace.errors import DiskFault, HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.group_commit import GroupCommit
from headrace.layouts.places import may_pass
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import Disk, DiskFile, RabbitStore, RabbitWrite
from headrace.layouts.rabbitmq.checkpoint import Stored
from headrace.layouts.rabbitmq.options import RabbitOptions

MERGING = "headrace.merging"


class SharedStore:
    """One vhost's messages. `gate` is held while records are written, read, or moved by a merge."""

    def __init__(self, disk: Disk, vhost_path: str, options: RabbitOptions) -> None:
        self.disk, self.vhost_path, self._options = disk, vhost_path, options
        self.directory = f"{vhost_path}/{files.PERSISTENT}"
        self.transient = f"{vhost_path}/{files.TRANSIENT}"
        self.kernel = RabbitStore(disk, self.directory, self.transient)
        self.gate = threading.RLock()
        self.damage: list[Damage] = []
        self.scanned = False
        self.may_collect = True
        """False when an index was damaged: what looks unreferenced may be all that is left of a message."""
        self._current, self._file, self._bytes = 0, None, 0
        self._mark = 0
        self._group = GroupCommit(self.directory, lambda: self._mark, self._sync)
        self.merges = 0
        self._stopped: Stored | None = None
        """From the checkpoint, as long as its index has not been read."""
        self._changed = False

    _file: DiskFile | None

    # Opening

    def scan(self) -> None:
        """Find every message; once."""
        with self.gate:
            if self.scanned:
                return
            stopped, self._stopped = self._stopped, None
            if stopped is not None and self._load_index(stopped):
                self.scanned = True
                return
            for directory in (self.directory, self.transient):
                self.damage += files.misplaced(self.disk, directory)
            for kind, directory, suffix in (
                ("rdq", self.directory, "rdq"),
                ("rdt", self.directory, "rdt"),
                ("transient", self.transient, "rdq"),
            ):
                for number in files.numbered(self.disk, directory, suffix):
                    path = f"{directory}/{number}.{suffix}"
                    try:
                        self.damage += files.damage_of(path, self.kernel.scan(kind, number))
                    except HeadraceError as problem:
                        if may_pass(problem, path):
                            raise
                        self.damage.append(Damage(path, 0, 0, "missing", str(problem)))
            self.scanned = True

    def resume(self, stopped: Stored, *, writing: bool) -> None:
        """From the checkpoint of a clean stop, instead of `scan` and `start_writing`."""
        for number, size, valid, records in stopped.files:
            self.kernel.restore_file(number, size, valid, records)
        self._stopped = stopped
        if writing:
            files.try_remove(self.disk, f"{self.directory}/{MERGING}")
            self._resume(stopped.current)

    def stop(self) -> Stored | None:
        """For the checkpoint: everything on disk, the index in its file. None when only the files themselves can show it."""
        self.sync()
        size = crc = 0
        if self._stopped is not None and not self._changed:
            size, crc = self._stopped.index_bytes, self._stopped.index_crc
        else:
            self.scan()
            dump = self.kernel.dump()
            if dump is None or not self.may_collect:
                return None
            if dump:
                self.disk.replace_file(f"{self.vhost_path}/{files.INDEX}", dump)
            size, crc = len(dump), zlib.crc32(dump)
        rows = [
            (row.number, row.bytes, row.referenced_bytes, row.records)
            for row in self.kernel.files()
            if row.kind == "rdq"
        ]
        return Stored(rows, self._current, size, crc)

    def _load_index(self, stopped: Stored) -> bool:
        path = f"{self.vhost_path}/{files.INDEX}"
        try:
            data = self.disk.read(path, stopped.index_bytes) if stopped.index_bytes else b""
            if (len(data), zlib.crc32(data)) == (stopped.index_bytes, stopped.index_crc):
                self.kernel.load_dump(data)
                return True
            detail = "its checksum is not that of the last stop; every store file is read instead"
        except HeadraceError as problem:
            detail = f"{problem}; every store file is read instead"
        self.damage.append(Damage(path, 0, 0, "metadata", detail))
        self.may_collect = False  # how many queues hold a message is not known in this life
        return False

    def start_writing(self) -> None:
        """After all references were counted: put right what a crash left, and open the file to write to.

        RabbitMQ appends an `.rdt` behind the zeros of an interrupted merge and never finds it again; here whatever
        its scanner would miss is copied into the current file first.
        """
        make_dirs(self.disk, self.directory)
        files.try_remove(self.disk, f"{self.directory}/{MERGING}")
        numbers = [row.number for row in self.kernel.files() if row.kind == "rdq"]
        newest = max(numbers, default=-1)
        if newest >= 0:
            self._rewrite(newest)
        self._open_new(newest + 1)
        records, ids = self.kernel.hidden()
        if ids:
            self._append(records)
            self.kernel.copied(self._current, self._bytes - len(records), ids)
            self._roll_if_full()
        self.sync()
        gone = False
        for row in self.kernel.files():
            if row.kind == "rdt":
                files.try_remove(self.disk, f"{self.directory}/{row.number}.rdt")
                self.kernel.forget_file("rdt", row.number)
                gone = True
        if gone:
            self.disk.sync_dir(self.directory)
        self.kernel.forget_unreferenced()

    def _size(self, number: int) -> int:
        entry = self.disk.entry(f"{self.directory}/{number}.rdq")
        return -1 if entry is None else entry.size

    def _resume(self, number: int) -> None:
        self._file = self.disk.open(f"{self.directory}/{number}.rdq", "write")
        self._current, self._bytes = number, len(self._file)
        self._roll_if_full()

    def _rewrite(self, number: int) -> None:
        """The newest file after a crash: what is in the page cache may not be on the disk, so it is written anew."""
        if self._size(number) == 0:
            return
        damaged = [found for found in self.damage if found.file == f"{self.directory}/{number}.rdq"]
        if damaged or not self.may_collect:
            path = f"{self.directory}/{number}.rdq"
            files.keep_copy(self.disk, self.vhost_path, path, self.disk.read(path))
        self._merge([number], number, lambda: None)

    # Writing

    def current(self) -> tuple[int, int]:
        """(bytes in the current file, limit): what a batch is cut by."""
        return self._bytes, self._options.msg_store_file_size_limit

    def write(self, write: RabbitWrite) -> None:
        """All records of a staged batch. If the disk fails nothing of it is referenced."""
        for number in range(write.chunks):
            if number:
                self._roll()
            data = write.chunk(number)
            if data:
                offset = self._bytes
                self._append(data)
                self.kernel.wrote(self._current, offset, write, number)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            raise DiskFault(f"{self.directory}: no store file is open; open the volume again")
        try:
            self._file.write_at(self._bytes, data)
        except HeadraceError:
            self._file.set_len(self._bytes)
            raise
        self._bytes += len(data)
        self._mark += 1
        self._changed = True

    def _roll_if_full(self) -> None:
        if self._bytes >= self._options.msg_store_file_size_limit:
            self._roll()

    def _roll(self) -> None:
        """A file is on disk before its successor's first record is written."""
        self.sync()
        self._open_new(self._current + 1)

    def _open_new(self, number: int) -> None:
        file = self.disk.open(f"{self.directory}/{number}.rdq", "create_new")
        self.disk.sync_dir(self.directory)
        self._file, self._current, self._bytes = file, number, 0
        self.kernel.add_file(number)
        self._changed = True

    def sync(self) -> None:
        """Return when every record written so far is on disk."""
        self._group.commit(self._mark)

    @property
    def dirty(self) -> bool:
        return self._group.durable < self._mark

    def _sync(self) -> None:
        file = self._file
        if file is not None:
            file.sync_data()

    # Garbage

    def garbage(self) -> tuple[int, int]:
        """(bytes of all files, bytes of referenced messages)."""
        rows = [row for row in self.kernel.files() if row.kind == "rdq"]
        return sum(row.bytes for row in rows), sum(row.referenced_bytes for row in rows)

    def collect(self, sync_acks: Callable[[], None]) -> int:
        """Remove dead files and merge neighbours while that is worth it; returns how many files went."""
        if not (self.scanned or self._stopped) or not self.may_collect:
            return 0
        went = self._remove_dead(sync_acks)
        while (pair := self._next_pair()) is not None:
            left, right = pair
            self.scan()
            if not self.may_collect:
                return went
            self._merge([left, right], left, sync_acks)
            self.disk.remove_file(f"{self.directory}/{right}.rdq")
            self.disk.sync_dir(self.directory)
            self.kernel.forget_file("rdq", right)
            self.merges += 1
            went += 1
        return went

    def _remove_dead(self, sync_acks: Callable[[], None]) -> int:
        dead = [
            row.number
            for row in self.kernel.files()
            if row.kind == "rdq" and row.referenced_bytes == 0 and row.number != self._current
        ]
        if not dead:
            return 0
        sync_acks()
        self._changed = True
        for number in dead:
            self.disk.remove_file(f"{self.directory}/{number}.rdq")
            self.kernel.forget_file("rdq", number)
        self.disk.sync_dir(self.directory)
        return len(dead)

    def _next_pair(self) -> tuple[int, int] | None:
        """The lowest neighbours whose messages fit into one file, if garbage has become the larger part."""
        limit = self._options.msg_store_file_size_limit
        rows = [row for row in self.kernel.files() if row.kind == "rdq"]
        total, valid = sum(row.bytes for row in rows), sum(row.referenced_bytes for row in rows)
        if total <= 2 * limit or (total - valid) / total <= self._options.msg_store_gc_garbage_fraction:
            return None
        for left, right in pairwise(rows):
            both = left.referenced_bytes and right.referenced_bytes
            fit = left.referenced_bytes + right.referenced_bytes <= limit
            if right.number != self._current and both and fit:
                return left.number, right.number
        return None

    def _merge(self, numbers: list[int], target: int, sync_acks: Callable[[], None]) -> None:
        self._changed = True
        data, ids = self.kernel.merged([("rdq", number) for number in numbers])
        sync_acks()  # what was left out is acked: the acks must outlive it
        temporary = f"{self.directory}/{MERGING}"
        file = self.disk.open(temporary, "write")
        file.set_len(0)
        file.write_at(0, data)
        file.sync_data()
        with self.gate:
            self.disk.rename(temporary, f"{self.directory}/{target}.rdq")
            self.disk.sync_dir(self.directory)
            self.kernel.took_over(target, data, ids)
