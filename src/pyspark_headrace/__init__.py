"""Spark looks for modules called pyspark_*: this one makes format("headrace") known without registration."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
