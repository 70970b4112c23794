"""Batches as Arrow: the columns every layout has, made by the core, wrapped here without a copy.

seq bigint · time timestamp[us, UTC] · time_ns bigint · log string · subject string · key binary ·
headers map<string, list<string>> · data binary

`headers_raw binary`, only when asked for by name: the headers as stored, in the codec of the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace._core import Batch, Buffer
from headrace.errors import BadInput

_HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
_FIELDS: dict[str, pa.DataType] = {
    "seq": pa.int64(),
    "time": pa.timestamp("us", tz="UTC"),
    "time_ns": pa.int64(),
    "log": pa.string(),
    "subject": pa.string(),
    "key": pa.binary(),
    "headers": _HEADERS,
    "data": pa.binary(),
}
COLUMNS = tuple(_FIELDS)
RAW_HEADERS = "headers_raw"
_FIELDS[RAW_HEADERS] = pa.binary()


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of the asked columns, in the asked order (default: all)."""
    return pa.schema([pa.field(name, _type(name)) for name in columns or COLUMNS])


def to_record_batch(batch: Batch, log: str, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The asked columns of a batch; the others are not even decoded."""
    wanted = list(columns or COLUMNS)
    made = batch.arrow_columns([name for name in wanted if name != "log"])
    arrays: list[Any] = [
        _log(log, len(batch)) if name == "log" else _array(name, len(batch), made[name]) for name in wanted
    ]
    # The stubs leave the element type of arrays open.
    batches: Any = pa.RecordBatch
    return batches.from_arrays(arrays, schema=schema(wanted))


def from_record_batch(batch: pa.RecordBatch, codec: str) -> Batch:
    """The messages of columns seq, time_ns, subject, key, headers_raw and data; headers in the given codec."""

    columns: Any = batch

    def column(name: str) -> list[Any]:
        return columns.column(name).to_pylist()

    return Batch.build(
        column("subject"),
        column("data"),
        column(RAW_HEADERS),
        times=column("time_ns"),
        positions=column("seq"),
        keys=column("key"),
        header_codec=codec,
    )


def _type(name: str) -> pa.DataType:
    if name not in _FIELDS:
        raise BadInput(f"no column {name!r}; there are: {', '.join(COLUMNS)}")
    return _FIELDS[name]


@lru_cache(maxsize=16)
def _names(log: str, count: int) -> Any:
    """The name `count` times. Made from buffers: pyarrow's own ways from Python values load pandas first."""
    name = log.encode()
    offsets = array("i", range(0, (count + 1) * len(name), len(name)) if name else bytes(count + 1))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(name * count)]
    )


def _log(log: str, count: int) -> Any:
    return _names(log, 1 << max(count - 1, 0).bit_length()).slice(0, count)


def _buffer(buffer: Buffer) -> pa.Buffer | None:
    return pa.py_buffer(buffer) if len(buffer) else None


def _data(buffer: Buffer) -> pa.Buffer:
    return pa.py_buffer(buffer)


def _array(name: str, count: int, parts: tuple[Buffer, ...]) -> Any:
    kind = _FIELDS[name]
    if len(parts) == 1:
        return pa.Array.from_buffers(kind, count, [None, _data(parts[0])])
    if name != "headers":
        return pa.Array.from_buffers(kind, count, [_buffer(parts[0]), _data(parts[1]), _data(parts[2])])
    validity, map_offsets, name_offsets, names, list_offsets, value_offsets, values = parts
    name_count, value_count = len(name_offsets) // 4 - 1, len(value_offsets) // 4 - 1
    keys = pa.Array.from_buffers(pa.string(), name_count, [None, _data(name_offsets), _data(names)])
    texts = pa.Array.from_buffers(pa.string(), value_count, [None, _data(value_offsets), _data(values)])
    # The type stubs know no nested arrays from buffers.
    nested: Any = pa.Array.from_buffers
    lists = nested(pa.list_(pa.string()), name_count, [None, _data(list_offsets)], children=[texts])
    pairs: Any = pa.StructArray
    entries = pairs.from_arrays([keys, lists], fields=[_HEADERS.key_field, _HEADERS.item_field])
    return nested(_HEADERS, count, [_buffer(validity), _data(map_offsets)], children=[entries])
