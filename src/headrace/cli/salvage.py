"""`headrace salvage`: all that is sound into a new store."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, Stream, read_key


def salvage(
    directory: Directory,
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT", help="The new store: must not exist, or be an empty directory.", show_default=False
        ),
    ],
    stream: Stream = None,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Copy everything that is sound into a new store and list what is not. DIR stays as it is.

    Messages keep sequence, time and headers, consumers their position, streams their configuration. The copy is
    of the same product (JetStream: readable by nats-server 2.10 and later), and is verified before it gets its name.

    Exit code 0: everything was sound. 1: something had to be left behind. 2: could not.
    """
    from headrace.cli.screen import Screen, print_json, progress
    from headrace.ops.look import salvage as run
    from headrace.units import plural

    secret = read_key(key, key_file)
    with progress("saving") as report_progress:
        report = run(directory, out, log=stream, key=secret, progress=report_progress)
    code = report.exit_code
    if as_json:
        print_json(report.to_dict())
        return code
    screen = Screen()
    for each in report.streams:
        screen.parts(
            (each.name, "bold"),
            (
                f"  {plural(each.messages, 'message')} saved, sequences {each.first_seq}..{each.last_seq}, "
                f"{plural(each.consumers, 'consumer')}",
                None,
            ),
        )
        if each.damage:
            screen.line(f"  not sound in the source: {plural(len(each.damage), 'finding')}", "bold red")
            screen.damage(each.damage)
        for problem in each.problems:
            screen.line(f"  could not be saved: {problem}", "red")
        for note in each.notes:
            screen.line(f"  note: {note}", "dim")
    screen.unread(report.unread)
    verdict = "verified as sound" if report.copy_sound else "but it does NOT verify as sound"
    screen.parts(
        (f"{report.out}: ", None),
        (
            f"{plural(report.messages, 'message')} saved, {verdict}",
            "bold green" if report.copy_sound else "bold red",
        ),
    )
    return code
