"""The plan: a directory as a list of blocks to work on, and the one function that works on one block.

    make_plan(path)   → Plan: the streams with their metadata, and a BlockTask per block file
    run_task(task)    → BlockFacts: reads exactly one file (and its guard), shares nothing, can run anywhere
    run_plan(plan)    → all of them in threads: the core works outside the interpreter's lock

Tasks can be pickled, so that the same function can be spread over a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from headrace._core import Disk
from headrace.errors import BadInput, DiskFault, NotFound, UnknownFormat
from headrace.layouts.detect import ARCHIVE, is_archive, room, room_of
from headrace.layouts.jetstream.audit import Indexes, read_indexes
from headrace.layouts.jetstream.inspector import (
    BlockFacts,
    BlockFile,
    Survey,
    check_block,
    find_streams,
    survey,
)
from headrace.layouts.places import disk_at, disk_given, is_remote, place_of
from headrace.layouts.room import Room

PRODUCTS = {"jetstream": "NATS JetStream"}
THREADS = min(4, os.cpu_count() or 1)

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); from the calling thread only."""


@dataclass(frozen=True, slots=True)
class BlockTask:
    """Work on one block: `layout` says how to read it, `log` which stream it belongs to."""

    layout: str
    log: str
    block: BlockFile

    @property
    def path(self) -> str:
        return self.block.path

    @property
    def number(self) -> int:
        return self.block.number

    @property
    def file_bytes(self) -> int:
        return self.block.file_bytes


@dataclass(slots=True)
class Plan:
    """Everything that is to be looked at."""

    path: str
    layout: str
    streams: dict[str, Survey]
    indexes: dict[str, Indexes] = field(default_factory=lambda: {})
    tasks: list[BlockTask] = field(default_factory=lambda: [])

    @property
    def file_bytes(self) -> int:
        """The size of all blocks."""
        return sum(task.file_bytes for task in self.tasks)


def make_plan(
    path: str, *, stream: str | None = None, key: str | None = None, disk: Disk | None = None
) -> Plan:
    """Look at a directory (of one stream, if asked) and list its blocks. Reads metadata and indexes only."""
    checked = check_path(path)
    disk = disk_given(checked, disk)
    on = disk or Disk.real()
    directories = choose(checked, find_streams(on, checked), stream)
    plan = Plan(checked, "jetstream", {})
    for name, directory in directories.items():
        found = survey(on, name, directory, key, real=disk is None)
        plan.indexes[name] = read_indexes(on, found)
        plan.streams[name] = found
        plan.tasks += [BlockTask(plan.layout, name, block) for block in found.blocks]
    return plan


def room_at(path: str, disk: Disk | None = None) -> Room | None:
    """The room of the layout that the directory has; None for JetStream's, or when nobody knows it: then
    JetStream's own look says what is wrong with it (one stream's directory has no mark but its files)."""
    if disk is None and is_archive(check_path(path)):
        return room(ARCHIVE)
    try:
        return room_of(check_path(path), disk)
    except (NotFound, UnknownFormat, DiskFault):
        return None


def absolute(path: str) -> str:
    """The path from the root, links not followed: a stream's directory has its name, also behind a link."""
    checked = check_path(path)
    return checked if is_remote(checked) else os.path.normpath(Path.cwd() / checked)


def check_path(path: str | os.PathLike[str]) -> str:
    """The path as text that the core can take."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{text!r}: the path is not valid UTF-8; rename the directory or use a link"
        ) from error
    if not text or "\0" in text:
        raise BadInput(f"{text!r} is not a path")
    return place_of(text) if is_remote(text) else text


def choose(path: str, found: dict[str, str], stream: str | None) -> dict[str, str]:
    """The asked stream out of those found; NotFound names the ones that are there."""
    if stream is None:
        return found
    if stream not in found:
        known = ", ".join(found) or "none"
        raise NotFound(f"{path}: no stream {stream!r}; there are: {known}")
    return {stream: found[stream]}


def run_task(task: BlockTask, disk: Disk | None = None) -> BlockFacts:
    """Check one block."""
    return check_block(disk or disk_at(task.path), task.block)


def run_plan(
    plan: Plan,
    *,
    disk: Disk | None = None,
    threads: int = THREADS,
    progress: Progress | None = None,
    rounds: int = 1,
) -> dict[str, list[BlockFacts]]:
    """Check every block; results by stream, in block order. Memory: one block per thread.

    `rounds` says how often the caller goes over all bytes: this is the first time, and progress counts so.
    """
    on, total, done = disk or disk_at(plan.path), plan.file_bytes * rounds, 0
    facts: dict[str, list[BlockFacts]] = {name: [] for name in plan.streams}
    if progress is not None:
        progress(0, total)
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="headrace-check") as pool:
        try:
            running = {pool.submit(run_task, task, on): task for task in plan.tasks}
            for future in as_completed(running):
                task = running[future]
                facts[task.log].append(future.result())
                done += task.file_bytes
                if progress is not None:
                    progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for each in facts.values():
        each.sort(key=lambda block: block.number)
    return facts
