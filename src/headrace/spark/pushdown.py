"""Filters of a query, taken to skip whole blocks. A reader of its own, made only when the user asks for it: Spark refuses
queries of a source that could take filters while its own switch is off. Needs PySpark 4.1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import Filter

from headrace.layouts.base import Predicate
from headrace.spark.batch import BlockReader


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
