"""`headrace verify`: every hash and boundary, gaps, indexes against blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, Stream, read_key
from headrace.units import format_size, plural

if TYPE_CHECKING:
    from headrace.layouts.report import Report


def verify(
    directory: Directory,
    stream: Stream = None,
    key: Key = None,
    key_file: KeyFile = None,
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=64, help="How many blocks to check at once.")
    ] = 4,
    as_json: Json = False,
) -> int:
    """Check every byte of a store and say what is not sound. Changes nothing.

    Exit code 0: sound. 1: damage was found, or the directory holds what no reader here reads (it is named). 2: the store,
    or a part of it, could not be read.
    """
    from headrace.cli.screen import progress
    from headrace.ops.look import verify as run

    secret = read_key(key, key_file)
    with progress("checking") as show:
        report = run(directory, log=stream, key=secret, progress=show, threads=threads)
    return show_report(report, as_json)


def show_report(report: Report, as_json: bool) -> int:
    """Print what is not sound; returns the exit code."""
    from headrace.cli.inspect import show_findings
    from headrace.cli.screen import Screen, print_json, warn

    code, nouns = report.exit_code, report.nouns
    if report.problems:
        warn(f"not everything could be read: {report.problems[0]}")
    if as_json:
        print_json(report.to_dict() | {"seconds": report.seconds})
        return code
    screen = Screen()
    for log in report.logs:
        mark, style = ("sound", "green") if log.sound else ("NOT SOUND", "bold red")
        screen.parts((f"{mark:<9}  ", style), (log.name, "bold"), (f"  {log.summary}", None))
        show_findings(screen, log)
    if (shared := report.shared()) is not None:
        show_findings(screen, shared)
    screen.unread(report.unread)
    rate = f", {format_size(int(report.file_bytes / report.seconds))}/s" if report.seconds > 0.1 else ""
    verdict = verdict_of(code, len(report.damage), len(report.left_out))
    screen.parts(
        (f"{report.path}: ", None),
        (verdict, "bold green" if code == 0 else "bold red"),
        (f" ({plural(report.messages, nouns.message)} in {report.seconds:.1f} s{rate})", None),
    )
    if report.damage and report.can_be_salvaged:
        screen.line(f"headrace salvage DIR OUT copies everything that is sound into a new {nouns.directory}")
    return code


def verdict_of(code: int, findings: int, left_out: int) -> str:
    """The last word: sound, or why not."""
    if code == 2:
        return "not everything could be checked"
    words = [plural(findings, "finding")] if findings else []
    words += [f"{plural(left_out, 'place')} not read"] if left_out else []
    return ", ".join(words) or "sound"
