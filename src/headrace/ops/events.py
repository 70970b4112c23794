"""Events of servers as columns: ack samples and advisories out of a stream that captures `$JS.EVENT.>`.

    subject       $JS.EVENT.METRIC.CONSUMER.ACK.<stream>.<consumer>, $JS.EVENT.ADVISORY.CONSUMER.<WORD>.<stream>.<consumer>
    payload       JSON; whole batches are parsed by Arrow, with the fields below and no others

The stream is read like any other: from files, an archive, or a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.json as json_reader

from headrace.errors import BadInput
from headrace.layouts.base import Log, Predicate, Volume

ACK = "$JS.EVENT.METRIC.CONSUMER.ACK.>"
MAX_DELIVER = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"
NAKED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.>"
TERMINATED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>"
CAPTURED = "$JS.EVENT.>"
STREAM = "JS_EVENTS"
FIELDS = pa.schema(
    [
        ("stream", pa.string()),
        ("consumer", pa.string()),
        ("consumer_seq", pa.int64()),
        ("stream_seq", pa.int64()),
        ("ack_time", pa.int64()),
        ("deliveries", pa.int64()),
    ]
)
BLOCK_BYTES = 64 << 20
pc: Any = compute
reading: Any = json_reader


def events_log(volume: Volume, name: str | None) -> Log:
    """The stream that captures events: the named one, the usual one, or an error that says how to get it."""
    wanted = name or STREAM
    if wanted not in volume.logs():
        raise BadInput(
            f"{volume.path}: no stream {wanted!r} that captures {CAPTURED}; `headrace pipeline health --setup URL` makes it, and "
            "--events names another"
        )
    return volume.open(wanted)


def read_events(log: Log, subjects: Iterable[str]) -> pa.Table:
    """Columns time_ns, kind (the word in the subject), and FIELDS. What is not JSON of that form is left out."""
    tables: list[Any] = []
    want = Predicate(subjects=tuple(subjects))
    parts = (
        part for task in log.scan_tasks(want) for part in task.scan(["time_ns", "subject", "data"], want)
    )
    for rows in parts:
        batch: Any = rows
        data = batch.column("data")
        if not batch.num_rows:
            continue
        # One line for each message: a payload with a line break would shift all that follow it.
        sound = pc.invert(pc.match_substring(pc.cast(data, pa.string(), safe=False), "\n"))
        batch = batch.filter(pc.and_(sound, pc.starts_with(data, "{")))
        if not batch.num_rows:
            continue
        text = pc.binary_join(pa.array([batch.column("data").to_pylist()], pa.list_(pa.binary())), b"\n")
        options = reading.ParseOptions(explicit_schema=FIELDS, unexpected_field_behavior="ignore")
        try:
            found = reading.read_json(
                pa.py_buffer(text[0].as_py()), reading.ReadOptions(block_size=BLOCK_BYTES), options
            )
        except pa.ArrowInvalid as problem:
            raise BadInput(f"stream {log.name}: an event cannot be read: {problem}") from None
        if found.num_rows != batch.num_rows:
            raise BadInput(f"stream {log.name}: {batch.num_rows} events gave {found.num_rows} rows")
        kind = pc.extract_regex(
            batch.column("subject"), r"^\$JS\.EVENT\.[A-Z]+\.CONSUMER\.(?P<kind>[A-Z_]+)\."
        )
        found = found.add_column(0, "kind", pc.struct_field(kind, "kind"))
        tables.append(found.add_column(0, "time_ns", batch.column("time_ns")))
    if not tables:
        bare: Any = FIELDS.empty_table()
        return bare.add_column(0, "kind", pa.array([], pa.string())).add_column(
            0, "time_ns", pa.array([], pa.int64())
        )
    return pa.concat_tables(tables)
