"""`python -m bench.spark [names] [--smoke] [--rows N] [--runs N] [--json FILE] [--place DIR]`: the Spark source and its peers.

One Spark session (local[2]), messages of 128 bytes, a quarter of them with a header, everybody reads the same rows:

    headrace   JetStream files through `format("headrace")`, hashes checked
    ready      a source that sends one ready Arrow batch again and again: the ceiling of any Python source
    kafka      Spark's Kafka connector from a real broker (its CPU counts too)
    parquet    `spark.read.parquet`

Runs alternate after one untimed round. CPU is of Spark's JVM and all its Python workers, from /proc. `--place` keeps the data and
takes it up again. `ALL` is the table of figures: a function gets the ground and the number of runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import headrace
from bench.harness import Figure, Sample, alternate, scratch, spread
from bench.spark_ground import Kafka, Usage, registered_ready, session
from bench.spark_live import LIVE

ROOT = Path(__file__).resolve().parent.parent
ROWS, SMOKE_ROWS, SIZE, BATCH = 4_000_000, 40_000, 128, 10_000
STREAM, PARQUET_FILES = "BENCH", 8
FIRST_NS, EVERY_NS = 1_790_000_000_000_000_000, 1_000_000


class Ground:
    """What the contestants stand on; each part is made when first asked for."""

    def __init__(self, place: Path, rows: int, stack: ExitStack) -> None:
        self.place, self.rows = place, rows
        self._stack = stack
        self._kafka: Kafka | None = None
        self._ready: int | None = None
        self.spark = session(place, stack)
        self.usage = Usage(self.spark)
        self._fill()

    @property
    def store(self) -> str:
        return str(self.place / "store")

    @property
    def parquet(self) -> str:
        return str(self.place / "parquet")

    def _fill(self) -> None:
        """The store and the same rows as Parquet."""
        if (self.place / "filled").exists():
            return
        with headrace.open(self.store, "rw", create=True, durability="interval") as volume:
            log = volume.create(STREAM, subjects=["orders.>"])
            subjects = [f"orders.region{at % 100}" for at in range(BATCH)]
            headers = [
                b"NATS/1.0\r\nTrace: %08d\r\n\r\n" % at if at % 4 == 0 else None for at in range(BATCH)
            ]
            for start in range(0, self.rows, BATCH):
                noise = os.urandom(BATCH * SIZE)
                data = [noise[at : at + SIZE] for at in range(0, len(noise), SIZE)]
                times = [FIRST_NS + at * EVERY_NS for at in range(start, start + BATCH)]
                log.append(headrace.Batch.build(subjects, data, headers, times))
        Path(self.parquet).mkdir()
        with headrace.open(self.store) as volume:
            writer, number, left = None, 0, 0
            for batch in volume.open(STREAM).scan():
                if left <= 0:
                    if writer is not None:
                        writer.close()
                    writer = pq.ParquetWriter(f"{self.parquet}/{number}.parquet", batch.schema)
                    number, left = number + 1, -(-self.rows // PARQUET_FILES)
                assert writer is not None
                writer.write_batch(batch)
                left -= batch.num_rows
            if writer is not None:
                writer.close()
        (self.place / "filled").touch()

    @property
    def block_bytes(self) -> int:
        """All blocks of the store."""
        return sum(path.stat().st_size for path in Path(self.store).rglob("*.blk"))

    def headrace(self, **options: object) -> Any:
        """The source on the store."""
        return self.spark.read.format("headrace").options(**options).load(self.store)

    def ready(self) -> Any:
        """As many rows, in as many partitions, of batches as large, with nothing done for them."""
        if self._ready is None:
            self._ready = self.headrace().rdd.getNumPartitions()
            with headrace.open(self.store) as volume:
                first = next(iter(volume.open(STREAM).scan_tasks()[0].scan()))
            registered_ready(self.spark, first, self.place)
        return self.spark.read.format("ready").options(rows=self.rows, parts=self._ready).load()

    def kafka(self) -> Kafka:
        """A broker with the same rows."""
        if self._kafka is None:
            self._kafka = self._stack.enter_context(Kafka(self.place / "kafka"))
            if not (self.place / "produced").exists():
                self._kafka.fill(self.spark, self.parquet)
                (self.place / "produced").touch()
        return self._kafka

    def checkpoint(self) -> str:
        """A fresh one."""
        return tempfile.mkdtemp(dir=self.place)

    def run(self, work: Callable[[], int], others: tuple[int, ...] = ()) -> Sample:
        """Time it; it says how many rows it saw, and that must be all."""
        cpu, began = self.usage.cpu_s(others), time.perf_counter()
        seen = work()
        wall = time.perf_counter() - began
        assert seen == self.rows, f"{seen} rows, expected {self.rows}"
        return Sample(self.rows, wall, self.usage.cpu_s(others) - cpu)


def everything(frame: Any, columns: dict[str, str]) -> int:
    """One aggregate over every column; returns the rows."""
    found = frame.selectExpr("count(*) n", *(f"{made} {name}" for name, made in columns.items())).first()
    assert all(found[name] is not None for name in columns if name != "key"), found
    return int(found["n"])


OURS = {
    "seq": "sum(seq)",
    "time": "max(time)",
    "time_ns": "max(time_ns)",
    "log": "max(length(log))",
    "subject": "sum(length(subject))",
    "key": "sum(length(key))",
    "headers": "sum(size(headers))",
    "data": "sum(length(data))",
}
KAFKAS = {
    "offset": "sum(offset)",
    "time": "max(timestamp)",
    "topic": "max(length(topic))",
    "partition": "max(partition)",
    "key": "sum(length(key))",
    "headers": "sum(size(headers))",
    "value": "sum(length(value))",
}


def _compared(name: str, required: str, runs: int, who: dict[str, Callable[[], Sample]]) -> Figure:
    if runs > 1:
        alternate(1, who)
    return Figure(name, required, alternate(runs, who))


def _verdict(figure: Figure) -> str:
    parts: list[str] = []
    for who, samples in figure.samples.items():
        cpu = figure.median(who, lambda sample: sample.cpu_us)
        parts.append(f"{who} {spread([sample.rate / 1e6 for sample in samples])} million/s, {cpu:.2f} us CPU")
    return "; ".join(parts)


def batch(ground: Ground, runs: int) -> Figure:
    """Every column of every row."""
    kafka = ground.kafka()
    figure = _compared(
        "batch: all columns aggregated, from files",
        ">= 0.85 of a source of ready batches, >= 2.5 x the Kafka connector (aim 4 x)",
        runs,
        {
            "headrace": lambda: ground.run(lambda: everything(ground.headrace(), OURS)),
            "ready": lambda: ground.run(lambda: everything(ground.ready(), OURS)),
            "kafka": lambda: ground.run(lambda: everything(kafka.read(ground.spark), KAFKAS), (kafka.pid,)),
            "parquet": lambda: ground.run(
                lambda: everything(ground.spark.read.parquet(ground.parquet), OURS)
            ),
        },
    )
    to = {who: figure.ratio("headrace", who, lambda sample: sample.rate) for who in figure.samples}
    figure.met = to["ready"] >= 0.85 and to["kafka"] >= 2.5
    figure.verdict = f"{to['ready']:.2f} of ready, {to['kafka']:.2f} x kafka, {to['parquet']:.2f} x parquet; {_verdict(figure)}"
    return figure


def columns(ground: Ground, runs: int) -> Figure:
    """Only `seq`: what is not asked for costs nothing."""
    only = {"seq": "sum(seq)"}
    figure = _compared(
        "batch: columns=seq, from files",
        ">= 0.8 x parquet selecting seq",
        runs,
        {
            "headrace": lambda: ground.run(lambda: everything(ground.headrace(columns="seq"), only)),
            "parquet": lambda: ground.run(
                lambda: everything(ground.spark.read.parquet(ground.parquet).select("seq"), only)
            ),
        },
    )
    ratio = figure.ratio("headrace", "parquet", lambda sample: sample.rate)
    figure.met, figure.verdict = ratio >= 0.8, f"{ratio:.2f} x parquet; {_verdict(figure)}"
    return figure


def streamed(ground: Ground, stream: Any) -> int:
    """availableNow into nothing; returns the rows."""
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", ground.checkpoint())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(each["numInputRows"] for each in query.recentProgress)


def stream(ground: Ground, runs: int) -> Figure:
    """The same rows as a stream."""
    kafka, spark = ground.kafka(), ground.spark
    figure = _compared(
        "stream: availableNow into the no-op sink, from files",
        ">= 2 x the Kafka connector",
        runs,
        {
            "headrace": lambda: ground.run(
                lambda: streamed(ground, spark.readStream.format("headrace").load(ground.store))
            ),
            "kafka": lambda: ground.run(lambda: streamed(ground, kafka.read_stream(spark)), (kafka.pid,)),
        },
    )
    ratio = figure.ratio("headrace", "kafka", lambda sample: sample.rate)
    figure.met, figure.verdict = ratio >= 2, f"{ratio:.2f} x kafka; {_verdict(figure)}"
    return figure


def filtered(ground: Ground, runs: int) -> Figure:
    """1 % of the positions, 1 % of the time: how many bytes are read."""
    low, count = ground.rows * 2 // 5, ground.rows // 100
    since = FIRST_NS + (low - 1) * EVERY_NS
    ranges = {
        "sequence": f"seq >= {low} and seq < {low + count}",
        "time": f"time_ns >= {since} and time_ns < {since + count * EVERY_NS}",
    }
    ground.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def one(condition: str) -> Sample:
        read, began = ground.usage.read_bytes(), time.perf_counter()
        seen = everything(ground.headrace(pushdown="true").where(condition), OURS)
        wall = time.perf_counter() - began
        assert seen == count, f"{seen} rows, expected {count}"
        share = (ground.usage.read_bytes() - read) / ground.block_bytes
        return Sample(count, wall, 0.0, {"share": share})

    figure = _compared(
        "filter on 1 % of the sequence or time range, pushed down",
        "<= 3 % of the bytes",
        runs,
        {name: lambda condition=condition: one(condition) for name, condition in ranges.items()},
    )
    shares = {who: figure.median(who, lambda sample: sample.extra["share"]) for who in ranges}
    figure.met = max(shares.values()) <= 0.03
    figure.verdict = ", ".join(f"{who}: {share:.2%} of the bytes" for who, share in shares.items())
    return figure


ALL: dict[str, Callable[[Ground, int], Figure]] = {
    "batch": batch,
    "columns": columns,
    "stream": stream,
    "filter": filtered,
    **LIVE,
}


def figures(names: list[str], place: Path, rows: int, runs: int) -> Iterator[Figure]:
    """Each figure as it is ready."""
    with ExitStack() as stack:
        ground = Ground(place, rows, stack)
        for name in names or ALL:
            yield ALL[name](ground, runs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of: {', '.join(ALL)}")
    parser.add_argument("--smoke", action="store_true", help="small and once: does everything still run?")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results" / "spark.local.json")
    parser.add_argument("--place", type=Path, help="keep the data here, or take up what is here")
    given = parser.parse_args()
    rows = given.rows or (SMOKE_ROWS if given.smoke else ROWS)
    found: list[Figure] = []
    with ExitStack() as stack:
        place = given.place or stack.enter_context(scratch())
        place.mkdir(parents=True, exist_ok=True)
        for figure in figures(given.names, place, rows, 1 if given.smoke else given.runs):
            found.append(figure)
            mark = "" if given.smoke else ("met  " if figure.met else "SHORT")
            print(
                f"{mark} {figure.name}\n      required: {figure.required}\n      seen:  {figure.verdict}",
                flush=True,
            )
    if not given.smoke:
        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine, "rows": rows, "figures": [figure.as_json() for figure in found]}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
