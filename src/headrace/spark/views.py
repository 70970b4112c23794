"""What a directory can be read as, beside its messages: `view=`.

    latest_per_subject   the newest message of every subject, now or as of a sequence or time
    verify               one row per block, segment or slice: what `headrace verify` says of it
    damage               one row per finding of the same checks
    consumers            one row per consumer, subscription, group or queue
    acks                 ack samples and advisories of a stream that captures `$JS.EVENT.>` (`acks.py`); also as a stream

Planned on the driver from names and sizes, worked on in the workers by functions of `ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.arrow import to_record_batch
from headrace.errors import BadInput
from headrace.layouts.base import Predicate, ScanTask
from headrace.layouts.checks import CheckTask
from headrace.layouts.registry import layout_at, open_volume
from headrace.spark import acks
from headrace.spark.acks import AckReader
from headrace.spark.columns import FINDING, MESSAGE, Columns, arrow, finding, made, one_column
from headrace.spark.kernels import kernels
from headrace.spark.malformed import PERMISSIVE, DamageFindings
from headrace.spark.one_line import OneLineErrors
from headrace.spark.options import ReadOptions
from headrace.spark.planning import directories, packed, places
from headrace.spark.versions import Versioned

VERIFY: Columns = {
    "log": pa.string(),
    "file": pa.string(),
    "kind": pa.string(),
    "first_seq": pa.int64(),
    "next_seq": pa.int64(),
    "messages": pa.int64(),
    "bytes": pa.int64(),
    "ok": pa.bool_(),
    "problem": pa.string(),
    "findings": arrow.list_(FINDING),
}
DAMAGE: Columns = {"log": pa.string(), **{each.name: each.type for each in FINDING}}
CONSUMERS: Columns = {
    "log": pa.string(),
    "consumer": pa.string(),
    "kind": pa.string(),
    "durable": pa.bool_(),
    "filter": pa.string(),
    "delivered": pa.int64(),
    "ack_floor": pa.int64(),
    "pending": pa.int64(),
    "redelivered": pa.int64(),
    "lag": pa.int64(),
    "oldest_pending": pa.int64(),
}


class Pieces(InputPartition, Versioned):
    """What one worker does: tasks of one kind, or the name of a directory."""

    def __init__(self, pieces: list[Any]) -> None:
        super().__init__(pieces)
        self.pieces = pieces
        self.stamp()


class View(OneLineErrors, DataSourceReader):
    """A view over directories; subclasses plan and work."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options, self._columns = options, columns

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """In a worker. (An empty plan arrives as no partition.)"""
        if isinstance(partition, Pieces):
            partition.check()
            for piece in partition.pieces:
                yield from self.work(piece)

    def work(self, piece: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        raise NotImplementedError

    def names(self, path: str) -> list[str] | None:
        """The logs that are asked for by name; None for all. What is damaged needs not open for that."""
        if not self._options.logs:
            return None
        with open_volume(path, key=self._options.key) as volume:
            return self._options.chosen(volume.logs(), volume.origin)


class Checks(View):
    """`verify`: the checks themselves, and a row for each file."""

    def partitions(self) -> list[InputPartition]:
        """Neighbouring files together, up to `targetPartitionBytes`."""
        options = self._options
        tasks = [
            task
            for path in directories(options.path)
            for task in layout_at(path).check_tasks(path, self.names(path), options.key)
        ]
        return [Pieces(group) for group in packed(tasks, options.target_bytes, options.min_partitions)]

    def work(self, piece: CheckTask) -> Iterator[pa.RecordBatch]:
        """The files of one task."""
        rows = [
            {name: getattr(row, name) for name in VERIFY if name != "findings"}
            | {"findings": [finding(each) for each in row.findings]}
            for row in piece.rows()
        ]
        if rows:
            yield made(VERIFY, self._columns, rows)


class Damages(Checks):
    """`damage`: what the checks found, finding by finding."""

    def work(self, piece: CheckTask) -> Iterator[pa.RecordBatch]:
        """The findings of one task; a file that cannot be read is one, too."""
        rows: list[dict[str, Any]] = []
        for row in piece.rows():
            rows += [{"log": row.log} | finding(each) for each in row.findings]
            if row.problem is not None:
                empty = dict.fromkeys(DAMAGE)
                row_of = {"log": row.log, "file": row.file, "kind": "unreadable", "detail": row.problem}
                rows.append(empty | row_of | {"offset": 0, "length": row.bytes})
        if rows:
            yield made(DAMAGE, self._columns, rows)


class ConsumersView(View):
    """`consumers`: who reads, and how far."""

    def partitions(self) -> list[InputPartition]:
        """One for each directory."""
        return [Pieces([path]) for path in directories(self._options.path)]

    def work(self, piece: str) -> Iterator[pa.RecordBatch]:
        """Every reader of the logs that are asked for."""
        with open_volume(piece, key=self._options.key) as volume:
            for name in self._options.chosen(volume.logs(), volume.origin):
                rows = [asdict(reader) for reader in volume.open(name).readers.states()]
                if rows:
                    yield made(CONSUMERS, self._columns, rows)


class Latest(View):
    """`latest_per_subject`: each log from its end backwards, until every subject was seen."""

    def partitions(self) -> list[InputPartition]:
        """One for each log: its tasks, newest first, and how many subjects there are, where that is known."""
        want = self._options.predicate()
        found: list[InputPartition] = []
        with ExitStack() as stack:
            for place in places(self._options, stack):
                tasks = place.log.scan_tasks(want)[::-1]
                subjects = None
                if want == Predicate():
                    subjects = place.log.state().num_subjects or None
                if tasks:
                    found.append(Pieces([(tasks, want, subjects)]))
        return found

    def work(self, piece: tuple[list[ScanTask], Predicate, int | None]) -> Iterator[pa.RecordBatch]:
        """Memory: the subjects that were seen, and one task's newest messages."""
        tasks, want, expected = piece
        seen: Any = arrow.array([], pa.string())
        judge = DamageFindings(self._options.mode, self._columns)
        for task in tasks:
            newest: Any = None
            for batch in task.batches(want, judge.found):
                judge.raise_first()
                subjects = one_column(batch, "subject")
                last = _last_of_each(subjects)
                fresh = kernels.and_(last, kernels.invert(kernels.is_in(subjects, value_set=seen)))
                chosen = batch.select(
                    kernels.cast(fresh, pa.uint8()).to_numpy(zero_copy_only=False).tobytes()
                )
                if not len(chosen):
                    continue
                names = [*self._columns, *(["subject"] if "subject" not in self._columns else [])]
                rows = arrow.Table.from_batches([to_record_batch(chosen, task.log, names)])
                if newest is not None:
                    older = newest.filter(
                        kernels.invert(
                            kernels.is_in(newest["subject"], value_set=rows["subject"].combine_chunks())
                        )
                    )
                    rows = arrow.concat_tables([older, rows])
                newest = rows
            judge.raise_first()
            if newest is not None:
                seen = arrow.concat_arrays([seen, *newest["subject"].chunks])
                yield from newest.select(self._columns).combine_chunks().to_batches()
            if expected is not None and len(seen) >= expected:
                break
        judge.warn(tasks[0].log)


def _last_of_each(subjects: Any) -> Any:
    """Which rows are the last ones of their subject."""
    numbered = arrow.table({"subject": subjects, "row": arrow.array(range(len(subjects)), pa.int64())})
    rows = numbered.group_by("subject").aggregate([("row", "max")])["row_max"]
    return kernels.is_in(numbered["row"].combine_chunks(), value_set=rows.combine_chunks())


VIEWS: dict[str, tuple[Callable[[ReadOptions, list[str]], DataSourceReader], Columns]] = {
    "latest_per_subject": (Latest, MESSAGE),
    "verify": (Checks, VERIFY),
    "damage": (Damages, DAMAGE),
    "consumers": (ConsumersView, CONSUMERS),
    "acks": (AckReader, acks.COLUMNS),
}
WHOLE_FILES = ("verify", "damage", "consumers")
"""Views that know no sequences, times and subjects."""


def view_reader(options: ReadOptions, columns: list[str]) -> DataSourceReader:
    """The reader of a view."""
    if options.view in WHOLE_FILES and options.predicate() != Predicate():
        raise BadInput(
            f"headrace source: view={options.view} looks at whole files: subjects, sequences and times mean nothing there"
        )
    if options.view == "latest_per_subject" and options.mode == PERMISSIVE:
        raise BadInput(
            "headrace source: view=latest_per_subject has no rows for damage: mode=FAILFAST or DROPMALFORMED"
        )
    return VIEWS[options.view][0](options, columns)
