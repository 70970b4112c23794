"""Headrace for Spark: `spark.read.format("headrace").load(path)`. The one door to pyspark."""

from headrace.spark.source import HeadraceSource
from headrace.spark.versions import session

__all__ = ["HeadraceSource", "session"]
