"""A stream of orders joined with a table that does not change, into Parquet files."""

from __future__ import annotations

from typing import Any

from common import arguments, orders, source_options, started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


def with_regions(
    spark: SparkSession, source: dict[str, Any], regions: DataFrame, out: str, checkpoint: str
) -> StreamingQuery:
    """Every order with the facts of its region; orders of unknown regions stay, without them."""
    return (
        orders(spark, source)
        .join(regions, "region", "left")
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--out", required=True, help="where the Parquet files go")
    given = parser.parse_args()
    session = started("join")
    table = session.createDataFrame(
        [("eu", "Europe", 0.2), ("us", "America", 0.07)], "region string, name string, tax double"
    )
    with_regions(session, source_options(given), table, given.out, given.checkpoint).awaitTermination()
    session.read.parquet(given.out).groupBy("name").count().orderBy("name").show()
