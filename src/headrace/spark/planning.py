"""Directories → logs → tasks → partitions. On the driver; a worker gets tasks that need nothing else."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.client import ServerVolume
from headrace.errors import NotFound
from headrace.layouts.base import Log, Predicate, ScanTask
from headrace.layouts.detect import open_volume
from headrace.spark.hybrid import HybridLog
from headrace.spark.options import Asked


@dataclass(frozen=True, slots=True)
class Place:
    """A log of a directory. `key` is unique among all that one query reads: its name, or with its directory."""

    key: str
    log: Log


class Part(InputPartition):
    """Tasks that one worker reads one after the other, and what is left out of them."""

    def __init__(self, tasks: list[ScanTask], predicate: Predicate) -> None:
        super().__init__(tasks)
        self.tasks, self.predicate = tasks, predicate


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


def packed(tasks: Iterable[ScanTask], target_bytes: int, at_least: int) -> list[list[ScanTask]]:
    """Neighbours together up to the target; never fewer groups than asked for, as long as there are tasks."""
    all_tasks = list(tasks)
    total = sum(task.size_bytes for task in all_tasks)
    limit = min(target_bytes, -(-total // at_least)) if at_least > 1 else target_bytes
    groups: list[list[ScanTask]] = []
    room = 0
    for task in all_tasks:
        if not groups or room < task.size_bytes:
            groups.append([])
            room = limit
        whole = groups[-1][-1].joined(task) if groups[-1] else None
        if whole is not None:
            groups[-1][-1] = whole
        else:
            groups[-1].append(task)
        room -= task.size_bytes
    return groups


def parts(asked: Asked, predicate: Predicate) -> list[InputPartition]:
    """The partitions of a batch query."""
    with ExitStack() as stack:
        tasks = [task for place in places(asked, stack) for task in place.log.scan_tasks(predicate)]
    return [Part(group, predicate) for group in packed(tasks, asked.target_bytes, asked.min_partitions)]


def rows(part: InputPartition | None, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """In a worker: the messages of a partition. (An empty plan arrives as no partition.)"""
    if isinstance(part, Part):
        for task in part.tasks:
            yield from task.scan(columns, part.predicate)
