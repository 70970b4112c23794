"""Spark's Python processes must be able to import Headrace: they get the interpreter that this program runs in.

Spark starts `python3` from the path for its workers, and for the process that looks for data sources. In a virtual
environment that was not activated, that is another Python, and the format "headrace" is not found.
What the user or spark-submit has chosen (PYSPARK_PYTHON) is left alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has said where to run."""
_CHOSEN = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def choose_interpreter() -> None:
    """For a session that is started later. Where `python3` is this environment's already, nothing is set."""
    if _is_chosen() or _is_this_environment(shutil.which("python3")):
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable


def register_in_running_session(source: type[DataSource]) -> None:
    """For a session that was started before: Spark has looked for sources already, with another Python."""
    if _is_chosen():
        return
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        _register(running, source)


def _register(session: SparkSession, source: type[DataSource]) -> None:
    context: Any = getattr(session, "sparkContext", None)  # Spark Connect has none: Python runs elsewhere
    if context is None or not context.master.startswith("local"):
        return
    program: str = context.pythonExec
    if _is_this_environment(shutil.which(program)):
        return
    context.pythonExec = sys.executable
    session.dataSource.register(source)


def _is_chosen() -> bool:
    return SUBMITTED in os.environ or any(name in os.environ for name in _CHOSEN)


def _is_this_environment(program: str | None) -> bool:
    """By the folder and not by the file: the interpreters of all virtual environments are links to the same one."""
    return program is not None and Path(program).parent == Path(sys.executable).parent
