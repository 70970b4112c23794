"""Totals per region and window of time, written back into a stream.

A window is final when the watermark has passed it; its message id is the window and the region, so that a query that is started
again, after days too, leaves one message for each.
"""

from __future__ import annotations

from typing import Any

from common import arguments, orders, source_options, started
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery


def totals(
    spark: SparkSession,
    source: dict[str, Any],
    sink: dict[str, Any],
    checkpoint: str,
    size: str = "10 seconds",
) -> StreamingQuery:
    """Start the query; it ends when everything that is there now is done."""
    windows = (
        orders(spark, source)
        .withWatermark("time", size)
        .groupBy(f.window("time", size), "region")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    )
    start = f.date_format(f.col("window.start"), "yyyy-MM-dd'T'HH:mm:ss")
    rows = windows.select(
        f.concat(f.lit("totals."), "region").alias("subject"),
        f.concat_ws("/", start, "region").alias("msg_id"),
        f.to_json(
            f.struct(start.alias("window"), "region", "orders", f.round("amount", 2).alias("amount"))
        ).alias("data"),
    )
    return (
        rows.writeStream.format("headrace")
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--window", default="10 seconds")
    given = parser.parse_args()
    if not given.url:
        parser.error("the totals go into the stream TOTALS of a server: give its --url")
    session = started("windows")
    sink = {"url": given.url, "stream": "TOTALS"}
    totals(session, source_options(given), sink, given.checkpoint, given.window).awaitTermination()
    written = session.read.format("headrace").options(**sink).load()
    written.select("seq", f.col("data").cast("string")).orderBy("seq").show(truncate=False)
