"""Streams for PySpark 4.0 and 4.1, which ask for the latest offset without saying where the query is: every batch takes all."""

from __future__ import annotations

from headrace.errors import BadInput
from headrace.spark.limits import ReadAllAvailable
from headrace.spark.options import ReadOptions
from headrace.spark.stream import FileStream, Offset


def greedy(kind: type[FileStream], options: ReadOptions, columns: list[str]) -> FileStream:
    """A reader of that kind. BadInput for what needs to know where the query is."""
    for name, value in (
        ("maxRowsPerTrigger", options.max_rows),
        ("maxBytesPerTrigger", options.max_bytes),
        ("maxFilesPerTrigger", options.max_files),
        ("minRowsPerTrigger", options.min_rows),
        ("durable", options.durable),
    ):
        if value is not None:
            raise BadInput(
                f"headrace source: {name} needs PySpark 4.2 or newer, which gives a source the position of its query"
            )
    reader = kind(options, columns)
    limited = reader.latestOffset
    said: Offset | None = None

    def latest() -> Offset:
        """Everything there is now. What was said last is remembered, so that a log that goes away is missed."""
        nonlocal said
        said = limited(said or reader.initialOffset(), ReadAllAvailable())
        return said

    # Spark looks at how many words the method takes to see whether limits are understood.
    reader.latestOffset = latest  # type: ignore[method-assign, assignment]
    return reader
