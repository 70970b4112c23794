"""`health`: how consumers do, out of the events that their servers gave: ack times, redeliveries, what was given up.

read_events → per consumer and window: p50, p95, p99 of the ack time, samples, redeliveries, naks, given up; lag where
the stream itself is there to be asked
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as compute

from headrace.layouts.base import Volume
from headrace.layouts.plain import plain
from headrace.ops.events import ACK, MAX_DELIVER, NAKED, TERMINATED, events_log, read_events

pc: Any = compute
WINDOW_NS = 60_000_000_000
ROWS_MAX = 100_000


@dataclass(slots=True)
class HealthRow:
    """One consumer in one window. Times are nanoseconds; None without samples."""

    stream: str
    consumer: str
    start_ns: int
    samples: int = 0
    ack_p50_ns: int | None = None
    ack_p95_ns: int | None = None
    ack_p99_ns: int | None = None
    redelivered: int = 0
    """Sampled acks of messages that had been delivered before."""
    naked: int = 0
    given_up: int = 0
    terminated: int = 0
    acked_to: int | None = None
    """The highest stream sequence that a sample of the window names."""
    lag: int | None = None
    """What the stream held beyond it at the end; only for the last window, and where the stream is there."""


@dataclass(slots=True)
class HealthResult:
    """By consumer, then by window."""

    source: str
    window_ns: int
    events: int
    rows: list[HealthRow] = field(default_factory=lambda: [])
    totals: list[HealthRow] = field(default_factory=lambda: [])
    """Each consumer over everything."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def health(volume: Volume, *, events: str | None = None, window_ns: int = WINDOW_NS) -> HealthResult:
    """From the stream that captures events."""
    started = time.monotonic()
    log = events_log(volume, events)
    table: Any = read_events(log, (ACK, MAX_DELIVER, NAKED, TERMINATED))
    result = HealthResult(volume.path, window_ns, table.num_rows)
    if table.num_rows:
        windows = pc.multiply(pc.divide(table["time_ns"], window_ns), window_ns)
        result.rows = _grouped(table.append_column("start", windows))[:ROWS_MAX]
        whole = pa.repeat(pa.scalar(pc.min(table["time_ns"]).as_py(), pa.int64()), table.num_rows)
        result.totals = _grouped(table.append_column("start", whole))
        _lags(volume, result)
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _grouped(table: Any) -> list[HealthRow]:
    found: dict[tuple[str, str, int], HealthRow] = {}
    by = ["stream", "consumer", "start"]

    def row(each: dict[str, Any]) -> HealthRow:
        key = (each["stream"], each["consumer"], each["start"])
        return found.setdefault(key, HealthRow(*key))

    acks = table.filter(pc.equal(table["kind"], "ACK"))
    again = pc.cast(pc.greater(acks["deliveries"], 1), pa.int64())
    acks = acks.append_column("again", again)
    quantiles = pc.TDigestOptions(q=[0.5, 0.95, 0.99])
    sums = acks.group_by(by).aggregate(
        [("ack_time", "count"), ("ack_time", "tdigest", quantiles), ("again", "sum"), ("stream_seq", "max")]
    )
    for each in sums.to_pylist():
        mine = row(each)
        mine.samples, mine.redelivered = each["ack_time_count"], each["again_sum"] or 0
        mine.acked_to = each["stream_seq_max"]
        mine.ack_p50_ns, mine.ack_p95_ns, mine.ack_p99_ns = (int(value) for value in each["ack_time_tdigest"])
    others = table.filter(pc.not_equal(table["kind"], "ACK"))
    for each in others.group_by([*by, "kind"]).aggregate([("time_ns", "count")]).to_pylist():
        mine, count = row(each), each["time_ns_count"]
        if each["kind"] == "MAX_DELIVERIES":
            mine.given_up = count
        elif each["kind"] == "MSG_NAKED":
            mine.naked = count
        else:
            mine.terminated = count
    return [found[key] for key in sorted(found)]


def _lags(volume: Volume, result: HealthResult) -> None:
    ends: dict[str, int] = {}
    names = set(volume.logs())
    for total in result.totals:
        if total.stream in names and total.acked_to is not None:
            if total.stream not in ends:
                ends[total.stream] = volume.open(total.stream).state().last_seq
            total.lag = max(ends[total.stream] - total.acked_to, 0)
            mine = [
                row for row in result.rows if (row.stream, row.consumer) == (total.stream, total.consumer)
            ]
            mine[-1].lag = total.lag
