"""The commit log's files while they are written: one position, one open file, one stream of syncs for all queues."""

from __future__ import annotations

import threading

from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.rocketmq._kernels import Disk, DiskFile, RocketEncoded, RocketReader
from headrace.layouts.rocketmq.names import COMMIT_LOG, misplaced, numbered
from headrace.layouts.shortcuts import problem_of

ANY_SIZE = 1 << 62


class CommitLog:
    """Files of one size, named by the address of their first byte."""

    def __init__(self, disk: Disk, root: str, file_bytes: int) -> None:
        self.disk, self.directory = disk, f"{root}/{COMMIT_LOG}"
        self.files = numbered(disk, self.directory)
        self.file_bytes = self._size_of_files(file_bytes)
        self.next = 0
        self._newest: tuple[int, DiskFile] | None = None
        self._dirty: list[DiskFile] = []
        self._reader: tuple[tuple[int, ...], RocketReader] | None = None
        self._lock = threading.Lock()

    def _size_of_files(self, given: int) -> int:
        """As the names say; by its length if one file holds messages; else as the options say."""
        starts = list(self.files)
        if len(starts) > 1:
            return starts[1] - starts[0]
        if starts and any(self.disk.open(self.path(starts[0])).read_at(0, 8)):
            return self.files[starts[0]]
        return given

    def path(self, start: int) -> str:
        """Where the file that begins at an address lies."""
        return f"{self.directory}/{start:020d}"

    def pass_over_unreadable(self) -> list[Damage]:
        """For readers: files that cannot be opened count as lost, the others are read."""
        found = misplaced(self.disk, self.directory)
        for start in list(self.files):
            problem = problem_of(self.disk, self.path(start), ANY_SIZE)
            if problem is not None:
                del self.files[start]
                found.append(Damage(problem.file, 0, 0, "missing", problem.detail))
        return found

    @property
    def first(self) -> int:
        """The smallest address that is there."""
        return next(iter(self.files), 0)

    def reader(self) -> RocketReader:
        """For all files that are there now."""
        starts = tuple(self.files)
        if self._reader is None or self._reader[0] != starts:
            self._reader = (starts, RocketReader(self.disk, [(start, self.path(start)) for start in starts]))
        return self._reader[1]

    def append(self, encoded: RocketEncoded) -> None:
        """Write everything; after a failure the next append covers the same bytes."""
        for number, (address, _) in enumerate(encoded.pieces()):
            start = address // self.file_bytes * self.file_bytes
            encoded.write(number, self._file(start), address - start)
        self.next = encoded.next_address

    def _file(self, start: int) -> DiskFile:
        if self._newest is None or self._newest[0] != start:
            make_dirs(self.disk, self.directory)
            file = self.disk.open(self.path(start), "write")
            if self.files.get(start) != self.file_bytes:
                # Made at full length, as the broker maps it; the rest is a hole of zeros. The length gives the size
                # of files when there is one only, so it must be right before anything else is.
                file.set_len(self.file_bytes)
                file.sync_data()
                self.disk.sync_dir(self.directory)
                self.files = {**self.files, start: self.file_bytes}
            with self._lock:
                self._dirty.append(file)
            self._newest = (start, file)
        elif not self._dirty:
            with self._lock:
                self._dirty.append(self._newest[1])
        return self._newest[1]

    def sync(self) -> None:
        """What was written so far, in order."""
        with self._lock:
            dirty, self._dirty = self._dirty, []
        for file in dirty:
            file.sync_data()
