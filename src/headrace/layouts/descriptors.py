"""Open files of a volume by path, under a soft limit (NATS Streaming's `fds_limit`, RabbitMQ's journals).

    use(path)    opens, or takes the file that is open; while it is in use nobody closes it
                 at the limit, the file that was idle longest is closed first
                 all in use: it is opened all the same; the limit is soft, never an error
    get(path)    the same for a file with one user, who keeps it open while holding it, whatever is closed here

A file with unsynced writes is synced before it is closed if the store promises syncs: an error that the kernel
found meanwhile would otherwise reach nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from headrace._core import Disk, DiskFile
from headrace.errors import HeadraceError


@dataclass(slots=True)
class _Open:
    file: DiskFile
    writable: bool
    users: int = 0
    used: float = field(default_factory=time.monotonic)


class Descriptors:
    """The open files of one volume. Thread-safe."""

    def __init__(self, disk: Disk, limit: int = 0, sync_before_close: bool = True) -> None:
        self._disk, self.limit, self._sync_first = disk, limit, sync_before_close
        self._open: dict[str, _Open] = {}  # in the order of their last use
        self._dirty: set[str] = set()
        self._failed: dict[str, HeadraceError] = {}
        self._mutex = threading.RLock()
        self.opened = self.closed = self.most = 0

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def use(self, path: str, mode: str = "read") -> Generator[DiskFile]:
        """The file, open until the end of the block at least. A "write" mode makes it when it is absent."""
        entry = self._take(path, mode != "read", mode)
        try:
            yield entry.file
        finally:
            with self._mutex:
                entry.users -= 1
                entry.used = time.monotonic()

    def get(self, path: str) -> DiskFile:
        """The file for writing, made if it is not there; its user syncs it."""
        with self._mutex:
            entry = self._take(path, True, "write")
            entry.users -= 1
            return entry.file

    def _take(self, path: str, writable: bool, mode: str) -> _Open:
        with self._mutex:
            entry = self._open.pop(path, None)
            if entry is not None and (writable and not entry.writable):
                self.closed += 1
                entry = None
            if entry is None:
                if self.limit and len(self._open) >= self.limit:
                    self._evict()
                entry = _Open(self._disk.open(path, mode), writable)
                self.opened += 1
            self._open[path] = entry
            self.most = max(self.most, len(self._open))
            entry.users += 1
            return entry

    def _evict(self) -> None:
        idle = (path for path, entry in self._open.items() if not entry.users)
        for path in list(islice(idle, len(self._open) - self.limit + 1)):
            self._close(path)

    def _close(self, path: str) -> None:
        entry = self._open.pop(path)
        self.closed += 1
        if path in self._dirty and self._sync_first:
            try:
                entry.file.sync_data()
                self._dirty.discard(path)
            except HeadraceError as error:  # raised for whoever asks for this file's sync
                self._failed[path] = error

    def wrote(self, path: str) -> None:
        """There are writes to the file that are not synced."""
        with self._mutex:
            self._dirty.add(path)

    def sync(self, path: str) -> None:
        """Everything written to the file is on disk when this returns."""
        with self._mutex:
            failed = self._failed.pop(path, None)
            if failed is not None:
                raise failed
            if path not in self._dirty:
                return
            self._dirty.discard(path)
        try:
            with self.use(path, "write") as file:
                file.sync_data()
        except HeadraceError:
            self.wrote(path)
            raise

    def dirty(self) -> list[str]:
        """Files with writes that are not synced."""
        with self._mutex:
            return sorted(self._dirty)

    def forget(self, *paths: str) -> None:
        """The files are gone or were replaced: what is open is closed, nothing is to be synced."""
        with self._mutex:
            for path in paths:
                self._dirty.discard(path)
                self._failed.pop(path, None)
                if self._open.pop(path, None) is not None:
                    self.closed += 1

    def close_idle(self, seconds: float) -> None:
        """Close files that were only read and are not used any more."""
        before = time.monotonic() - seconds
        with self._mutex:
            for path, entry in list(self._open.items()):
                if not entry.users and not entry.writable and entry.used < before:
                    self._close(path)

    def close(self) -> None:
        """Close everything."""
        with self._mutex:
            self._open.clear()
