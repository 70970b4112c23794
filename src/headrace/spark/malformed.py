"""Bytes that are not what they should be: `mode=` says what becomes of a query that meets them.

    FAILFAST        it stops; the error names file, offset and remedy (the default: nothing is left out silently)
    PERMISSIVE      a row for each damaged range, its place in `_corrupt`; sound rows have null there
    DROPMALFORMED   they are left out, and counted in the worker's log

Sound messages before and behind a damaged range are read in all modes but the first. What was repaired, and an index that was not
used, cost no message and are no reason to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrow import COLUMNS, same_text, to_record_batch
from headrace.errors import Damaged
from headrace.layouts.base import Batch, Damage, KnownRange, Predicate, ScanTask
from headrace.spark.columns import FINDING, MESSAGE, arrow, finding
from headrace.spark.layout_types import own_types
from headrace.spark.options import MODES

LOG = logging.getLogger("headrace")
CORRUPT = "_corrupt"
FAILFAST, PERMISSIVE, DROPMALFORMED = MODES


def lost(damage: Damage, want: Predicate | None = None) -> bool:
    """Whether it may have cost a message, one that was asked for."""
    if not damage.costs_messages:
        return False
    if want is None:
        return True
    first, following = damage.first_seq, damage.next_seq
    before = want.first is not None and following is not None and following <= want.first
    behind = want.next is not None and first is not None and first >= want.next
    return not before and not behind


class DamageFindings:
    """What one worker met, and what is to be done about it."""

    def __init__(self, mode: str, columns: Sequence[str], want: Predicate | None = None) -> None:
        self.found: list[Damage] = []
        self._mode, self._columns, self._want = mode, list(columns), want
        self._returned = 0

    def costly(self) -> list[Damage]:
        """New ones that matter."""
        new, self._returned = self.found[self._returned :], len(self.found)
        return [each for each in new if lost(each, self._want)]

    def raise_first(self) -> None:
        """FAILFAST: the first finding ends it."""
        if self._mode == FAILFAST:
            for each in self.costly():
                seqs = f" (sequence {each.first_seq})" if each.first_seq is not None else ""
                raise Damaged(
                    each.file,
                    each.offset,
                    f"{each.kind} of {each.length} bytes{seqs}: {each.detail}",
                    "sound messages",
                    "mode=PERMISSIVE shows damaged ranges as rows, mode=DROPMALFORMED leaves them out; `headrace verify` lists them",
                )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """PERMISSIVE: a row for each new finding."""
        if self._mode == PERMISSIVE and (new := self.costly()):
            yield _as_rows(new, self._columns)

    def warn(self, log: str) -> None:
        """DROPMALFORMED: how many were left out."""
        costly = [each for each in self.found if lost(each, self._want)]
        if self._mode == DROPMALFORMED and costly:
            LOG.warning(
                "headrace source: log %s: %d damaged ranges left out, the first in %s at byte %d: %s",
                log, len(costly), costly[0].file, costly[0].offset, costly[0].detail,
            )  # fmt: skip


def known_damage(
    known: Sequence[Damage], want: Predicate, columns: Sequence[str], mode: str
) -> Iterator[pa.RecordBatch]:
    """What `mode` makes of damage that was met while planning."""
    findings = DamageFindings(mode, columns, want)
    findings.found += known
    findings.raise_first()
    yield from findings.rows()
    findings.warn("")


def scan(task: ScanTask, want: Predicate, columns: Sequence[str], mode: str) -> Iterator[pa.RecordBatch]:
    """The messages of a task as Arrow, and what `mode` makes of the rest."""
    known = known_range(task, want, columns)
    if known is not None:
        yield from _numbered(task.log, known, columns)
        return
    findings = DamageFindings(mode, columns, want)
    for made in _record_batches(task.showing(columns), want, columns, findings.found):
        findings.raise_first()
        yield made
        yield from findings.rows()
    findings.raise_first()
    yield from findings.rows()
    findings.warn(task.log)


def known_range(task: ScanTask, want: Predicate, columns: Sequence[str]) -> KnownRange | None:
    """The positions that a task would show, where only those are asked for and the index accounts for them."""
    return task.known_range(want) if set(columns) <= {"seq", "log"} else None


def _numbered(log: str, known: KnownRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Positions that the index accounts for: no block is read for them."""
    seqs: Any = np.arange(known.first, known.next, dtype=np.int64)
    if known.removed:
        seqs = seqs[~np.isin(seqs, np.array(known.removed, np.int64))]
    if len(seqs):
        # From buffers: pyarrow's own ways from Python values load pandas first.
        numbers = arrow.Array.from_buffers(pa.int64(), len(seqs), [None, pa.py_buffer(seqs)])
        made = [numbers if name == "seq" else same_text(log, len(seqs)) for name in columns]
        yield arrow.RecordBatch.from_arrays(made, schema=_schema(columns))


def _record_batches(
    task: ScanTask, want: Predicate, columns: Sequence[str], found: list[Damage]
) -> Iterator[pa.RecordBatch]:
    if set(columns) <= set(COLUMNS):
        yield from task.scan(columns, want, found)
        return
    for batch in task.batches(want, found):
        yield record_batch(batch, task, columns)


def record_batch(batch: Batch, task: ScanTask, columns: Sequence[str]) -> pa.RecordBatch:
    """`to_record_batch` with the columns that not every message has: `_corrupt` (null: it is sound) and the layout's own."""
    plain = [name for name in columns if name in COLUMNS]
    made = to_record_batch(batch, task.log, plain or ["seq"])
    arrays: list[Any] = []
    for name in columns:
        if name == CORRUPT:
            arrays.append(arrow.nulls(len(batch), FINDING))
        else:
            arrays.append(made.column(name) if name in plain else _own_column(name, batch, task))
    return arrow.RecordBatch.from_arrays(arrays, schema=_schema(columns))


def _own_column(name: str, batch: Batch, task: ScanTask) -> Any:
    """One of the layout's own columns; null where the product of the task has no such thing."""
    found = task.own_column(name, batch)
    kind = own_types()[name]
    return arrow.nulls(len(batch), kind) if found is None else found.cast(kind)


def _schema(columns: Sequence[str]) -> Any:
    types: dict[str, Any] = {name: MESSAGE[name] for name in COLUMNS} | {CORRUPT: FINDING}
    if not types.keys() >= set(columns):
        types |= own_types()
    return arrow.schema([arrow.field(name, types[name]) for name in columns])


def _as_rows(damage: list[Damage], columns: Sequence[str]) -> pa.RecordBatch:
    kinds = _schema(columns)
    values: dict[str, list[Any]] = {
        "seq": [each.first_seq for each in damage],
        CORRUPT: [finding(each) for each in damage],
    }
    arrays: list[Any] = [
        arrow.array(values[name], kinds.field(name).type)
        if name in values
        else arrow.nulls(len(damage), kinds.field(name).type)
        for name in columns
    ]
    return arrow.RecordBatch.from_arrays(arrays, schema=kinds)
