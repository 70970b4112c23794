"""Many logs at once: a bounded set of open files, and disk work on many logs side by side.

    use(log)   the log moves to the end of the line; when the line is too long, the front of it is parked

Parking gives descriptors up; the log opens its files again when it needs them. Whoever has unsynced data syncs first,
because an error of the disk is reported only to those who have the file open.

Not `descriptors.Descriptors`: the files of these logs are opened and written by the core, which Python does not enter per file.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

THREADS = 16
SHARE = 6
LEAST = 16
T = TypeVar("T")


class Parkable(Protocol):
    """Something with files of its own."""

    name: str

    def park(self) -> None:
        """Close the files that can be opened again."""
        ...


class SideBySide:
    """The same disk work for many logs. A filesystem puts syncs that wait together into one commit of its journal.

    `parallel=False` does one after the other: the disks of tests count their syncs.
    """

    def __init__(self, *, parallel: bool) -> None:
        self._parallel = parallel
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def each(self, work: Callable[[T], object], items: Iterable[T]) -> list[Exception]:
        """Run all, whatever fails; returns what failed, in order."""
        todo = list(items)
        if len(todo) < 2 or not self._parallel:
            return [problem for item in todo if (problem := _tried(work, item)) is not None]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-disk")
        problems = self._pool.map(_tried, [work] * len(todo), todo)
        return [problem for problem in problems if problem is not None]

    def close(self) -> None:
        """Let the threads go."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _tried(work: Callable[[T], object], item: T) -> Exception | None:
    try:
        work(item)
    except Exception as problem:
        return problem
    return None


class OpenFiles:
    """Logs with open files, the least recently used first."""

    def __init__(self, most: int, side_by_side: SideBySide) -> None:
        self.most, self._side_by_side = most or by_limit(), side_by_side
        self._line: OrderedDict[int, Parkable] = OrderedDict()
        self._lock = threading.Lock()

    def use(self, log: Parkable) -> None:
        """Call it before the log's own lock is taken: parking takes the locks of others."""
        key = id(log)
        with self._lock:
            self._line[key] = log
            self._line.move_to_end(key)
            if len(self._line) <= self.most:
                return
            # A quarter at once: their syncs share the disk's trouble.
            leaving = [self._line.popitem(last=False)[1] for _ in range(max(self.most // 4, 1))]
        # What fails is poisoned, and says so to whoever uses it next.
        self._side_by_side.each(lambda one: one.park(), leaving)

    def forget(self, log: Parkable) -> None:
        """The log is closed."""
        with self._lock:
            self._line.pop(id(log), None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._line)


def by_limit() -> int:
    """As many logs as the process may well have: each has a few files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft // SHARE, LEAST) if soft != resource.RLIM_INFINITY else 1 << 16
