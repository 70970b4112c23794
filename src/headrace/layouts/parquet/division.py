"""How an archive is divided into directories, as Hive and Spark name them: `date=2026-11-16/region=eu/…`.

    date, hour           of the message's time (UTC)
    orders.{region}.>    a pattern of subjects: each name in braces is a column, taken from that token; a subject that does
                         not fit goes to the directory of "no value"

Worked out for distinct values (days, subjects), never for single messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as compute

from headrace.arrow import COLUMNS, RAW_HEADERS
from headrace.errors import BadInput

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
DIRECTORIES_MAX = 1000
"""Of one group of blocks: more would be a file for every few messages."""
VALUE_BYTES_MAX = 200
_PERIODS = {"date": ("%Y-%m-%d", 86_400_000_000), "hour": ("%Y-%m-%dT%H", 3_600_000_000)}
_NAME = re.compile(r"\{([a-z_][a-z0-9_]*)\}")

Values = tuple[str | None, ...]
pc: Any = compute  # the stubs know few of the functions


@dataclass(frozen=True, slots=True)
class RowDivision:
    """Read and checked: what is asked for, and the columns it makes."""

    by: tuple[str, ...]
    columns: tuple[str, ...]

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """The batch in pieces of one directory each; order is kept inside a piece."""
        if not self.by or not batch.num_rows:
            if batch.num_rows:
                yield (), batch
            return
        parts: list[tuple[Any, list[Values]]] = [self._codes(one, batch) for one in self.by]
        if all(len(values) == 1 for _, values in parts):
            yield tuple(each for _, values in parts for each in values[0]), batch
            return
        code = parts[0][0]
        for codes, values in parts[1:]:
            code = pc.add(pc.multiply(code, len(values)), codes)
        numbers: list[int] = pc.unique(code).to_pylist()
        for one in sorted(numbers):
            chosen: Values = ()
            rest = one
            for _, values in reversed(parts):
                rest, at = divmod(rest, len(values))
                chosen = values[at] + chosen
            yield chosen, batch.filter(pc.equal(code, one))

    def _codes(self, by: str, batch: pa.RecordBatch) -> tuple[Any, list[Values]]:
        """For each row the number of its values, and the values by number."""
        if by in _PERIODS:
            form, us = _PERIODS[by]
            periods = pc.floor(pc.divide(pc.cast(batch.column("time"), pa.int64()), us))
            counts = _floored(batch.column("time"), us, periods)
            coded: Any = pc.dictionary_encode(counts, null_encoding="encode")  # no time: no value
            starts = pc.cast(pc.multiply(coded.dictionary, us), pa.timestamp("us", tz="UTC"))
            texts = [[text] for text in pc.strftime(starts, form).to_pylist()]
        else:
            coded = pc.dictionary_encode(batch.column("subject"))
            found = pc.extract_regex(coded.dictionary, _expression(by)).to_pylist()
            names = _NAME.findall(by)
            texts = [[None if row is None else row[name] for name in names] for row in found]
        known: dict[Values, int] = {}
        numbers = [known.setdefault(tuple(row), len(known)) for row in texts]
        codes = pc.take(pa.array(numbers, pa.int64()), coded.indices)
        return codes, list(known)

    def directory(self, values: Values) -> str:
        """Such as `date=2026-11-16/region=eu`; empty when nothing is asked for."""
        return "/".join(
            f"{name}={NO_VALUE if value is None else _escaped(name, value)}"
            for name, value in zip(self.columns, values, strict=True)
        )

    def named(self, values: Values) -> dict[str, str | None]:
        """The values by column."""
        return dict(zip(self.columns, values, strict=True))


def read_division(by: Sequence[str]) -> RowDivision:
    """BadInput names what cannot be read."""
    columns: list[str] = []
    for each in by:
        names = [each] if each in _PERIODS else _NAME.findall(each)
        if not names:
            raise BadInput(
                f"divide by {each!r}: write date, hour, or a pattern of subjects such as 'orders.{{region}}.>'"
            )
        for name in names:
            if name in (*COLUMNS, RAW_HEADERS) or name in columns:
                raise BadInput(f"divide by {each!r}: {name!r} is a column already; give another name")
            columns.append(name)
        if each not in _PERIODS:
            _expression(each)
    return RowDivision(tuple(by), tuple(columns))


def _floored(times: Any, us: int, periods: Any) -> Any:
    """Whole periods since 1970; division cuts towards zero, so that times before it need a step down."""
    counts = pc.cast(periods, pa.int64())
    below = pc.less(pc.cast(times, pa.int64()), pc.multiply(counts, us))
    return pc.subtract(counts, pc.cast(below, pa.int64()))


def _expression(pattern: str) -> str:
    tokens = pattern.split(".")
    made: list[str] = []
    for at, token in enumerate(tokens):
        named = _NAME.fullmatch(token)
        if named is not None:
            made.append(rf"(?P<{named[1]}>[^.]+)")
        elif token == "*":
            made.append(r"[^.]+")
        elif token == ">" and at == len(tokens) - 1:
            made.append(r".+")
        elif token and not set(token) & set("{}*>"):
            made.append(re.escape(token))
        else:
            raise BadInput(
                f"divide by {pattern!r}: {token!r} is no token; write a word, *, {{name}}, or > at the end"
            )
    return "^" + r"\.".join(made) + "$"


def _escaped(name: str, value: str) -> str:
    text = quote(value, safe=" -_:,+@~!$&()") if value else NO_VALUE
    if len(text) > VALUE_BYTES_MAX:
        raise BadInput(
            f"divide by {name}: the value {value[:40]!r}… makes a directory name of more than {VALUE_BYTES_MAX} bytes"
        )
    return text
