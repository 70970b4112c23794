"""A driver of its own for the proofs: reads a stream and writes it three ways at once; may be told where to die.

    python spark_job.py '{"master": …, "url": …, "place": …, "die": "copy" | "archive" | null, …}'

    copy      stream → transform → stream       checkpoint in PLACE/copy.checkpoint
    parquet   stream → writeStream parquet      PLACE/parquet, checkpoint in PLACE/parquet.checkpoint
    archive   stream → the archive pipeline     PLACE/archive

`die` kills the whole process group with SIGKILL at the worst moment: everything is written, nothing is committed.
The last line on stdout is JSON: what was done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import headrace
from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.layouts.parquet import manifest
from headrace.ops import archive as archiving
from headrace.spark.pipelines.engine import SparkEngine
from headrace.spark.source import HeadraceSource
from headrace.spark.write_stream import ServerStreamWriter

KINDS = ("copy", "parquet", "archive")
COMMIT_EVERY_S = 0.05  # many commits, so that dying in the middle of them is easy
LIMITED = 6000


def session(job: dict[str, Any]) -> SparkSession:
    builder: Any = SparkSession.builder.master(job["master"]).appName("headrace-proof")
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.scheduler.mode": "FAIR",
        "spark.task.maxFailures": "8",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.warehouse.dir": f"{job['place']}/warehouse",
    }
    for name, value in (conf | job.get("conf", {})).items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def source(spark: SparkSession, job: dict[str, Any], stream: str, **more: str) -> Any:
    options = {"url": job["url"], "stream": stream, "maxRowsPerTrigger": str(job["batch"])}
    pieces = {"targetPartitionBytes": str(job.get("partition_bytes", 1 << 20))}
    return spark.readStream.format("headrace").options(**options, **pieces, **more).load()


def in_pool(spark: SparkSession, name: str) -> None:
    """Cores are shared between the three, instead of first come, first served."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)


def started(frame: Any, checkpoint: Path) -> Any:
    """One after the other: Spark gives a Python process of the driver ten seconds to come up, on a busy machine too."""
    query = frame.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.02)
    return query


def transformed(rows: Any, out: str) -> Any:
    """The origin goes into the body, so that it can be counted at the end."""
    body = f.concat(f.col("seq").cast("string"), f.lit(":"), f.upper(f.col("data").cast("string")))
    return rows.select("log", "seq", f.lit(f"{out.lower()}.x").alias("subject"), body.alias("data"))


def copy(spark: SparkSession, job: dict[str, Any], place: Path, **how: Any) -> Any:
    stream, out = how.get("stream", "IN"), how.get("out", "OUT")
    rows = transformed(source(spark, job, stream, **how.get("options", {})), out)
    die = job.get("die") == "copy" and not how
    sink = rows.writeStream.format(DyingSource.name() if die else "headrace")
    if die:
        sink = sink.option("group", str(os.getpgid(0))).option("after", str(job["die_after"]))
    return started(
        sink.options(url=job["url"], stream=out, application="proof"),
        place / how.get("checkpoint", "copy.checkpoint"),
    )


class DyingWriter(ServerStreamWriter):
    """Kills its driver when a batch is written and not yet committed."""

    group: int
    after: int

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        if batchId >= self.after:
            os.killpg(self.group, signal.SIGKILL)
            time.sleep(5)


class DyingSource(HeadraceSource):
    """The source `headrace` with that writer."""

    @classmethod
    def name(cls) -> str:
        return "headrace_dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        from headrace.spark.sink_options import read_sink_options

        given = dict(self._given)
        group, after = int(given.pop("group")), int(given.pop("after"))
        made = DyingWriter(read_sink_options(given, schema.fieldNames()))
        made.group, made.after = group, after
        return made


def parquet(spark: SparkSession, job: dict[str, Any], place: Path) -> Any:
    rows = source(spark, job, "IN").select("seq", "time", "subject", "data")
    return started(
        rows.writeStream.format("parquet").option("path", str(place / "parquet")),
        place / "parquet.checkpoint",
    )


def archive(spark: SparkSession, job: dict[str, Any], place: Path) -> dict[str, Any]:
    archiving.COMMIT_EVERY_S = COMMIT_EVERY_S
    if job.get("die") == "archive":
        _die_before_commit(int(job["die_after"]))
    volume = ServerVolume(read_access(job["url"]))
    options = archiving.ArchiveOptions(logs=("IN",), newest=True, target_bytes=job["file_bytes"])
    done = archiving.archive(
        job["url"], str(place / "archive"), options, engine=SparkEngine(spark), volume=volume
    )
    return {"rows": done.rows, "rows_all": done.rows_all, "commits": done.commits, "files": done.files}


def _die_before_commit(after: int) -> None:
    """The files of the commit are written; the manifest does not name them yet."""
    right, calls = manifest.ArchiveWriter.commit, [0]

    def commit(self: manifest.ArchiveWriter, parts: Any) -> None:
        if calls[0] >= after:
            os.killpg(0, signal.SIGKILL)
        calls[0] += 1
        right(self, parts)

    manifest.ArchiveWriter.commit = commit  # type: ignore[method-assign]


def count_parquet(spark: SparkSession, place: Path) -> dict[str, int]:
    """As Spark reads it: through the sink's own log of committed files."""
    rows = spark.read.parquet(str(place / "parquet"))
    found = rows.agg(f.count("seq"), f.countDistinct("seq"), f.min("seq"), f.max("seq")).first()
    assert found is not None
    return dict(zip(("rows", "distinct", "first", "last"), found, strict=True))


def limits(spark: SparkSession, job: dict[str, Any], place: Path) -> dict[str, Any]:
    """Limits pass the reader: the query stops and names what is missing; told to go on, it goes on and logs it."""
    access = read_access(job["url"])
    volume = ServerVolume(access)
    volume.create("SHORT", subjects=["short"])
    volume.create("SHORTOUT", subjects=["shortout.>"])

    def publish(count: int) -> None:
        with Connection(access) as connection:
            publisher = Publisher(connection)
            publisher.publish(headrace.batch(["short"] * count, [b"x"] * count))
            publisher.flush()

    def run(**options: str) -> str:
        how: dict[str, Any] = {"stream": "SHORT", "out": "SHORTOUT", "checkpoint": "limits.checkpoint"}
        try:
            copy(spark, job, place, **how, options=options).awaitTermination()
        except StreamingQueryException as error:
            return str(error)
        return ""

    publish(LIMITED)
    first = run()
    config = volume.open("SHORT").config | {"max_msgs": LIMITED}
    with Connection(access) as connection:
        connection.api("STREAM.UPDATE.SHORT", config)
    publish(2 * LIMITED)
    return {
        "missing": [LIMITED + 1, 2 * LIMITED],
        "first": first,
        "refused": run(),
        "went_on": run(failOnDataLoss="false"),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    place = Path(job["place"])
    spark = session(job)
    spark.dataSource.register(DyingSource)
    done: dict[str, Any] = {}
    wanted = job.get("kinds", KINDS)
    (place / "started").touch()
    queries: dict[str, Any] = {}
    for kind, start in (("copy", copy), ("parquet", parquet)):
        if kind in wanted:
            in_pool(spark, kind)
            queries[kind] = start(spark, job, place)
    failed: list[BaseException] = []

    def file_away() -> None:
        in_pool(spark, "archive")
        try:
            done["archive"] = archive(spark, job, place)
        except BaseException as error:
            print(f"archive: {error!r}", file=sys.stderr, flush=True)
            failed.append(error)

    thread = threading.Thread(target=file_away)
    if "archive" in wanted:
        thread.start()
    for kind, query in queries.items():
        query.awaitTermination()
        done[kind] = {"batches": len(query.recentProgress)}
    if "archive" in wanted:
        thread.join()
    if failed:
        raise failed[0]
    if job.get("limits"):
        done["limits"] = limits(spark, job, place)
    if "parquet" in wanted:
        done["parquet"] |= count_parquet(spark, place)
    print(json.dumps(done), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
