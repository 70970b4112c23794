"""How much of what is there a batch of a stream takes: Spark's words for it, which came with PySpark 4.2.

Before that a stream takes everything at each trigger: the stand-ins here let the same reader run, `ADMITS` says that nobody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    ADMITS = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxFiles,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        ADMITS = True
    except ImportError:
        ADMITS = False

        class SupportsTriggerAvailableNow:
            """Nobody asks."""

        class ReadLimit:
            """Of any kind."""

        @dataclass
        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """So many rows."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """So many bytes."""

            max_bytes: int

        @dataclass
        class ReadMaxFiles(ReadLimit):
            """So many files."""

            max_files: int


__all__ = [
    "ADMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
