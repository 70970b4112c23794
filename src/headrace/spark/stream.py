"""Streaming from files and servers: offsets are positions in logs, so that every batch can be read again as it was.

    {"v": 1, "logs": {"<log>": {"id": "<incarnation>", "seq": <the next position>}}}

A log that appears later starts at its first message; one that was deleted, or deleted and made again, is an error that
says so. What retention has taken before it was read is named exactly (`failOnDataLoss`). Beside a live writer the end is
what is durable. Spark's checkpoint is the truth; with `durable=` a consumer of that name follows it on the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.errors import BadInput, ConnectionLost, NotFound, ServerRefused
from headrace.layouts.base import ScanTask
from headrace.layouts.places import is_remote
from headrace.spark.limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from headrace.spark.one_line import OneLineErrors
from headrace.spark.options import LATEST, ReadOptions
from headrace.spark.planning import PlannedLog, ScanPartition, joined, packed, places, rows

if TYPE_CHECKING:
    from headrace.client import Hold

LOG = logging.getLogger("headrace")
LOOK_EVERY_S, LOOK_FAR_EVERY_S = 0.1, 2.0

Offset = dict[str, Any]


class Ends(NamedTuple):
    """One log as it is now: half-open positions."""

    id: str
    first: int
    next: int


class FileStream(OneLineErrors, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over directories."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options, self._columns = options, columns
        self._seen: dict[str, Ends] | None = None
        self._look_again = 0.0
        self._initial: Offset | None = None
        self._frozen: dict[str, Ends] | None = None
        self._waiting_since: float | None = None
        self._advanced = False
        self._holds: dict[str, Hold] = {}

    # Offsets

    def initialOffset(self) -> Offset:
        """Where a new query begins. ReadOptions twice by Spark: "latest" must be the same both times."""
        if self._initial is None:
            with ExitStack() as stack:
                begins = {place.key: self._begin(place) for place in places(self._options, stack)}
            self._initial = _offset(begins)
        return self._initial

    def _begin(self, place: PlannedLog) -> tuple[str, int]:
        options, ends = self._options, _ends(place, self._options)
        at = ends.next if options.start == LATEST else ends.first
        if options.first is not None:
            at = min(max(at, options.first), ends.next)
        if options.since_ns is not None:
            at = min(max(at, place.log.seq_from_time(options.since_ns)), ends.next)
        return ends.id, at

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """As far as the next batch goes."""
        now = self._frozen if self._frozen is not None else self._look()
        began = _read(start)
        if not self._advanced:
            # The last commit of the run before never came: what it would have said is the start of this one.
            self._advanced = True
            self._advance(began)
        ranges = {key: (began.get(key, (ends.id, ends.first))[1], ends.next) for key, ends in now.items()}
        waiting = sum(max(end - at, 0) for at, end in ranges.values())
        if self._frozen is None and self._should_wait(waiting):
            return start
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._limited(ranges, limit)
        reached = {key: (now[key].id, max(at, end)) for key, (at, end) in ranges.items()}
        gone = {key: value for key, value in began.items() if key not in now}
        return _offset(gone | reached)

    def _should_wait(self, waiting: int) -> bool:
        """`minRowsPerTrigger`: few new rows wait for more, but not longer than `maxTriggerDelay`."""
        least, delay = self._options.min_rows, self._options.max_delay_ns
        if not waiting or least is None or waiting >= least:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if delay is not None and (time.monotonic() - self._waiting_since) * 1e9 >= delay:
            self._waiting_since = None
            return False
        return True

    def _limited(self, ranges: dict[str, tuple[int, int]], limit: ReadLimit) -> dict[str, tuple[int, int]]:
        """Every log gets its share: rows by positions, bytes and files by what holds them."""
        if isinstance(limit, ReadMaxRows):
            return _shared(ranges, limit.max_rows)
        if not isinstance(limit, ReadMaxBytes | ReadMaxFiles):
            return ranges
        left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else limit.max_files
        cut = {key: (at, at) for key, (at, _) in ranges.items()}
        taken = 0
        for key, task in self._tasks(ranges):
            cost = task.size_bytes if isinstance(limit, ReadMaxBytes) else 1
            if taken and taken + cost > left:
                break
            at, end = ranges[key]
            cut[key] = (at, min(max(task.next, cut[key][1]), end))
            taken += cost
        return cut

    def _tasks(self, ranges: dict[str, tuple[int, int]]) -> Iterator[tuple[str, ScanTask]]:
        with ExitStack() as stack:
            for place in places(self._options, stack):
                at, end = ranges.get(place.key, (0, 0))
                if at < end:
                    want = replace(self._options.predicate(), first=at, next=end)
                    for task in place.log.scan_tasks(want):
                        yield place.key, task

    def getDefaultReadLimit(self) -> ReadLimit:
        """By the options."""
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadMaxFiles(options.max_files) if options.max_files is not None else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        """Everything there is: the difference to the batch's end is the lag."""
        return _offset({key: (ends.id, ends.next) for key, ends in self._look().items()})

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is what is there now."""
        self._frozen = self._look()

    def _look(self) -> dict[str, Ends]:
        """Every log as it is; Spark asks many times a second when nothing comes."""
        now = time.monotonic()
        if self._seen is None or now >= self._look_again:
            with ExitStack() as stack:
                self._seen = {
                    place.key: _ends(place, self._options) for place in places(self._options, stack)
                }
            # A remote place answers slowly and is paid by the request.
            done = time.monotonic()
            far = is_remote(self._options.path)
            self._look_again = (
                now + LOOK_EVERY_S if not far else done + max(LOOK_FAR_EVERY_S, 5 * (done - now))
            )
        return self._seen

    # Reading

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The pieces between two offsets. What is no longer there is an error, or a warning where that is asked for."""
        began, ended = _read(start), _read(end)
        tasks: list[InputPartition] = []
        with ExitStack() as stack:
            found = {place.key: place for place in places(self._options, stack)}
            for key, (id, following) in ended.items():
                if key not in found:
                    if began.get(key, (id, 0))[1] < following:
                        raise NotFound(f"headrace source: log {key} is no longer in {self._options.place}")
                    continue
                place = found[key]
                ends = _ends(place, self._options)
                if id != ends.id:
                    raise BadInput(
                        f"headrace source: log {key} was deleted and made again (it was {id}, now it is {ends.id}); "
                        "start the query anew, with another checkpoint"
                    )
                at = began.get(key, (id, ends.first))[1]
                if at < min(ends.first, following):
                    # Whoever stops wants to know all of it; whoever goes on meets the rest in the next batches.
                    end_of_gap = ends.first if self._options.fail_on_loss else min(ends.first, following)
                    self._missing(key, at, end_of_gap - 1)
                want = replace(self._options.predicate(), first=at, next=following)
                groups = packed(
                    place.log.scan_tasks(want), self._options.target_bytes, self._options.min_partitions
                )
                tasks += [ScanPartition(joined(group), want) for group in groups if at < following]
                if at < following and (known := place.log.unreachable_damage()):
                    tasks.append(ScanPartition([], want, tuple(known)))
        return tasks

    def _missing(self, key: str, first: int, last: int) -> None:
        text = (
            f"headrace source: log {key} no longer holds {first} to {last}: retention or a purge took them before they were read. "
            "failOnDataLoss=false goes on without them"
        )
        if self._options.fail_on_loss:
            raise BadInput(text)
        LOG.warning("%s", text)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """In a worker: the messages of one piece."""
        yield from rows(partition, self._columns, self._options.mode)

    def commit(self, end: Offset) -> None:
        """A batch behind, and never for the last one: advice for the server, nothing that is relied on."""
        self._advance(_read(end))

    def _advance(self, reached: dict[str, tuple[str, int]]) -> None:
        options = self._options
        if options.durable is None or options.access is None:
            return
        from headrace.client import Hold, shared_connection

        for log, (_, following) in reached.items():
            try:
                if log not in self._holds:
                    self._holds[log] = Hold(
                        shared_connection(options.access), log, options.durable, following
                    )
                self._holds[log].advance(following)
            except (ConnectionLost, ServerRefused) as problem:
                LOG.warning(
                    "headrace source: the consumer %s of %s does not follow: %s",
                    options.durable,
                    log,
                    problem,
                )


def _ends(place: PlannedLog, options: ReadOptions) -> Ends:
    state = place.log.state()
    following = state.last_seq + 1
    if options.next is not None:
        following = min(following, options.next)
    if options.until_ns is not None:
        following = min(following, place.log.seq_from_time(options.until_ns))
    return Ends(place.log.incarnation, min(state.first_seq, following), following)


def _shared(ranges: dict[str, tuple[int, int]], rows_max: int) -> dict[str, tuple[int, int]]:
    """The same number for each, and what some do not need for the others."""
    left = dict(sorted(ranges.items(), key=lambda item: item[1][1] - item[1][0]))
    cut: dict[str, tuple[int, int]] = {}
    for number, (key, (at, end)) in enumerate(left.items()):
        share = -(-rows_max // (len(left) - number)) if rows_max else 0
        taken = max(min(end - at, share), 0)
        cut[key] = (at, at + taken)
        rows_max -= taken
    return cut


def _offset(logs: dict[str, tuple[str, int]]) -> Offset:
    return {"v": 1, "logs": {key: {"id": id, "seq": seq} for key, (id, seq) in sorted(logs.items())}}


def _read(offset: Offset) -> dict[str, tuple[str, int]]:
    if offset.get("v") != 1:
        raise BadInput(f"headrace source: offset {offset!r} of another version; this one reads v 1")
    return {key: (str(each["id"]), int(each["seq"])) for key, each in offset["logs"].items()}
