"""`headrace convert`: one broker's directory into another broker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Json, Key, KeyFile, read_key
from headrace.errors import BadInput

if TYPE_CHECKING:
    from headrace.cli.screen import Screen
    from headrace.ops.conversion import ConvertReport

LOGS_SHOWN_MAX = 40
Order = Annotated[
    str,
    typer.Option("--order", help="Of logs that are joined: time (a merge), log (one after the other)."),
]
UnreadOk = Annotated[
    bool, typer.Option("--unread-ok", help="Go on without what SRC holds and no reader here reads.")
]
_STYLES = {"kept": "green", "changed": "yellow", "carried": "yellow", "lost": "bold red"}


def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="The directory to read; it is not changed.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            help="A directory that does not exist yet, or one of the target's product: empty and new logs in it take the messages.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="jetstream, nats_streaming, kafka, rocketmq or rabbitmq.", show_default=False
        ),
    ],
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FROM=TO",
            help="Which log becomes which: 'orders-*=ORDERS_{1}', '*={topic}'; a stream by subject: 'ORDERS:orders.*.>={1}-0'. The first rule that fits decides; "
            "logs with one target are joined.",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="TEXT",
            help="The subject (routing key) of the messages: '{topic}.{partition}'; '{subject}' is each one's own.",
        ),
    ] = None,
    carry: Annotated[
        str,
        typer.Option(
            "--subject-in",
            metavar="PLACE",
            help="Where subjects go that the target has no place for: header, key, no.",
        ),
    ] = "header",
    order: Order = "time",
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            "-s",
            metavar="NAME",
            help="Only this stream, channel, queue, partition or topic, or a pattern.",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the target under its own name; for jetstream of the streams: retention=workqueue.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and what would be lost; write nothing.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an interrupted conversion has built.")
    ] = False,
    unread_ok: UnreadOk = False,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Copy all messages of SRC into a directory of another broker, which that broker then opens.

    First comes a table of what is kept, changed, carried along in headers, or lost. Interrupted, the same command goes
    on. At the end both sides are read again and compared by count and hash; only then DST gets its name.

    Exit code 0: everything converted. 1: converted, and the source is damaged; or not converted, because SRC holds what no
    reader here reads (it is named; --unread-ok goes on without it). 2: could not.
    """
    from headrace.cli.screen import Screen, print_json, progress
    from headrace.ops.conversion import ConversionSpec
    from headrace.ops.conversion import convert as run

    screen = Screen()

    def show(plan: ConvertReport) -> None:
        if not as_json:
            show_plan(screen, plan)

    spec = ConversionSpec(
        rules=rules or (),
        subject=subject,
        carry=carry,
        log=log,
        order=order,
        options=_options(options or []),
        key=read_key(key, key_file),
        dry_run=dry_run,
        restart=restart,
        unread_ok=unread_ok,
    )
    with progress("copying, then comparing", in_bytes=False) as show_steps:
        report = run(source, target, to, spec, progress=show_steps, approve=show)
    if as_json:
        print_json(report.to_dict())
        return report.exit_code
    return show_converted(screen, report)


def show_converted(screen: Screen, report: ConvertReport) -> int:
    """Print what was done; returns the exit code."""
    from headrace.units import plural

    if report.stopped:
        screen.line(
            "nothing was written: what is not read would be left out; --unread-ok goes on without it",
            "bold red",
        )
        return report.exit_code
    if report.dry_run:
        screen.line("nothing was written (--dry-run)", "bold")
        return report.exit_code
    for each in report.logs:
        for note in each.notes:
            screen.line(f"  {each.source}: {note}", "dim")
        if each.readers:
            screen.line(f"  {each.target}: readers {', '.join(each.readers)}")
    if report.damage:
        screen.line(f"not sound in the source: {plural(len(report.damage), 'finding')}", "bold red")
        screen.damage(report.damage)
    again = ", going on where an earlier run was interrupted" if report.resumed else ""
    screen.parts(
        (f"{report.target}: ", None),
        (f"{plural(report.messages, 'message')}, both sides compared by count and hash", "bold green"),
        (f" ({report.seconds:.1f} s{again})", None),
    )
    return report.exit_code


def show_plan(screen: Screen, plan: ConvertReport) -> None:
    """Print what becomes of which log, and what is lost."""
    from headrace.units import plural

    screen.parts(
        (plan.source, "bold"),
        (f"  {plan.source_layout}  →  ", None),
        (plan.target, "bold"),
        (f"  {plan.target_layout}", None),
    )
    for row in plan.losses:
        screen.parts((f"  {row.fate:<8}", _STYLES[row.fate]), (f"{row.what}: {row.how}", None))
    for each in plan.logs[:LOGS_SHOWN_MAX]:
        about = "" if each.subject is None else f", subject {each.subject}"
        screen.line(
            f"  {each.source} → {each.target}  {plural(each.messages, 'message')}, {each.first}..{each.last}{about}"
        )
    if len(plan.logs) > LOGS_SHOWN_MAX:
        screen.line(f"  and {len(plan.logs) - LOGS_SHOWN_MAX} more", "dim")
    screen.unread(plan.unread)


def _options(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput(f"--option {text!r}: write NAME=VALUE")
        found[name] = value
    return found
