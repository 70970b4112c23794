"""What `inspect` and `verify` print for the layouts that are rooms: the directory, its logs, files, readers, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.units import format_size, format_time_ns

if TYPE_CHECKING:
    from headrace.cli.screen import Screen
    from headrace.layouts.base import LogState
    from headrace.layouts.room import FileRow, LogView, VolumeView
    from headrace.ops.volumes import VolumeReport

FILES_SHOWN_MAX = 40
_ENDS = 8


def show_inspection(report: VolumeReport, as_json: bool, all_files: bool) -> int:
    """Print what is there; returns the exit code."""
    from headrace.cli.screen import Screen, plural, print_json, warn

    view = report.view
    if view.all_problems:
        warn(f"not everything could be read: {view.all_problems[0]}")
    if as_json:
        print_json(report.to_dict())
        return report.exit_code
    screen = Screen()
    screen.parts((view.path, "bold"), (f"  {view.product} directory, {view.version}", None))
    screen.line(
        f"  {plural(len(view.logs), 'log')}, {plural(view.messages, 'message')}, {format_size(view.file_bytes)} of files"
    )
    if view.writer:
        screen.line(f"  open for writing now by {view.writer}", "yellow")
    if not report.complete:
        screen.line("  a quick look: the files were not read; verify checks every byte", "dim")
    _show_details(screen, view.details)
    _show_files(screen, view.files, all_files)
    _show_rest(screen, view)
    for log in view.logs:
        screen.line()
        screen.parts((log.name, "bold"), (f"  {log.directory}", "dim"))
        if log.state is not None:
            screen.line(f"  messages   {_state_line(log.state)}")
        _show_details(screen, log.details)
        _show_files(screen, log.files, all_files)
        for each in log.cursors:
            more = "".join(f", {name} {value}" for name, value in each.details.items())
            screen.line(
                f"  {each.kind:<10} {each.name}: next {each.next}, settled below {each.floor}, {each.pending:,} pending{more}"
            )
        _show_rest(screen, log)
    return report.exit_code


def show_verification(report: VolumeReport, as_json: bool) -> int:
    """Print what is not sound; returns the exit code."""
    from headrace.cli.screen import Screen, plural, print_json, warn

    view, code = report.view, report.exit_code
    if view.all_problems:
        warn(f"not everything could be read: {view.all_problems[0]}")
    if as_json:
        print_json(report.to_dict() | {"seconds": report.seconds})
        return code
    screen = Screen()
    for log in view.logs:
        mark, style = ("sound", "green") if log.sound else ("NOT SOUND", "bold red")
        state = _state_line(log.state) if log.state is not None else "nothing could be read"
        screen.parts((f"{mark:<9}  ", style), (log.name, "bold"), (f"  {state}", None))
        _show_rest(screen, log)
    _show_rest(screen, view)
    verdict = {0: "sound", 1: plural(len(view.all_damage), "finding"), 2: "not everything could be checked"}[
        code
    ]
    rate = f", {format_size(int(view.file_bytes / report.seconds))}/s" if report.seconds > 0.1 else ""
    screen.parts(
        (f"{view.path}: ", None),
        (verdict, "bold green" if code == 0 else "bold red"),
        (f" ({plural(view.messages, 'message')} in {report.seconds:.1f} s{rate})", None),
    )
    if code == 1 and view.layout != "parquet":
        screen.line("headrace salvage DIR OUT copies everything that is sound into a new directory")
    return code


def _state_line(state: LogState) -> str:
    from headrace.cli.screen import plural

    if not state.messages:
        return f"no messages, the next one is number {state.last_seq + 1}"
    times = ""
    if state.first_time_ns is not None:
        times = f", {format_time_ns(state.first_time_ns)} to {format_time_ns(state.last_time_ns)}"
    removed = f", {state.num_deleted:,} missing between" if state.num_deleted else ""
    return f"{plural(state.messages, 'message')}, {state.first_seq}..{state.last_seq}{removed}{times}"


def _show_details(screen: Screen, details: dict[str, str]) -> None:
    for name, value in details.items():
        screen.line(f"  {name:<10} {value}")


def _show_files(screen: Screen, rows: list[FileRow], all_files: bool) -> None:
    shown = rows
    if len(rows) > FILES_SHOWN_MAX and not all_files:
        shown = [row for at, row in enumerate(rows) if at < _ENDS or at >= len(rows) - _ENDS or row.damage]
    before = 0
    for row in shown:
        at = rows.index(row, before)
        if at > before:
            screen.line(f"             … {at - before:,} more files (--all-blocks shows them) …", "dim")
        before = at + 1
        words = [f"{name} {value}" for name, value in row.details.items()]
        words += ["newest"] if row.newest else []
        words += [each.kind for each in row.damage[:3]]
        where = "" if row.first is None or row.next is None else f"  {row.first}..{row.next - 1}"
        count = f"  {row.messages:>9,} messages{where}" if row.messages else ""
        screen.parts(
            (f"  {row.kind:<10} {row.file}  {format_size(row.file_bytes):>10}{count}", None),
            (f"  {', '.join(words)}" if words else "", "red" if row.damage else "dim"),
        )


def _show_rest(screen: Screen, view: LogView | VolumeView) -> None:
    """Notes, problems and findings."""
    from headrace.cli.screen import plural

    for note in view.notes:
        screen.line(f"  note       {note}", "dim")
    for problem in view.problems:
        screen.line(f"  could not be read: {problem}", "red")
    damage = list(dict.fromkeys([*view.damage, *(each for row in view.files for each in row.damage)]))
    if damage:
        screen.line(f"  {plural(len(damage), 'finding')}", "bold red")
        screen.damage(damage)
