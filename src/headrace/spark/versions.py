"""Driver and workers must have the same Headrace: the plan carries the driver's version, a worker compares."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
_JAVA_LIMIT_S = 30


class Versioned:
    """A partition that says which version planned it."""

    version: str

    def stamp(self) -> None:
        """On the driver."""
        self.version = __version__

    def check(self) -> None:
        """In a worker. BadInput names both versions."""
        if self.version != __version__:
            raise BadInput(
                f"headrace source: the driver has Headrace {self.version}, this worker has {__version__} "
                f"({sys.executable}); install the same version in both"
            )


def session(**conf: Any) -> SparkSession:
    """A SparkSession (the running one, or a new one with this configuration: `session(**{"spark.master": "local[2]"})`).

    No Java, or one that is too old for Spark, is said in one line before anything is started.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    # With Spark Connect, Java runs elsewhere.
    if "SPARK_REMOTE" not in os.environ and "spark.remote" not in conf:
        check_java()
    builder: Any = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_java() -> int:
    """The version of the Java that Spark would start. BadInput says what is missing."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "the path"
    need = f"Spark needs Java {JAVA_LEAST} or newer: install a JDK (for instance openjdk-17-jre-headless) and set JAVA_HOME"
    if program is None or not os.access(program, os.X_OK):
        raise BadInput(f"headrace: no Java in {where}. {need}")
    try:
        output = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_JAVA_LIMIT_S,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"headrace: {program} does not start ({error}). {need}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is None:
        raise BadInput(f"headrace: {program} says no version: {output[:100]!r}. {need}")
    if int(found[1]) < JAVA_LEAST:
        raise BadInput(f"headrace: {program} is Java {found[1]}. {need}")
    return int(found[1])
