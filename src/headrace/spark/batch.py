"""Batch reading. Filters are taken only by the reader that is made when the user asks for it: Spark refuses queries
of a source that could take them while its own switch is off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.layouts.base import Predicate
from headrace.spark.options import Asked
from headrace.spark.planning import parts, rows


class BlockReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, asked: Asked, columns: list[str]) -> None:
        self._asked, self._columns = asked, columns
        self._predicate = asked.predicate()

    def partitions(self) -> list[InputPartition]:
        """What may hold a match, in pieces of about `targetPartitionBytes`. The store is only read."""
        return parts(self._asked, self._predicate)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages of one piece."""
        yield from rows(partition, self._columns)


class FilteringReader(BlockReader):
    """Takes filters on seq, time, time_ns and subject to skip whole blocks; Spark applies all of them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow what is read; every filter goes back, so that nothing depends on how exactly we understood it."""
        for each in filters:
            self._predicate = narrowed(self._predicate, each)
        return filters


def narrowed(want: Predicate, found: Filter) -> Predicate:
    """What a filter leaves; unknown ones leave everything."""
    path: Any = getattr(found, "attribute", ())
    value: Any = getattr(found, "value", None)
    if len(path) != 1 or value is None:
        return want
    name = str(path[0])
    if name == "subject":
        if isinstance(found, spark.EqualTo) and not want.subjects:
            return replace(want, subjects=(str(value),))
        return want
    if name == "time" and isinstance(value, datetime):
        # Rows show whole microseconds: the whole of the one named belongs to it.
        low, high = _ns(value), _ns(value) + 999
    elif name in ("seq", "time_ns") and isinstance(value, int):
        low = high = value
    else:
        return want
    least: int | None = None
    below: int | None = None
    if isinstance(found, spark.EqualTo):
        least, below = low, high + 1
    elif isinstance(found, spark.GreaterThan | spark.GreaterThanOrEqual):
        least = low + (name != "time" and isinstance(found, spark.GreaterThan))
    elif isinstance(found, spark.LessThan | spark.LessThanOrEqual):
        below = low if isinstance(found, spark.LessThan) else high + 1
    if name == "seq":
        return replace(
            want, first=_most(want.first, _position(least)), next=_least(want.next, _position(below))
        )
    return replace(want, since_ns=_most(want.since_ns, least), until_ns=_least(want.until_ns, below))


def _position(value: int | None) -> int | None:
    return None if value is None else max(value, 0)


def _ns(value: datetime) -> int:
    moment = value.astimezone(UTC) if value.tzinfo is not None else value.astimezone()
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
