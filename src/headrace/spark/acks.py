"""`view=acks`: ack samples and advisories, from a stream that captures `$JS.EVENT.>`, as typed columns.

    {"type": "io.nats.jetstream.metric.v1.consumer_ack", "id": …, "timestamp": …, "stream": …, "consumer": …,
     "consumer_seq": 7, "stream_seq": 9, "ack_time": 1200000, "deliveries": 1}

All payloads of a batch are parsed in one step by Arrow's JSON reader; a batch in which one of them is no JSON is parsed one by one,
and that one has nulls (its bytes are in `json`). The columns are the union of what the events have; an event without a field has null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.json
from pyspark.sql.datasource import InputPartition

from headrace.errors import NotFound
from headrace.layouts.base import Log
from headrace.layouts.stream_store import StreamStore
from headrace.spark.batch import BlockReader
from headrace.spark.columns import TIME, Columns, arrow
from headrace.spark.kernels import kernels
from headrace.spark.options import ReadOptions
from headrace.spark.planning import places

arrow_json: Any = pyarrow.json
EVENTS = "$JS.EVENT.>"
_PREFIX = "$JS.EVENT"
NEEDED = ("seq", "time", "time_ns", "log", "subject", "data")
_TEXTS = ("type", "id", "timestamp", "stream", "consumer", "reason", "action", "domain", "account")
_NUMBERS = ("consumer_seq", "stream_seq", "ack_time", "deliveries")
_PARSED: Any = arrow.schema(
    [pa.field(name, pa.string()) for name in _TEXTS] + [pa.field(name, pa.int64()) for name in _NUMBERS]
)
COLUMNS: Columns = {
    "kind": pa.string(),
    "type": pa.string(),
    "stream": pa.string(),
    "consumer": pa.string(),
    "consumer_seq": pa.int64(),
    "stream_seq": pa.int64(),
    "deliveries": pa.int64(),
    "ack_time_ns": pa.int64(),
    "time": TIME,
    "reason": pa.string(),
    "action": pa.string(),
    "domain": pa.string(),
    "account": pa.string(),
    "id": pa.string(),
    "seq": pa.int64(),
    "stored": TIME,
    "log": pa.string(),
    "subject": pa.string(),
    "json": pa.string(),
}


def narrowed(options: ReadOptions) -> ReadOptions:
    """Only the streams that capture events, and of them only events. NotFound says how to make one."""
    with ExitStack() as stack:
        names = [place.log.name for place in places(options, stack) if _captures(place.log)]
    if not names:
        raise NotFound(
            f"headrace source: no stream in {options.path} captures {EVENTS}; `headrace pipeline health --setup` makes one "
            "on a running server"
        )
    return replace(options, logs=tuple(dict.fromkeys(names)), subjects=options.subjects or (EVENTS,))


def _captures(log: Log) -> bool:
    if any(each.startswith(_PREFIX) for each in log.subjects):
        return True
    return isinstance(log, StreamStore) and bool(log.subjects_state(EVENTS))


class AckReader(BlockReader):
    """A batch of events."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        super().__init__(narrowed(options), list(NEEDED))
        self._shown = columns

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The events of one piece."""
        for batch in super().read(partition):
            yield events(batch, self._shown)


def events(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Messages with the columns of `NEEDED` as events."""
    texts = cast("Any", batch).column("data")
    parsed = _parsed(texts)
    if parsed is None:
        parsed = arrow.concat_tables(
            found
            if (found := _parsed(texts.slice(row, 1))) is not None
            else arrow.Table.from_pylist([{}], _PARSED)
            for row in range(len(texts))
        ).combine_chunks()
    made: dict[str, Any] = {name: parsed[name].combine_chunks() for name in (*_TEXTS, *_NUMBERS)}
    made["kind"] = _kind(made["type"])
    made["ack_time_ns"] = made["ack_time"]
    made["time"] = kernels.coalesce(_times(made["timestamp"]), batch.column("time"))
    made["stored"], made["json"] = batch.column("time"), _utf8(texts)
    made |= {name: batch.column(name) for name in ("seq", "log", "subject")}
    return arrow.RecordBatch.from_arrays(
        [made[name] for name in columns],
        schema=pa.schema([pa.field(name, COLUMNS[name]) for name in columns]),
    )


def _parsed(texts: Any) -> Any:
    """A row for each text; None when one of them is not one JSON object."""
    whole: Any = arrow.ListArray.from_arrays([0, len(texts)], kernels.fill_null(texts, b"{}"))
    lines = kernels.binary_join(whole, b"\n")[0].as_buffer()
    options = arrow_json.ParseOptions(
        explicit_schema=_PARSED, newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    try:
        found = arrow_json.read_json(
            pa.BufferReader(lines), arrow_json.ReadOptions(block_size=max(lines.size + 1, 1024)), options
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return found.combine_chunks() if found.num_rows == len(texts) else None


def _kind(types: Any) -> Any:
    """The last word: `consumer_ack` of `io.nats.jetstream.metric.v1.consumer_ack`."""
    return kernels.replace_substring_regex(types, r"^.*\.", "")


def _times(texts: Any) -> Any:
    """RFC 3339 as whole microseconds; null where it is something else."""
    found = kernels.extract_regex(
        texts, r"^(?P<head>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<part>\.\d{1,6})?\d*(?P<zone>Z|[+-]\d\d:\d\d)$"
    )
    part = kernels.struct_field(found, "part")
    whole = kernels.binary_join_element_wise(
        kernels.struct_field(found, "head"),
        kernels.coalesce(part, ""),
        kernels.struct_field(found, "zone"),
        "",
    )
    try:
        return kernels.cast(whole, TIME)
    except pa.ArrowInvalid:
        return arrow.nulls(len(texts), TIME)


def _utf8(data: Any) -> Any:
    try:
        return kernels.cast(data, pa.string())
    except pa.ArrowInvalid:
        return arrow.array(
            [None if each is None else each.decode("utf-8", "replace") for each in data.to_pylist()],
            pa.string(),
        )
