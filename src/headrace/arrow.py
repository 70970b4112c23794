"""Batches as Arrow: the columns every layout has, made by the core, wrapped here without a copy.

seq bigint · time timestamp[us, UTC] · time_ns bigint · log string · subject string · key binary ·
headers map<string, list<string>> · data binary

`time` and `time_ns` are null where a message has no time (RabbitMQ keeps none of its own, nor did Kafka at first).
`headers_raw binary`, only when asked for by name: the headers as stored, in the codec of the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace._core import Batch, Buffer, batch_from_columns
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
NO_TIME = 0
"""In a batch: a message without a time."""
_FIELDS[RAW_HEADERS] = pa.binary()


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of the asked columns, in the asked order (default: all)."""
    return pa.schema([pa.field(name, _type(name)) for name in columns or COLUMNS])


def to_record_batch(batch: Batch, log: str, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The asked columns of a batch; the others are not even decoded."""
    wanted = list(columns or COLUMNS)
    return from_buffers(len(batch), batch.arrow_columns(made_by_core(wanted)), log, wanted)


def made_by_core(columns: Sequence[str]) -> list[str]:
    """Those that the core makes: all but the log's name."""
    return [name for name in columns if name != "log"]


def from_buffers(
    count: int, made: Mapping[str, tuple[Buffer, ...]], log: str, wanted: Sequence[str]
) -> pa.RecordBatch:
    """What the core has made, wrapped."""
    arrays: list[Any] = [
        same_text(log, count) if name == "log" else _array(name, count, made[name]) for name in wanted
    ]
    # The stubs leave the element type of arrays open.
    batches: Any = pa.RecordBatch
    return batches.from_arrays(arrays, schema=schema(wanted))


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


def same_text(log: str, count: int) -> Any:
    """A column with one value."""
    return _names(log, 1 << max(count - 1, 0).bit_length()).slice(0, count)


def _buffer(buffer: Buffer) -> pa.Buffer | None:
    return pa.py_buffer(buffer) if len(buffer) else None


def _data(buffer: Buffer) -> pa.Buffer:
    return pa.py_buffer(buffer)


def _array(name: str, count: int, parts: tuple[Buffer, ...]) -> Any:
    kind = _FIELDS[name]
    if len(parts) == 1:
        return pa.Array.from_buffers(kind, count, [None, _data(parts[0])])
    if len(parts) == 2:
        return pa.Array.from_buffers(kind, count, [_buffer(parts[0]), _data(parts[1])])
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


# The way back


def from_record_batch(
    rows: pa.RecordBatch,
    *,
    subject: str | None = None,
    key: str | None = "key",
    positions: Any = None,
    times: Any = None,
) -> Batch:
    """Rows as messages: columns subject (or the one given), data, headers, and the named key; texts become bytes."""
    found = {name: _whole(rows.column(name)) for name in rows.schema.names}
    subjects = subject.encode() if subject is not None else _parts(_as_bytes(found["subject"]))
    headers = found.get("headers")
    return batch_from_columns(
        len(rows),
        subjects,
        _parts(_as_bytes(found["data"])) if "data" in found else None,
        _parts(_as_bytes(found[key])) if key in found else None,
        None if headers is None or pa.types.is_null(headers.type) else _header_parts(headers),
        None if positions is None else _numbers(positions),
        None if times is None else _numbers(times, none=NO_TIME),
    )


def _whole(array: Any) -> Any:
    chunked: Any = pa.ChunkedArray
    return array.combine_chunks() if isinstance(array, chunked) else array


def _as_bytes(array: Any) -> Any:
    kind = array.type
    if kind in (pa.binary(), pa.string()):
        return array
    if pa.types.is_null(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return array.cast(pa.binary())
    raise BadInput(f"a column of type {kind}; expected string or binary")


def _parts(array: Any) -> tuple[Any, Any, Any, int]:
    validity, offsets, data = array.buffers()
    return _view(validity), _view(offsets) or b"", _view(data), array.offset


def _view(buffer: pa.Buffer | None) -> memoryview | None:
    """Arrow says signed bytes, the core wants plain ones."""
    return None if buffer is None else memoryview(buffer).cast("B")


def _header_parts(array: Any) -> tuple[Any, Any, Any, Any]:
    if array.type != _HEADERS:
        array = array.cast(_HEADERS)
    names, lists = array.keys, array.items
    values = lists.values
    return (
        (_view(array.buffers()[0]), _view(array.buffers()[1]) or b"", None, array.offset),
        _parts(names),
        (_view(lists.buffers()[0]), _view(lists.buffers()[1]) or b"", None, lists.offset),
        _parts(values),
    )


def _numbers(array: Any, none: int | None = None) -> Any:
    """`none`: what stands for null."""
    whole = _whole(array).cast(pa.int64())
    if whole.null_count and none is not None:
        whole = whole.fill_null(none)
    if whole.null_count:
        raise BadInput("a column of numbers with nulls")
    # Not by numpy: pyarrow does not bring it, and reading an archive back must not need it.
    values = _view(whole.buffers()[1])
    return b"" if values is None else values[whole.offset * 8 : (whole.offset + len(whole)) * 8]


def from_archive(rows: pa.RecordBatch, codec: str) -> Batch:
    """The messages of columns seq, time_ns, subject, key, headers_raw and data, byte for byte as they were stored."""
    found = {name: _compact(_whole(rows.column(name))) for name in rows.schema.names}
    return batch_from_columns(
        len(rows),
        _parts(_as_bytes(found["subject"])),
        _parts(_as_bytes(found["data"])),
        _parts(_as_bytes(found["key"])),
        None,
        _numbers(found["seq"]),
        _numbers(found["time_ns"], none=NO_TIME),
        (_parts(_as_bytes(found[RAW_HEADERS])), codec),
    )


def _compact(array: Any) -> Any:
    """A small slice of something large by itself: the core copies buffers as a whole."""
    return pa.concat_arrays([array]) if array.get_total_buffer_size() > 2 * array.nbytes else array
