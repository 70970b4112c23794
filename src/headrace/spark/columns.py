"""Arrow types and Spark's names for them: one definition per view, read by both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from headrace.arrow import COLUMNS, schema, to_record_batch
from headrace.errors import BadInput
from headrace.layouts.base import Batch, Damage

Columns = Mapping[str, pa.DataType]
# The stubs leave the element types of arrays open, and with them everything that is made of arrays.
arrow: Any = pa

MESSAGE: Columns = {each.name: each.type for each in arrow.schema(schema(COLUMNS))}
"""The columns that every message has."""
TIME = pa.timestamp("us", tz="UTC")
FINDING: Any = arrow.struct(
    [
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("kind", pa.string()),
        ("detail", pa.string()),
        ("first_seq", pa.int64()),
        ("next_seq", pa.int64()),
    ]
)
"""One `Damage`."""

_SIMPLE: dict[Any, str] = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    TIME: "timestamp",
}


def ddl(kind: Any) -> str:
    """Spark's name of an Arrow type."""
    if arrow.types.is_struct(kind):
        return f"struct<{','.join(f'{each.name}:{ddl(each.type)}' for each in kind)}>"
    if arrow.types.is_map(kind):
        return f"map<{ddl(kind.key_type)},{ddl(kind.item_type)}>"
    if arrow.types.is_list(kind):
        return f"array<{ddl(kind.value_type)}>"
    return _SIMPLE[kind]


def schema_text(columns: Columns, names: Sequence[str] = ()) -> str:
    """The schema as Spark takes it: all columns, or those named."""
    return ", ".join(f"{name} {ddl(columns[name])}" for name in known(columns, names or list(columns)))


def known(columns: Columns, names: Sequence[str]) -> list[str]:
    """The names again; BadInput for one that is not there."""
    for name in names:
        if name not in columns:
            raise BadInput(f"headrace source: no column {name!r}; there are: {', '.join(columns)}")
    return list(names)


def one_column(batch: Batch, name: str) -> Any:
    """One column of messages as an Arrow array."""
    return cast("Any", to_record_batch(batch, "", [name])).column(0)


def made(columns: Columns, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """A few rows (files, readers, findings: never messages) as Arrow."""
    arrays: list[Any] = [arrow.array([row[name] for row in rows], columns[name]) for name in names]
    return arrow.RecordBatch.from_arrays(
        arrays, schema=pa.schema([pa.field(name, columns[name]) for name in names])
    )


def finding(damage: Damage) -> dict[str, Any]:
    """A finding as a value of `FINDING`."""
    return {
        "file": damage.file,
        "offset": damage.offset,
        "length": damage.length,
        "kind": damage.kind,
        "detail": damage.detail,
        "first_seq": damage.first_seq,
        "next_seq": damage.next_seq,
    }
