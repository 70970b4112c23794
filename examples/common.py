"""What the examples share: a session, the options of a source, orders out of JSON."""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace.spark  # Spark's workers use the Python of this program

ORDER = "id bigint, region string, amount double"


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--url", help="a server: nats://127.0.0.1:4222")
    parser.add_argument("--path", help="or a directory of any of the five products")
    parser.add_argument("--stream", default="ORDERS")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place")
    return parser


def source_options(given: argparse.Namespace) -> dict[str, Any]:
    places = {"url": given.url, "path": given.path}
    return {name: value for name, value in places.items() if value} | {"stream": given.stream}


def started(name: str) -> SparkSession:
    """A session on this machine's cores, unless spark-submit has chosen where to run."""
    session: SparkSession = headrace.spark.session(**{"spark.app.name": name})
    session.sparkContext.setLogLevel("ERROR")
    return session


def orders(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    """A stream of orders: the message's place and time, and what its JSON says."""
    rows = spark.readStream.format("headrace").options(**options).load()
    parsed = f.from_json(f.col("data").cast("string"), ORDER)
    return rows.select("log", "seq", "time", "subject", parsed.alias("order")).select(
        "log", "seq", "time", "subject", "order.*"
    )
