"""`DirectoryVolume`: what the volume of every product does alike.

opened     the words it was opened with, the locks of who writes, a thread for what time brings
commit     tickets to logs, here or off the caller's thread
closed     the thread ends, commits that wait are done, logs stop, the locks go
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Protocol, cast

from headrace.errors import ReadOnly, StoreClosed
from headrace.layouts._kernels import DiskLock
from headrace.layouts.base import Damage, Durability, Ticket, Volume
from headrace.layouts.posix_lock import PosixLock
from headrace.layouts.volume_parts import SoonCommitter, check_words, highest_marks

LOG = logging.getLogger("headrace")


class _Acknowledging(Protocol):
    def acknowledge(self, mark: int) -> None:
        """Return when everything up to the mark is acknowledged."""
        ...


class DirectoryVolume(Volume):
    """A product's directory, opened for reading or for writing."""

    last_upkeep_error: Exception | None = None

    def __init__(self, mode: str, durability: Durability, clock: Callable[[], int]) -> None:
        check_words(mode, durability)
        self.durability: Durability = durability
        self.read_only, self.clock = mode == "r", clock
        self._mutex, self._closed = threading.RLock(), False
        self._lock: DiskLock | None = None
        self._broker_lock: PosixLock | None = None
        self._committer, self._stop = SoonCommitter(), threading.Event()
        self._keeper: threading.Thread | None = None
        self._damage: list[Damage] = []

    # Upkeep

    def _start_upkeep(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name=f"headrace-{self.layout}", daemon=True)
        self._keeper.start()

    @property
    @abstractmethod
    def _upkeep_every_s(self) -> float:
        """How often `_upkeep` is due."""

    @abstractmethod
    def _upkeep(self) -> None:
        """What time brings."""

    def _keep(self) -> None:
        while not self._stop.wait(self._upkeep_every_s):
            self._attempt(self._upkeep, self.path)

    def _attempt(self, work: Callable[[], object], what: str) -> None:
        """The next turn tries again; commits report it to their callers."""
        try:
            work()
        except Exception as error:
            if str(error) != str(self.last_upkeep_error):
                LOG.warning("upkeep of %s: %s", what, error)
            self.last_upkeep_error = error

    # Durability

    def commit(self, tickets: Iterable[Ticket]) -> None:
        """Return when all tickets are acknowledged: on disk in mode `sync`, written in mode `interval`."""
        self._check_open()
        for name, mark in highest_marks(tickets).items():
            cast("_Acknowledging", self.open(name)).acknowledge(mark)

    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        """The same off the caller's thread; tickets handed in while a sync runs share the next one."""
        with self._mutex:
            self._check_open()
            return self._committer.submit(self.commit, tickets)

    # The end

    def close(self) -> None:
        """Clean stop of every log, then the locks go."""
        with self._mutex:
            if self._closed:
                return
            self._end_upkeep()
        if self._keeper is not None:
            self._keeper.join()
        self._committer.close()
        with self._mutex:
            self._closed = True
            try:
                self._stop_logs()
            finally:
                self._release()

    def _end_upkeep(self) -> None:
        self._stop.set()

    @abstractmethod
    def _stop_logs(self) -> None:
        """Stop all, whatever becomes of one; raise the first error."""

    def _release(self) -> None:
        if self._broker_lock is not None:
            self._broker_lock.release()
        if self._lock is not None:
            self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed; open it again")

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"{self.path} was opened for reading; open it with mode='rw'")
