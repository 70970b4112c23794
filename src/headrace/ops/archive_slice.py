"""One slice of a NATS Streaming channel into an archive: what the server's archive script does with what it is given.

    script  <channel>  msgs.N.dat.bak  msgs.N.idx.bak

Scripts run beside each other and in no order: each waits for the archive's lock, and its range need not follow the last.
"""

from __future__ import annotations

import time
from pathlib import Path

from headrace.errors import BadInput, NotFound
from headrace.layouts.registry import layout_named
from headrace.ops.archive import ArchiveOptions, ArchiveResult, LogArchived, archives, run_groups
from headrace.ops.engines import Threads

WAIT_S = 600.0
LAYOUT = "nats_streaming"


def archive_slice(
    target: str,
    channel: str,
    data: str,
    index: str,
    options: ArchiveOptions | None = None,
    *,
    keep: bool = False,
) -> ArchiveResult:
    """Archive the slice, then remove its files. One that is in the archive already is only removed."""
    options, started = options or ArchiveOptions(), time.monotonic()
    options.check()
    if not channel:
        raise BadInput("the channel's name is empty")
    for path in (data, index):
        if not Path(path).is_file():
            raise NotFound(f"{path}: no such file")
    task = layout_named(LAYOUT).lone_task(channel, (data, index), options.key)
    engine = Threads(1)
    row = LogArchived(channel, "", task.first if task else 0, task.next if task else 0)
    result = ArchiveResult(data, target, "parquet", engine.name, [row])
    ledger = archives().ledger(target, LAYOUT, options.by, WAIT_S)
    try:
        entry = ledger.log(channel, "")
        if task is not None and not entry.covers(task.first, task.next):
            if entry.overlaps(task.first, task.next):
                raise BadInput(
                    f"{data}: a part of {task.first} to {task.next - 1} is in {target} already, and a part is not; "
                    "archive it into another directory"
                )
            groups = archives().groups(channel, [task], task.first, options.write_options(ledger.place))
            run_groups([(entry, group) for group in groups], ledger, engine, result)
        result.rows_all = ledger.rows
    finally:
        ledger.close()
    if not keep:
        for path in (data, index):
            Path(path).unlink(missing_ok=True)
    result.seconds = round(time.monotonic() - started, 3)
    return result
