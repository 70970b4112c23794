"""A consume queue on disk: 20 bytes per message, position = queue offset × 20. Made again from the commit log at any time.

int64 address in the commit log · int32 size · int64 tag hash
"""

from __future__ import annotations

from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.rocketmq._kernels import Disk, DiskFile
from headrace.layouts.rocketmq.names import misplaced, numbered
from headrace.layouts.shortcuts import problem_of

ENTRY = 20
FILE_BYTES_MAX = 1 << 32


class QueueFiles:
    """The files of one queue. Unused room at the end is zero."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self.disk, self.directory = disk, directory
        self.files = numbered(disk, directory)
        # Two names give the size; one file alone may have been cut short by a crash.
        starts = list(self.files)
        apart = starts[1] - starts[0] if len(starts) > 1 else 0
        self.file_bytes = apart or max(file_bytes // ENTRY * ENTRY, ENTRY)
        self._reading: dict[int, DiskFile] = {}
        self._writing: dict[int, DiskFile] = {}
        self._unsynced: set[int] = set()

    @property
    def first(self) -> int:
        """The first offset that the files have room for."""
        return next(iter(self.files), 0) // ENTRY

    def problems(self) -> list[Damage]:
        """Files that are there and cannot be read."""
        paths = (f"{self.directory}/{start:020d}" for start in self.files)
        found = (problem_of(self.disk, path, FILE_BYTES_MAX) for path in paths)
        return [
            *misplaced(self.disk, self.directory),
            *(each for each in found if each is not None),
        ]

    def read(self, first: int, count: int) -> bytes:
        """Entries of offsets from `first` on; fewer at the end of the files."""
        at, left, parts = first * ENTRY, count * ENTRY, list[bytes]()
        while left > 0:
            start = at // self.file_bytes * self.file_bytes
            if start not in self.files:
                break
            piece = self._file(start).read_at(at - start, min(left, start + self.file_bytes - at))
            if not piece:
                break
            parts.append(piece)
            at, left = at + len(piece), left - len(piece)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def write(self, first: int, entries: bytes) -> None:
        """Entries at offsets from `first` on; files are made as needed."""
        at, done = first * ENTRY, 0
        while done < len(entries):
            start = at // self.file_bytes * self.file_bytes
            piece = entries[done : done + start + self.file_bytes - at]
            self._unsynced.add(start)
            self._file(start, write=True).write_at(at - start, piece)
            at, done = at + len(piece), done + len(piece)

    def _file(self, start: int, *, write: bool = False) -> DiskFile:
        file = self._writing.get(start)
        if file is not None:
            return file
        path = f"{self.directory}/{start:020d}"
        if not write:
            file = self._reading.get(start)
            if file is None:
                file = self._reading[start] = self.disk.open(path)
            return file
        if start not in self.files:
            make_dirs(self.disk, self.directory)
        file = self._writing[start] = self.disk.open(path, "write")
        if len(file) < self.file_bytes:
            file.set_len(self.file_bytes)
            self.files = dict(sorted({**self.files, start: self.file_bytes}.items()))
        # Only the newest is written to again and again.
        for old in [other for other in self._writing if other != start]:
            self._writing.pop(old).sync_data()
            self._unsynced.discard(old)
        return file

    def park(self) -> None:
        """Give the descriptors up for a while. Not synced: what the disk may lose here is made again from the log."""
        self._reading, self._writing = {}, {}

    def end(self, below: int | None = None) -> int:
        """One above the last offset with an entry; with `below`: whose message lies below that address of the log."""
        for start in reversed(self.files):
            low, high = 0, self.files[start] // ENTRY
            while low < high:
                middle = (low + high) // 2
                address, size = place_of(self.read(start // ENTRY + middle, 1))
                used = size > 0 and (below is None or address < below)
                low, high = (middle + 1, high) if used else (low, middle)
            if low:
                return start // ENTRY + low
        return self.first

    def look_again(self) -> None:
        """Somebody else may have made another file."""
        self.files = numbered(self.disk, self.directory)

    def close(self) -> None:
        """Give the descriptors up."""
        self._reading.clear()
        self._writing.clear()

    def sync(self) -> None:
        """Everything of the queue on disk, if anything was written."""
        if not self._unsynced:
            return
        for start in sorted(self._unsynced):
            self._file(start, write=True).sync_data()
        self.disk.sync_dir(self.directory)
        self._unsynced.clear()

    def finish(self) -> None:
        """Synced, and no descriptor is left."""
        self.sync()
        self.close()


def place_of(entry: bytes) -> tuple[int, int]:
    """(address, size) of an entry."""
    return int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:12], "big")
