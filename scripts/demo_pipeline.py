"""The Spark part of the demo, in a process of its own so that Spark's chatter does not drown the figures.

    store ──archive──→ Parquet ──count──→ figures
    stream ──windows of a second──→ TOTALS, on the same server ──→ a table and a plot

Prints one line of JSON; the demo shows it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.client import ServerVolume, read_access
from headrace.spark import pipelines
from headrace.spark.versions import session

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 240, 70, 30
COLORS = ("#2b6cb0", "#dd6b20", "#2f855a", "#b83280")


def plot(seconds: list[tuple[int, dict[str, int]]], subjects: list[str]) -> str:
    """Messages per second, stacked by subject, as a picture that needs nothing else."""
    most = max(sum(counts.values()) for _, counts in seconds)
    step = (WIDTH - LEFT) / max(len(seconds), 1)
    parts: list[str] = []
    for at, (_, counts) in enumerate(seconds):
        top = HEIGHT - BOTTOM
        for color, subject in zip(COLORS, subjects, strict=False):
            tall = counts.get(subject, 0) / most * (HEIGHT - BOTTOM - 10)
            top -= tall
            parts.append(
                f'<rect x="{LEFT + at * step:.1f}" y="{top:.1f}" width="{step * 0.85:.1f}" height="{tall:.1f}" fill="{color}"/>'
            )
    legend = "".join(
        f'<text x="{LEFT + at * 150}" y="{HEIGHT - 8}" fill="{color}">{subject}</text>'
        for at, (color, subject) in enumerate(zip(COLORS, subjects, strict=False))
    )
    scale = f'<text x="4" y="20">{most:,}/s</text><text x="4" y="{HEIGHT - BOTTOM}">0</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">'
        f"{''.join(parts)}{legend}{scale}</svg>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    began = time.monotonic()
    spark = session(
        **{
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
        }
    )
    ready = time.monotonic()
    lake = str(given.out / "lake")
    archived = pipelines.archive(given.store, lake, session=spark, logs=(given.stream,), newest=True)
    counted = time.monotonic()
    # The manifest says which files belong to the archive: so does the source.
    rows = spark.read.format("headrace").option("columns", "subject").load(lake).groupBy("subject").count()
    subjects = sorted((row["subject"], row["count"]) for row in rows.collect())

    ServerVolume(read_access(given.url)).create("TOTALS", subjects=["totals.>"])
    windowed = time.monotonic()
    stream = spark.readStream.format("headrace").options(
        url=given.url, stream=given.stream, columns="time,subject", maxRowsPerTrigger="100000"
    )
    second = f.unix_timestamp(f.col("window.start"))
    totals = (
        stream.load()
        .withWatermark("time", "10 seconds")
        .groupBy(f.window("time", "1 second"), "subject")
        .count()
        .select(
            f.concat_ws(".", f.lit("totals"), second, "subject").alias("subject"),
            # A window that grows is written again under another id; the newest message of its subject counts.
            f.concat_ws("/", second, "subject", "count").alias("msg_id"),
            f.to_json(f.struct(second.alias("second"), "subject", "count")).alias("data"),
        )
    )

    def write(rows: DataFrame, _: int) -> None:
        rows.write.format("headrace").mode("append").options(url=given.url, stream="TOTALS").save()

    # Windows that grow are changes, and Spark hands changes to a function only.
    query = (
        totals.writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", str(given.out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = time.monotonic()
    newest = (
        spark.read.format("headrace")
        .options(url=given.url, stream="TOTALS", view="latest_per_subject")
        .load()
    )
    found = [json.loads(bytes(row.data)) for row in newest.select("data").collect()]
    seconds: dict[int, dict[str, int]] = {}
    for each in found:
        seconds.setdefault(each["second"], {})[each["subject"]] = each["count"]
    table = sorted(seconds.items())
    picture = given.out / "orders-per-second.svg"
    picture.write_text(plot(table, [name for name, _ in subjects]))
    spark.stop()
    print(
        json.dumps(
            {
                "start": ready - began,
                "archive": counted - ready,
                "archived": archived.rows,
                "subjects": subjects,
                "windows": done - windowed,
                "written": len(found),
                "seconds": table,
                "plot": str(picture),
            }
        )
    )


if __name__ == "__main__":
    main()
