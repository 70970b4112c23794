"""Directories → logs → tasks → partitions. On the driver; a worker gets tasks that need nothing else."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.client import ServerVolume
from headrace.errors import NotFound
from headrace.layouts.base import Damage, Log, Predicate, ScanTask
from headrace.layouts.detect import open_volume
from headrace.spark.hybrid import HybridLog
from headrace.spark.malformed import scan, told
from headrace.spark.options import TARGET_BYTES, Asked
from headrace.spark.versions import Versioned

SMALL_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A log of a directory. `key` is unique among all that one query reads: its name, or with its directory."""

    key: str
    log: Log


class Part(InputPartition, Versioned):
    """Tasks that one worker reads one after the other, and what is left out of them. `known`: damage that planning met."""

    def __init__(self, tasks: list[ScanTask], predicate: Predicate, known: tuple[Damage, ...] = ()) -> None:
        super().__init__(tasks)
        self.tasks, self.predicate, self.known = tasks, predicate, known
        self.stamp()


def directories(path: str) -> list[str]:
    """One directory, or those that a pattern finds. NotFound when there is none."""
    if not glob.has_magic(path) or Path(path).exists():
        return [path]
    found = sorted(each for each in glob.glob(path) if os.path.isdir(each))  # noqa: PTH207, PTH112  (a pattern, not a path)
    if not found:
        raise NotFound(f"headrace source: no directory fits {path!r}")
    return found


def places(asked: Asked, stack: ExitStack) -> list[Place]:
    """Every log that is asked for, opened for reading until the stack closes."""
    filed = _filed(asked, stack) if asked.path else []
    return filed if asked.access is None else _served(asked, filed, stack)


def _filed(asked: Asked, stack: ExitStack) -> list[Place]:
    paths = directories(asked.path)
    found: list[Place] = []
    for path in paths:
        volume = stack.enter_context(open_volume(path, key=asked.key))
        names = volume.logs()
        # With a server beside the files a stream may be in one of the two only.
        chosen = (
            asked.chosen(names) if asked.access is None else [each for each in names if asked.wants(each)]
        )
        for name in chosen:
            key = name if len(paths) == 1 else f"{path}:{name}"
            found.append(Place(key, volume.open(name)))
    return found


def _served(asked: Asked, filed: list[Place], stack: ExitStack) -> list[Place]:
    """The streams of a server; where there are files of one too, both as one log."""
    assert asked.access is not None
    volume = stack.enter_context(ServerVolume(asked.access))
    names = list(asked.logs) if asked.plain_logs else asked.chosen(volume.logs())
    cold = {place.key: place.log for place in filed}
    found: list[Place] = []
    for name in names:
        live = volume.open(name)
        found.append(Place(name, HybridLog(cold[name], live) if name in cold else live))
    return found


class Sized(Protocol):
    """Work of a known size."""

    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


def packed(tasks: Iterable[T], target_bytes: int | None, at_least: int) -> list[list[T]]:
    """Neighbours together up to the target; never fewer groups than asked for, as long as there are tasks.

    Without a target: a task costs Spark some 50 ms, so large ones, but all cores of this machine have some.
    """
    all_tasks = list(tasks)
    total = sum(task.size_bytes for task in all_tasks)
    if target_bytes is None:
        each = -(-total // (os.cpu_count() or 1))
        target_bytes = min(TARGET_BYTES, max(each, SMALL_BYTES))
    limit = min(target_bytes, -(-total // at_least)) if at_least > 1 else target_bytes
    groups: list[list[T]] = []
    room = 0
    for task in all_tasks:
        if not groups or room < task.size_bytes:
            groups.append([])
            room = limit
        groups[-1].append(task)
        room -= task.size_bytes
    return groups


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


def parts(asked: Asked, predicate: Predicate) -> list[InputPartition]:
    """The partitions of a batch query."""
    with ExitStack() as stack:
        found = places(asked, stack)
        tasks = [task for place in found for task in place.log.scan_tasks(predicate)]
        known = absent(found)
    groups = packed(tasks, asked.target_bytes, asked.min_partitions)
    made: list[InputPartition] = [Part(joined(group), predicate) for group in groups]
    return [*made, Part([], predicate, known)] if known else made


def absent(found: Iterable[Place]) -> tuple[Damage, ...]:
    """Files that should be there and are not: no task would meet them."""
    told = [each for place in found for each in place.log.damage()]
    return tuple(each for each in told if each.kind == "missing" and not Path(each.file).exists())


def rows(part: InputPartition | None, columns: list[str], mode: str) -> Iterator[pa.RecordBatch]:
    """In a worker: the messages of a partition. (An empty plan arrives as no partition.)"""
    if isinstance(part, Part):
        part.check()
        yield from told(part.known, part.predicate, columns, mode)
        for task in part.tasks:
            yield from scan(task, part.predicate, columns, mode)
