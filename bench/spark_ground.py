"""What `bench.spark` stands on: one Spark session with the Kafka connector in it, a broker, a source of ready batches, and
what all the processes of the session used up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from bench.harness import TICKS
from tests.support.kafka import TOOLS, Broker, run_tool
from tests.support.peers import find_peer

CONNECTOR = "4.2.0"
TOPIC, PARTITIONS = "bench", 8


def session(place: Path, stack: ExitStack) -> Any:
    """local[2], no user interface, everything on the loopback interface."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = sorted((find_peer("spark-kafka", CONNECTOR).parent / "lib").glob("*.jar"))
    made = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-bench")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    stack.callback(made.stop)
    return made


class Usage:
    """The processes below Spark's JVM, and the JVM."""

    def __init__(self, spark: Any) -> None:
        self._jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())

    def _family(self) -> Iterator[int]:
        waiting = [self._jvm]
        while waiting:
            pid = waiting.pop()
            yield pid
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    waiting += [int(word) for word in children.read_text().split()]
                except OSError:
                    continue

    def cpu_s(self, others: tuple[int, ...] = ()) -> float:
        """User and system time of all of them so far, and of children that have ended."""
        total = 0
        for pid in (*self._family(), *others):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(int(field) for field in fields[11:15])
        return total / TICKS

    def read_bytes(self) -> int:
        """What the Python processes have read from files."""
        total = 0
        for pid in self._family():
            try:
                lines = Path(f"/proc/{pid}/io").read_text() if pid != self._jvm else "rchar: 0"
            except OSError:
                continue
            total += int(lines.split()[1])
        return total


class Kafka:
    """A real broker with one topic."""

    def __init__(self, place: Path) -> None:
        self._broker = Broker(place / "logs", "num.network.threads=2\nnum.io.threads=2\n")
        place.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self._broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.stop()

    @property
    def pid(self) -> int:
        return self._broker.pid

    def fill(self, spark: Any, parquet: str) -> None:
        """The rows of the Parquet files, headers too."""
        where = ("--bootstrap-server", self._broker.address, "--create", "--topic", TOPIC)
        run_tool(f"{TOOLS}.TopicCommand", *where, "--partitions", str(PARTITIONS))
        headers = "transform(map_entries(headers), e -> named_struct('key', e.key, 'value', cast(e.value[0] as binary)))"
        rows = spark.read.parquet(parquet).selectExpr(
            "cast(null as binary) key",
            "data value",
            f"{headers} headers",
            f"cast(seq % {PARTITIONS} as int) partition",
        )
        sink = rows.write.format("kafka").option("kafka.bootstrap.servers", self._broker.address)
        sink.option("topic", TOPIC).option("kafka.linger.ms", "20").option(
            "kafka.batch.size", "262144"
        ).save()

    def _options(self, reader: Any) -> Any:
        return (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", self._broker.address)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
        )

    def sink_options(self, topic: str, *, synced: bool = False) -> dict[str, str]:
        """A fresh topic; every record is acknowledged by all replicas (the one there is). `synced`: when it is on disk,
        as our acks are, and not when it is in the page cache."""
        where = ("--bootstrap-server", self._broker.address, "--create", "--topic", topic)
        more = ("--config", "flush.messages=1") if synced else ()
        run_tool(f"{TOOLS}.TopicCommand", *where, "--partitions", str(PARTITIONS), *more)
        return {
            "kafka.bootstrap.servers": self._broker.address,
            "topic": topic,
            "kafka.acks": "all",
            "kafka.linger.ms": "20",
            "kafka.batch.size": "262144",
        }

    def read(self, spark: Any) -> Any:
        return self._options(spark.read).load()

    def read_stream(self, spark: Any) -> Any:
        return self._options(spark.readStream).load()


def registered_ready(spark: Any, batch: pa.RecordBatch, place: Path) -> None:
    """The source `ready`: `batch` again and again, `rows` in all, shared by `parts`. Workers map it from a file."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    from headrace.spark.source import SCHEMA

    path = str(place / "ready.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)

    class Part(InputPartition):
        pass

    class Reader(DataSourceReader):
        def __init__(self, rows: int, parts: int) -> None:
            self._rows, self._parts = rows, parts

        def partitions(self) -> list[InputPartition]:
            edges = [self._rows * at // self._parts for at in range(self._parts + 1)]
            return [Part(after - before) for before, after in pairwise(edges)]

        def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
            left = 0 if partition is None else int(partition.value)
            ready = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
            while left > 0:
                yield ready.slice(0, min(left, ready.num_rows))
                left -= ready.num_rows

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader(int(self.options["rows"]), int(self.options["parts"]))

    spark.dataSource.register(Ready)


def registered_discard(spark: Any) -> None:
    """The sink `discard`: takes every batch and does nothing: the ceiling of any Python sink."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamArrowWriter,
        DataSourceStreamWriter,
        WriterCommitMessage,
    )
    from pyspark.sql.types import StructType

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Discard(DataSource):
        @classmethod
        def name(cls) -> str:
            return "discard"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  (the name that Spark calls)
            return Writer()

    spark.dataSource.register(Discard)
