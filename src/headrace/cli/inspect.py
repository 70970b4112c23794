"""`headrace inspect`: what is this directory? With a picture of the blocks on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, Stream, read_key
from headrace.units import format_size, plural

if TYPE_CHECKING:
    from headrace.cli.screen import Screen
    from headrace.layouts.report import FileRow, LogReport, Nouns, Report

ROWS_SHOWN_MAX = 40
_ENDS = 8


def inspect(
    directory: Directory,
    stream: Stream = None,
    key: Key = None,
    key_file: KeyFile = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not read the blocks: no overhead, no damage in messages.")
    ] = False,
    all_blocks: Annotated[bool, typer.Option("--all-blocks", help="Show every block, however many.")] = False,
    as_json: Json = False,
) -> int:
    """Say what a directory is: product, era, streams, blocks, sizes, consumers, damage. Changes nothing.

    Exit code 0: no damage was seen. 1: damage was found, or it holds what no reader here reads (it is named). 2: it is no
    store, or could not be read.
    """
    from headrace.cli.screen import Screen, print_json, progress, warn
    from headrace.ops.look import inspect as run

    secret = read_key(key, key_file)
    with progress("reading") as show:
        report = run(directory, log=stream, key=secret, quick=quick, progress=show)
    if report.problems:
        warn(f"not everything could be read: {report.problems[0]}")
    if as_json:
        print_json(report.to_dict())
        return report.exit_code
    screen = Screen()
    _show_directory(screen, report, all_blocks)
    for each in report.logs:
        screen.line()
        _show_log(screen, each, report.nouns, all_blocks)
    return report.exit_code


def _show_directory(screen: Screen, report: Report, all_rows: bool) -> None:
    nouns = report.nouns
    screen.parts((report.path, "bold"), (f"  {report.heading}", None))
    screen.line(
        f"  {plural(len(report.logs), nouns.log)}, {plural(report.messages, 'message')}, "
        f"{format_size(report.file_bytes)} of {nouns.file}s"
    )
    if report.writer:
        screen.line(f"  open for writing now by {report.writer}", "yellow")
    if not report.complete:
        screen.line(f"  a quick look: the {nouns.file}s were not read; verify checks every byte", "dim")
    if (shared := report.shared()) is not None:
        _show_about(screen, shared)
        _show_files(screen, shared.file_rows(), nouns, all_rows)
        show_findings(screen, shared)
    screen.unread(report.unread)


def _show_log(screen: Screen, log: LogReport, nouns: Nouns, all_rows: bool) -> None:
    screen.parts((log.name, "bold"), (f"  {log.heading}", "dim"))
    _show_about(screen, log)
    _show_files(screen, log.file_rows(), nouns, all_rows)
    for each in log.reader_rows():
        screen.line(f"  {each.kind:<10} {each.text()}")
    show_findings(screen, log)


def _show_about(screen: Screen, log: LogReport) -> None:
    for name, text in log.about():
        screen.line(f"  {name:<10} {text}")


def show_findings(screen: Screen, log: LogReport) -> None:
    """Notes, problems and damage."""
    for name, text in log.remarks():
        screen.line(f"  {name:<10} {text}", "dim")
    for problem in log.problems:
        screen.line(f"  could not be read: {problem}", "red")
    if log.findings:
        screen.line(f"  {plural(len(log.findings), 'finding')}", "bold red")
        screen.damage(log.findings)


def _show_files(screen: Screen, rows: Sequence[FileRow], nouns: Nouns, all_rows: bool) -> None:
    largest = max((row.file_bytes for row in rows), default=0)
    shown = list(enumerate(rows))
    if len(rows) > ROWS_SHOWN_MAX and not all_rows:
        shown = [(at, row) for at, row in shown if at < _ENDS or at >= len(rows) - _ENDS or row.damage]
    before = 0
    for at, row in shown:
        if at > before:
            screen.line(
                f"             … {at - before:,} more {nouns.file}s (--all-blocks shows them) …", "dim"
            )
        before = at + 1
        _show_file(screen, row, largest)


def _show_file(screen: Screen, row: FileRow, largest: int) -> None:
    """With a bar for what is inside, on a terminal."""
    bar: list[tuple[str, str | None]] = []
    if screen.is_terminal and (picture := row.picture()) is not None:
        bar = [*screen.bar(row.file_bytes, largest, picture.live, picture.damaged), ("  ", None)]
    words = row.words()
    screen.parts(
        (f"  {row.label()}", None),
        *bar,
        (row.text(), None),
        (f"  {', '.join(words)}" if words else "", "red" if row.damage else "dim"),
    )
