"""`verify` and `convert` by an engine.

verify    one item per block (JetStream) or per log (Kafka, NATS Streaming); the report is that of `ops.verify`
convert   one item: a directory of a product has one writer; its logs go side by side in the threads of that worker
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError, NotFound
from headrace.layouts.detect import ARCHIVE, open_volume, room
from headrace.layouts.jetstream.inspector import BlockFacts
from headrace.layouts.room import VolumeView
from headrace.ops.conversion import ConvertReport
from headrace.ops.conversion import convert as convert_here
from headrace.ops.engines import Done, Engine, Tell, Threads
from headrace.ops.plan import check_path, make_plan, room_at, run_task
from headrace.ops.verify import VerifyReport, report_on
from headrace.ops.volumes import VolumeReport


def verify(
    path: str,
    *,
    stream: str | None = None,
    key: str | None = None,
    engine: Engine | None = None,
    progress: Tell | None = None,
) -> VerifyReport | VolumeReport:
    """Check every byte of a store; each block, or each log, where the engine has room for it."""
    engine, started = engine or Threads(), time.monotonic()
    where = room_at(path)
    if where is not None:
        return _verify_logs(where.layout, path, stream, key, engine, progress)
    plan = make_plan(path, stream=stream, key=key)
    done = Done(blocks_all=len(plan.tasks), bytes_all=plan.file_bytes)
    facts: dict[str, list[BlockFacts]] = {name: [] for name in plan.streams}
    for number, found in engine.run(run_task, plan.tasks):
        facts[plan.tasks[number].log].append(found)
        _step(done, found.messages, plan.tasks[number].file_bytes, progress)
    for each in facts.values():
        each.sort(key=lambda block: block.number)
    report = report_on(plan, facts)
    report.seconds = round(time.monotonic() - started, 3)
    return report


def _step(done: Done, rows: int, size: int, progress: Tell | None) -> None:
    done.blocks += 1
    done.rows += rows
    done.bytes += size
    if progress is not None:
        progress(done)


@dataclass(frozen=True, slots=True)
class LogCheck:
    """Work on one log of a layout that is a room."""

    layout: str
    path: str
    log: str | None
    key: str | None


def check_log(task: LogCheck) -> VolumeView:
    """Every byte of the log, and what it needs of the shared files."""
    return room(task.layout).verify(task.path, log=task.log, key=task.key)


def _verify_logs(
    layout: str, path: str, log: str | None, key: str | None, engine: Engine, progress: Tell | None
) -> VolumeReport:
    started, checked = time.monotonic(), check_path(path)
    if layout == ARCHIVE:  # opening one refuses it when files are missing, which is what is asked here
        names = [each.name for each in room(layout).inspect(checked, quick=True, key=key).logs]
    else:
        with open_volume(checked, key=key) as volume:
            names = volume.logs()
    if log is not None and log not in names:
        raise NotFound(f"{path}: no log {log!r}")
    # Files that logs share are looked at as a whole, once; without logs they are all there is.
    alone = log is not None or layout not in ("kafka", "nats_streaming", ARCHIVE) or not names
    items = (
        [LogCheck(layout, checked, log, key)]
        if alone
        else [LogCheck(layout, checked, name, key) for name in names]
    )
    done = Done(blocks_all=len(items))
    views: dict[int, VolumeView] = {}
    for number, view in engine.run(check_log, items):
        views[number] = view
        _step(done, view.messages, view.file_bytes, progress)
    merged = views[0]
    for number in range(1, len(items)):
        view = views[number]
        merged.logs += view.logs
        for mine, theirs in (
            (merged.damage, view.damage),
            (merged.notes, view.notes),
            (merged.problems, view.problems),
        ):
            mine += [each for each in theirs if each not in mine]  # type: ignore[operator]
    return VolumeReport(merged, complete=True, seconds=time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The words of `ops.conversion.convert`."""

    source: str
    target: str
    to: str
    options: Mapping[str, Any]


def convert_one(asked: Conversion) -> ConvertReport:
    """In a worker, all of it."""
    options: dict[str, Any] = {"threads": os.cpu_count() or 1, **asked.options}
    return convert_here(asked.source, asked.target, asked.to, **options)


def convert(
    source: str, target: str, to: str, *, engine: Engine | None = None, **options: Any
) -> ConvertReport:
    """One broker's directory into another's, where the engine has room for it."""
    for _, report in (engine or Threads(1)).run(convert_one, [Conversion(source, target, to, options)]):
        return report
    raise HeadraceError("the engine gave no answer")
