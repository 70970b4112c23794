"""Errors of Headrace reach the user of Spark as their one line: no traceback of a worker stands above it.

A worker reports an exception with its traceback unless SPARK_HIDE_TRACEBACK is set when it does, and then ends. So it is
set at the last moment, and only in a process that Spark has started: errors of others, in other workers, keep theirs.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from headrace.errors import HeadraceError

HIDE = "SPARK_HIDE_TRACEBACK"
_CALLED_BY_SPARK = frozenset(
    {
        # Not streamReader: Spark then trips over itself, and only the traceback has the cause.
        *("schema", "reader", "writer", "streamWriter"),
        *("partitions", "read", "pushFilters"),
        *("initialOffset", "latestOffset", "reportLatestOffset", "prepareForTriggerAvailableNow"),
        *("write", "commit", "abort"),
    }
)


class OneLineErrors:
    """Base of what Spark calls."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _CALLED_BY_SPARK & vars(cls).keys():
            setattr(cls, name, _hiding(vars(cls)[name]))


def _hiding(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            made = method(*given, **named)
        except HeadraceError:
            hide_traceback()
            raise
        return _rest(cast("Iterator[Any]", made)) if isinstance(made, Iterator) else made

    return call


def _rest(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except HeadraceError:
        hide_traceback()
        raise


def hide_traceback() -> None:
    """The exception that is on its way is reported by its text."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name.startswith("pyspark."):
        os.environ[HIDE] = "1"
