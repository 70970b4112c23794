"""`verify` and `convert` by an engine.

verify    one item per block (JetStream) or per log; the report is that of `verify`
convert   one item: a directory of a product has one writer; its logs go side by side in the threads of that worker
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from headrace.errors import HeadraceError
from headrace.layouts.checks import Checked, CheckPiece
from headrace.layouts.registry import layout_at
from headrace.layouts.report import Report
from headrace.ops.conversion import ConversionSpec, ConvertReport
from headrace.ops.conversion import convert as convert_here
from headrace.ops.engines import Done, OnProgress, Threads, WorkEngine


def verify(
    path: str,
    *,
    stream: str | None = None,
    key: str | None = None,
    engine: WorkEngine | None = None,
    progress: OnProgress | None = None,
) -> Report:
    """Check every byte of a store; each block, or each log, where the engine has room for it."""
    engine, started, layout = engine or Threads(), time.monotonic(), layout_at(path)
    plan = layout.check_plan(path, log=stream, key=key)
    done = Done(blocks_all=len(plan.pieces), bytes_all=plan.file_bytes)
    found: dict[int, Checked] = {}
    for number, checked in engine.run(check_piece, plan.pieces):
        found[number] = checked
        done.blocks += 1
        done.rows += checked.messages
        done.bytes += checked.file_bytes
        if progress is not None:
            progress(done)
    report = plan.report(found)
    report.unread = layout.unread_at(path) if stream is None else []
    report.seconds = round(time.monotonic() - started, 3)
    return report


def check_piece(piece: CheckPiece) -> Checked:
    """In a worker."""
    return piece.run()


@dataclass(frozen=True, slots=True)
class Conversion:
    """The arguments of `ops.conversion.convert`."""

    source: str
    target: str
    to: str
    spec: ConversionSpec


def convert_one(conversion: Conversion) -> ConvertReport:
    """In a worker, all of it."""
    spec = conversion.spec
    if spec.threads is None:
        spec = replace(spec, threads=os.cpu_count() or 1)
    return convert_here(conversion.source, conversion.target, conversion.to, spec)


def convert(
    source: str,
    target: str,
    to: str,
    spec: ConversionSpec | None = None,
    *,
    engine: WorkEngine | None = None,
) -> ConvertReport:
    """One broker's directory into another's, on a worker of the engine."""
    conversion = Conversion(source, target, to, spec or ConversionSpec())
    for _, report in (engine or Threads(1)).run(convert_one, [conversion]):
        return report
    raise HeadraceError("the engine gave no answer")
