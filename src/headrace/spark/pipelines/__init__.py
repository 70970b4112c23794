"""Ready pipelines over Spark: the functions of `headrace.ops`, spread over a session's workers.

    archive   a store → Parquet, Delta or Iceberg; only what is new, exactly once
    replay    an archive → another store or stream
    verify    every checksum, block by block
    convert   one broker's directory → another's
    engine    what the others run on: hand it to a function of `headrace.ops` yourself

Each takes `session` (or the active one, or a new one for `master`) and returns the typed result of its operation. The
command `headrace pipeline` and spark-submit call the same.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from headrace.client import Access, ServerVolume, StreamTarget, read_access
from headrace.layouts.report import Report
from headrace.ops import archive as archiving
from headrace.ops import parallel
from headrace.ops import replay as replaying
from headrace.ops.archive import ArchiveOptions, ArchiveResult
from headrace.ops.conversion import ConversionSpec, ConvertReport
from headrace.ops.replay import DirectoryTarget, ReplayResult, ReplayTarget, ReplayTask
from headrace.spark.pipelines.engine import SparkEngine, new_session

__all__ = [
    "ArchiveOptions",
    "ArchiveResult",
    "DirectoryTarget",
    "ReplayResult",
    "ReplayTask",
    "SparkEngine",
    "StreamTarget",
    "archive",
    "convert",
    "engine",
    "new_session",
    "replay",
    "verify",
]


@contextmanager
def engine(session: SparkSession | None = None, master: str | None = None) -> Generator[SparkEngine]:
    """An engine for as long as the block lasts; a session that was made for it is stopped."""
    made = SparkEngine(session, master)
    try:
        yield made
    finally:
        made.close()


def archive(
    source: str | Access,
    target: str,
    *,
    session: SparkSession | None = None,
    master: str | None = None,
    dry_run: bool = False,
    **options: Any,
) -> ArchiveResult:
    """Add what is new of a store, or of a server (`nats://host:4222`, or an `Access` with its secrets), to an archive; `options`
    are the fields of `ArchiveOptions`."""
    server = source if isinstance(source, Access) else None
    if isinstance(source, str) and source.startswith(("nats://", "tls://")):
        server = read_access(source)
    place = str(source) if server is None else server.place
    if server is not None:
        options["newest"] = True  # everything that a server shows is durable; it has no newest block
    with engine(session, master) as made:
        return archiving.archive(
            place,
            target,
            ArchiveOptions(**options),
            engine=made,
            volume=None if server is None else ServerVolume(server),
            dry_run=dry_run,
        )


def verify(
    path: str,
    *,
    stream: str | None = None,
    key: str | None = None,
    session: SparkSession | None = None,
    master: str | None = None,
) -> Report:
    """Check every byte of a store."""
    with engine(session, master) as made:
        return parallel.verify(path, stream=stream, key=key, engine=made)


def replay(
    source: str,
    target: ReplayTarget,
    *,
    logs: Sequence[str] = (),
    session: SparkSession | None = None,
    master: str | None = None,
    **options: Any,
) -> ReplayResult:
    """The messages of an archive again: into `StreamTarget(access)` or `DirectoryTarget(path, layout)`. `options` are the other
    fields of `ReplayTask`."""
    with engine(session, master) as made:
        return replaying.replay(ReplayTask(source, tuple(logs), target, **options), repr(target), engine=made)


def convert(
    source: str,
    target: str,
    to: str,
    spec: ConversionSpec | None = None,
    *,
    session: SparkSession | None = None,
    master: str | None = None,
) -> ConvertReport:
    """One broker's directory into another's, as `headrace.convert`, in one task."""
    with engine(session, master) as made:
        return parallel.convert(source, target, to, spec, engine=made)
