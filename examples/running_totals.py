"""`transformWithState`: a running total per region. The state is Spark's (RocksDB, in the checkpoint) and survives restarts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common import arguments, orders, source_options, started
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OUTPUT = "region string, orders bigint, amount double, last_seq bigint"


class RunningTotal(StatefulProcessor):
    """One value per region: how many orders, how much, and the last sequence."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "orders bigint, amount double, last_seq bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, amount, last = self._total.get() if self._total.exists() else (0, 0.0, 0)
        for row in rows:
            count, amount, last = count + 1, amount + row.amount, max(last, row.seq)
        self._total.update((count, amount, last))
        yield Row(region=key[0], orders=count, amount=amount, last_seq=last)


def running_totals(spark: SparkSession, source: dict[str, Any], out: str, checkpoint: str) -> StreamingQuery:
    """Start the query; every change of a total is a row of the Parquet files in `out`."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    changed = (
        orders(spark, source)
        .groupBy("region")
        .transformWithState(RunningTotal(), outputStructType=OUTPUT, outputMode="Update", timeMode="None")
    )

    def write(rows: DataFrame, batch: int) -> None:
        # A batch that comes again replaces what its first attempt wrote.
        rows.write.mode("overwrite").parquet(f"{out}/batch={batch}")

    return (
        changed.writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--out", required=True, help="where the Parquet files go")
    given = parser.parse_args()
    session = started("running totals")
    running_totals(session, source_options(given), given.out, given.checkpoint).awaitTermination()
    newest = session.read.parquet(given.out).groupBy("region").agg({"orders": "max", "amount": "max"})
    newest.orderBy("region").show()
