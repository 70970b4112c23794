"""Figures of `bench.spark` that need more than files: a live server, the sink, archives, verification."""

from __future__ import annotations

import shutil
import time
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.harness import Figure, Sample, alternate, spread
from bench.spark_ground import registered_discard
from headrace.client import ServerVolume, read_access
from headrace.ops import parallel
from headrace.ops.engines import Threads
from headrace.spark import pipelines
from headrace.testing.server import TestServer

if TYPE_CHECKING:
    from bench.spark import Ground

SINK_ROWS = 1_000_000
STREAM = "BENCH"


def _figure(name: str, required: str, runs: int, who: dict[str, Any], least: float, other: str) -> Figure:
    if runs > 1:
        alternate(1, who)
    figure = Figure(name, required, alternate(runs, who))
    ratio = figure.ratio("headrace", other, lambda sample: sample.rate)
    lines = [
        f"{each} {spread([sample.rate / 1e6 for sample in samples])} million/s, "
        f"{figure.median(each, lambda sample: sample.cpu_us):.2f} us CPU"
        for each, samples in figure.samples.items()
    ]
    figure.met, figure.verdict = ratio >= least, f"{ratio:.2f} x {other}; {'; '.join(lines)}"
    return figure


def server(ground: Ground, runs: int) -> Figure:
    """Every column of every row, through a server."""
    from bench.spark import KAFKAS, OURS, everything

    kafka = ground.kafka()
    place = ground.place / "served"
    if not place.exists():
        shutil.copytree(ground.store, place)
    with TestServer(place) as live:
        reader = ground.spark.read.format("headrace").options(url=live.url, stream=STREAM)
        return _figure(
            "batch: all columns aggregated, through the server (url=)",
            ">= 1 x the Kafka connector (aim 2 x)",
            runs,
            {
                "headrace": lambda: ground.run(lambda: everything(reader.load(), OURS), (live.pid,)),
                "kafka": lambda: ground.run(
                    lambda: everything(kafka.read(ground.spark), KAFKAS), (kafka.pid,)
                ),
            },
            1.0,
            "kafka",
        )


def sink(ground: Ground, runs: int) -> Figure:
    """A stream of rows into a stream, every one acknowledged and on disk; Kafka's sink with acks=all (in memory there, on
    disk in `kafka synced`); a Python sink that throws its rows away, which none of ours can outrun."""
    rows = min(SINK_ROWS, ground.rows)
    source = ground.place / f"sink-{rows}"
    if not source.exists():
        ground.spark.read.parquet(ground.parquet).limit(rows).repartition(4).write.parquet(str(source))
    kafka, spark = ground.kafka(), ground.spark
    schema = spark.read.parquet(str(source)).schema

    def written(frame: Any, writer: str, options: dict[str, str]) -> None:
        sink = frame.writeStream.format(writer).options(**options)
        query = sink.option("checkpointLocation", ground.checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()

    with ExitStack() as stack:
        live = stack.enter_context(TestServer(ground.place / f"sunk-{uuid.uuid4().hex[:8]}"))
        volume = ServerVolume(read_access(live.url))

        def ours() -> Sample:
            stream = f"S{uuid.uuid4().hex[:8]}"
            log = volume.create(stream, subjects=["orders.>"])
            frame = spark.readStream.schema(schema).parquet(str(source))
            frame = frame.select("log", "seq", "subject", "headers", "data")
            cpu, began = ground.usage.cpu_s((live.pid,)), time.perf_counter()
            written(frame, "headrace", {"url": live.url, "stream": stream})
            wall = time.perf_counter() - began
            used = ground.usage.cpu_s((live.pid,)) - cpu
            held = log.state().messages
            assert held == rows, f"{held} messages, expected {rows}"
            volume.delete(stream)
            return Sample(rows, wall, used)

        def theirs(*, synced: bool = False) -> Sample:
            headers = "transform(map_entries(headers), e -> named_struct('key', e.key, 'value', cast(e.value[0] as binary)))"
            options = kafka.sink_options(f"sink-{uuid.uuid4().hex[:8]}", synced=synced)
            frame = spark.readStream.schema(schema).parquet(str(source))
            frame = frame.selectExpr("data value", f"{headers} headers")
            cpu, began = ground.usage.cpu_s((kafka.pid,)), time.perf_counter()
            written(frame, "kafka", options)
            return Sample(rows, time.perf_counter() - began, ground.usage.cpu_s((kafka.pid,)) - cpu)

        def nobody() -> Sample:
            frame = spark.readStream.schema(schema).parquet(str(source))
            cpu, began = ground.usage.cpu_s(), time.perf_counter()
            written(frame.select("log", "seq", "subject", "headers", "data"), "discard", {})
            return Sample(rows, time.perf_counter() - began, ground.usage.cpu_s() - cpu)

        registered_discard(spark)
        return _figure(
            f"sink: a stream of {rows:,} rows, durable acks",
            ">= 3 x Spark's Kafka sink (acks=all)",
            runs,
            {
                "headrace": ours,
                "kafka": theirs,
                "kafka synced": lambda: theirs(synced=True),
                "discard": nobody,
            },
            3.0,
            "kafka",
        )


def archive(ground: Ground, runs: int) -> Figure:
    """Blocks into Parquet files written by the workers; the Kafka connector and `write.parquet`."""
    kafka, spark = ground.kafka(), ground.spark

    def place() -> str:
        return str(ground.place / f"archive-{uuid.uuid4().hex[:8]}")

    def ours() -> Sample:
        target = place()
        sample = ground.run(lambda: pipelines.archive(ground.store, target, session=spark, newest=True).rows)
        shutil.rmtree(target)
        return sample

    def theirs() -> Sample:
        target = place()

        def work() -> int:
            kafka.read(spark).write.parquet(target)
            return ground.rows

        sample = ground.run(work, (kafka.pid,))
        shutil.rmtree(target)
        return sample

    return _figure(
        "archive to Parquet, written by the workers",
        ">= 6 x Kafka connector + write.parquet",
        runs,
        {"headrace": ours, "kafka": theirs},
        6.0,
        "kafka",
    )


def verify(ground: Ground, runs: int) -> Figure:
    """Every hash of the store, in threads without a JVM; per core: CPU time counts."""

    def one() -> Sample:
        cpu, began = time.process_time(), time.perf_counter()
        report = parallel.verify(ground.store, engine=Threads())
        held = sum(each.messages for each in report.streams)  # type: ignore[union-attr]
        assert held == ground.rows, f"{held} messages, expected {ground.rows}"
        return Sample(ground.rows, time.perf_counter() - began, time.process_time() - cpu)

    figure = Figure(
        "verify, --engine local, every hash",
        ">= 2 million messages/s per core",
        alternate(runs, {"local": one}),
    )
    cpu = figure.median("local", lambda sample: sample.cpu_us)
    rates = [sample.rate / 1e6 for sample in figure.samples["local"]]
    figure.met = 1 / cpu >= 2
    figure.verdict = f"{1 / cpu:.2f} million/s per core; {spread(rates)} million/s in all"
    return figure


LIVE = {"server": server, "sink": sink, "archive": archive, "verify": verify}
