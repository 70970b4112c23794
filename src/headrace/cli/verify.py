"""`headrace verify`: every hash and boundary, gaps, indexes against blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, Stream, read_key
from headrace.units import format_size

if TYPE_CHECKING:
    from headrace.ops.verify import VerifyReport


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

    Exit code 0: sound. 1: damage was found. 2: the store, or a part of it, could not be read.
    """
    from headrace.cli.screen import progress
    from headrace.cli.volumes import show_verification
    from headrace.ops.plan import room_at
    from headrace.ops.verify import verify as run
    from headrace.ops.volumes import verify_volume

    secret = read_key(key, key_file)
    room = room_at(directory)
    if room is not None:
        with progress("checking") as tell:
            found = verify_volume(room, directory, log=stream, key=secret, progress=tell, threads=threads)
        return show_verification(found, as_json)
    with progress("checking") as tell:
        report = run(directory, stream=stream, key=secret, progress=tell, threads=threads)
    return show_report(report, as_json)


def show_report(report: VerifyReport, as_json: bool) -> int:
    """Print what is not sound; returns the exit code."""
    from headrace.cli.screen import Screen, plural, print_json, warn

    code = 2 if report.problems else 1 if report.damage else 0
    if report.problems:
        warn(f"not everything could be read: {report.problems[0]}")
    if as_json:
        print_json(report.to_dict())
        return code
    screen = Screen()
    for each in report.streams:
        mark, style = ("sound", "green") if each.sound else ("NOT SOUND", "bold red")
        sequences = f"{each.first_seq}..{each.last_seq}" if each.first_seq is not None else "none"
        missing = f" ({plural(each.missing, 'sequence')} missing between)" if each.missing else ""
        screen.parts(
            (f"{mark:<9}  ", style),
            (each.name, "bold"),
            (
                f"  {plural(each.messages, 'record')}, sequences {sequences}{missing}, "
                f"{plural(each.tombstones, 'tombstone')}, {plural(each.placeholders, 'placeholder')}, "
                f"{format_size(each.file_bytes)} in {plural(len(each.blocks), 'block')} ({each.guarded} guarded), "
                f"{plural(each.consumers, 'consumer')}",
                None,
            ),
        )
        screen.damage(each.damage)
        for problem in each.problems:
            screen.line(f"  could not be checked: {problem}", "red")
        for note in each.notes:
            screen.line(f"  note: {note}", "dim")
    rate = f", {format_size(int(report.file_bytes / report.seconds))}/s" if report.seconds > 0.1 else ""
    verdict = {0: "sound", 1: plural(len(report.damage), "finding"), 2: "not everything could be checked"}[
        code
    ]
    screen.parts(
        (f"{report.path}: ", None),
        (verdict, "bold green" if code == 0 else "bold red"),
        (f" ({plural(report.messages, 'record')} in {report.seconds:.1f} s{rate})", None),
    )
    if code == 1:
        screen.line("headrace salvage DIR OUT copies everything that is sound into a new store")
    return code
