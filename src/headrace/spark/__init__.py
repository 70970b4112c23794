"""Headrace for Spark: `spark.read.format("headrace").load(path)`. Only here is pyspark imported.

To import it is enough, before or after a session is started: Spark's Python processes then use this interpreter.
"""

from headrace.spark.interpreter import choose_interpreter, register_in_running_session

try:
    from headrace.spark.source import HeadraceSource
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "pyspark":
        raise
    raise ModuleNotFoundError(
        "headrace.spark needs PySpark: pip install 'headrace[spark]'", name="pyspark"
    ) from None
from headrace.spark.versions import session

__all__ = ["HeadraceSource", "session"]

register_in_running_session(HeadraceSource)
choose_interpreter()
