"""Directories → logs → tasks → partitions. On the driver; a worker gets tasks that need nothing else."""

from __future__ import annotations

import gc
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from headrace.errors import NotFound
from headrace.layouts.base import Damage, Log, Predicate, ScanTask
from headrace.layouts.places import has_magic, is_remote, matching
from headrace.layouts.registry import open_volume
from headrace.spark.malformed import known_damage, known_range, scan
from headrace.spark.options import TARGET_BYTES, ReadOptions
from headrace.spark.versions import Versioned

SMALL_BYTES = 8 << 20
NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A log of a directory. `key` is unique among all that one query reads: its name, or with its directory."""

    key: str
    log: Log


class ScanPartition(InputPartition, Versioned):
    """Tasks that one worker reads one after the other, and what is left out of them. `known`: damage that planning met."""

    def __init__(self, tasks: list[ScanTask], predicate: Predicate, known: tuple[Damage, ...] = ()) -> None:
        super().__init__(tasks)
        self.tasks, self.predicate, self.known = tasks, predicate, known
        self.stamp()


def directories(path: str) -> list[str]:
    """One directory, or those that a pattern finds. NotFound when there is none."""
    if is_remote(path):
        found = matching(path) if has_magic(path) else [path]
    elif not glob.has_magic(path) or Path(path).exists():
        return [path]
    else:
        found = sorted(each for each in glob.glob(path) if os.path.isdir(each))  # noqa: PTH207, PTH112  (a pattern, not a path)
    if not found:
        raise NotFound(f"headrace source: no directory fits {path!r}")
    return found


def places(options: ReadOptions, stack: ExitStack) -> list[PlannedLog]:
    """Every log that is asked for, opened for reading until the stack closes."""
    filed = _filed(options, stack) if options.path else []
    return filed if options.access is None else _served(options, filed, stack)


def _filed(options: ReadOptions, stack: ExitStack) -> list[PlannedLog]:
    paths = directories(options.path)
    found: list[PlannedLog] = []
    for path in paths:
        volume = stack.enter_context(open_volume(path, key=options.key))
        names = volume.logs()
        # With a server beside the files a stream may be in one of the two only.
        chosen = (options.chosen if options.access is None else options.present)(names, volume.origin)
        for name in chosen:
            key = name if len(paths) == 1 else f"{path}:{name}"
            found.append(PlannedLog(key, volume.open(name)))
    return found


def _served(options: ReadOptions, filed: list[PlannedLog], stack: ExitStack) -> list[PlannedLog]:
    """The streams of a server; where there are files of one too, both as one log."""
    from headrace.client import ServerVolume
    from headrace.spark.hybrid import HybridLog

    assert options.access is not None
    volume = stack.enter_context(ServerVolume(options.access))
    names = list(options.logs) if options.plain_logs else options.chosen(volume.logs(), volume.layout)
    cold = {place.key: place.log for place in filed}
    found: list[PlannedLog] = []
    for name in names:
        live = volume.open(name)
        found.append(PlannedLog(name, HybridLog(cold[name], live) if name in cold else live))
    return found


class Sized(Protocol):
    """Work of a known size."""

    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


def size_of(task: Sized) -> int:
    """What a task weighs when nothing else is known."""
    return task.size_bytes


def packed(
    tasks: Iterable[T], target_bytes: int | None, at_least: int, weigh: Callable[[T], int] = size_of
) -> list[list[T]]:
    """Neighbours together; never fewer groups than asked for, as long as there are tasks.

    With a target: up to that. Without: a task costs Spark some 50 ms, so large ones, but all cores of this machine have
    some, and the same: a core that ends early waits for the others.
    """
    all_tasks = list(tasks)
    total = sum(weigh(task) for task in all_tasks)
    if target_bytes is None:
        cores = os.cpu_count() or 1
        rounds = -(-total // (cores * TARGET_BYTES))
        count = cores * rounds if rounds > 1 else min(cores, -(-total // SMALL_BYTES))
        return _shared(all_tasks, total, max(count, at_least), weigh)
    limit = min(target_bytes, -(-total // at_least)) if at_least > 1 else target_bytes
    groups: list[list[T]] = []
    left = 0
    for task in all_tasks:
        if not groups or left < weigh(task):
            groups.append([])
            left = limit
        groups[-1].append(task)
        left -= weigh(task)
    return groups


def _shared(tasks: list[T], total: int, count: int, weigh: Callable[[T], int]) -> list[list[T]]:
    """`count` groups of about the same weight: a task belongs where its middle lies."""
    count = max(min(count, len(tasks)), 1)
    groups: list[list[T]] = [[] for _ in range(count)]
    before = 0
    for task in tasks:
        weight = weigh(task)
        groups[min((2 * before + weight) * count // max(2 * total, 1), count - 1)].append(task)
        before += weight
    return [group for group in groups if group]


def joined(tasks: list[ScanTask]) -> list[ScanTask]:
    """Neighbours as one where that is cheaper to read: a range of a server needs one consumer, however long it is."""
    found: list[ScanTask] = []
    for task in tasks:
        whole = found[-1].joined(task) if found else None
        if whole is None:
            found.append(task)
        else:
            found[-1] = whole
    return found


def parts(options: ReadOptions, predicate: Predicate, columns: Sequence[str]) -> list[InputPartition]:
    """The partitions of a batch query."""

    def weigh(task: ScanTask) -> int:
        # What the index knows is not read: only what is sent counts.
        known = known_range(task, predicate, columns)
        return task.size_bytes if known is None else (known.next - known.first) * NUMBER_BYTES

    with ExitStack() as stack:
        found = places(options, stack)
        tasks = [task for place in found for task in place.log.scan_tasks(predicate)]
        known = tuple(each for place in found for each in place.log.unreachable_damage())
    groups = packed(tasks, options.target_bytes, options.min_partitions, weigh)
    made: list[InputPartition] = [ScanPartition(joined(group), predicate) for group in groups]
    return [*made, ScanPartition([], predicate, known)] if known else made


@cache
def freeze_modules() -> None:
    """Once in a worker: everything that is loaded stays. Spark's workers collect garbage after every task, and going over
    the objects of all modules each time takes as long as reading a block."""
    gc.freeze()


def rows(part: InputPartition | None, columns: list[str], mode: str) -> Iterator[pa.RecordBatch]:
    """In a worker: the messages of a partition. (An empty plan arrives as no partition.)"""
    if isinstance(part, ScanPartition):
        part.check()
        if TaskContext.get() is not None:
            freeze_modules()
        yield from known_damage(part.known, part.predicate, columns, mode)
        for task in part.tasks:
            yield from scan(task, part.predicate, columns, mode)
