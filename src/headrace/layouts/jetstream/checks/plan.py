"""The plan: a directory as a list of blocks to work on, and the one function that works on one block.

    make_plan(path)   → Plan: the streams with their metadata, and a BlockCheck per block file
    task.run()        → BlockFacts: reads exactly one file (and its guard), shares nothing, can run anywhere
    run_plan(plan)    → all of them in threads: the core works outside the interpreter's lock

Tasks can be pickled, so that the same function can be spread over a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from headrace.layouts.checks import CheckRow, CheckTask
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.checks.audit import Indexes, read_indexes
from headrace.layouts.jetstream.checks.inspector import (
    BlockFacts,
    BlockFile,
    Survey,
    check_block,
    find_streams,
    survey,
)
from headrace.layouts.log_names import LogNames
from headrace.layouts.places import check_path, disk_at, disk_given

NAME = "jetstream"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BlockCheck(CheckTask):
    """Work on one block: `log` says which stream it belongs to."""

    log: str
    block: BlockFile

    @property
    def size_bytes(self) -> int:
        return self.block.file_bytes

    def run(self, disk: Disk | None = None) -> BlockFacts:
        """Every hash and boundary of the block."""
        return check_block(disk or disk_at(self.block.path), self.block)

    def rows(self) -> Iterator[CheckRow]:
        facts = self.run()
        following = None if facts.last_seq is None else facts.last_seq + 1
        yield CheckRow(
            *(self.log, facts.file, "block", facts.first_seq, following, facts.messages),
            *(facts.file_bytes, facts.damage, facts.problem),
        )


@dataclass(slots=True)
class Plan:
    """Everything that is to be looked at."""

    path: str
    streams: dict[str, Survey]
    indexes: dict[str, Indexes] = field(default_factory=lambda: {})
    tasks: list[BlockCheck] = field(default_factory=lambda: [])

    @property
    def file_bytes(self) -> int:
        """The size of all blocks."""
        return sum(task.size_bytes for task in self.tasks)


def make_plan(
    path: str, *, stream: str | None = None, key: str | None = None, disk: Disk | None = None
) -> Plan:
    """Look at a directory (of one stream, if asked) and list its blocks. Reads metadata and indexes only."""
    checked = check_path(path)
    disk = disk_given(checked, disk)
    on = disk or Disk.real(checked)
    directories = choose(checked, find_streams(on, checked), stream)
    plan = Plan(checked, {})
    for name, directory in directories.items():
        found = survey(on, name, directory, key, real=disk is None)
        plan.indexes[name] = read_indexes(on, found)
        plan.streams[name] = found
        plan.tasks += [BlockCheck(name, block) for block in found.blocks]
    return plan


def choose(path: str, found: dict[str, str], stream: str | None) -> dict[str, str]:
    """The asked streams out of those found; NotFound names the ones that are there."""
    if stream is None:
        return found
    names = LogNames().choose(list(found), (stream,), path=path, kind="stream")
    return {name: found[name] for name in names}


def run_plan(
    plan: Plan,
    *,
    threads: int,
    disk: Disk | None = None,
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
            running = {pool.submit(task.run, on): task for task in plan.tasks}
            for future in as_completed(running):
                task = running[future]
                facts[task.log].append(future.result())
                done += task.size_bytes
                if progress is not None:
                    progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for each in facts.values():
        each.sort(key=lambda block: block.number)
    return facts
