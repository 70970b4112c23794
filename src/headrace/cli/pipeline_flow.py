"""`headrace pipeline replay` and `convert`: messages into other places."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.convert import Order, UnreadOk
from headrace.cli.options import Json, Key, KeyFile, read_key
from headrace.cli.pipeline import EPILOG as CODES
from headrace.cli.pipeline import (
    Creds,
    DryRun,
    EngineName,
    Logs,
    Master,
    app,
    check_source,
    engine_of,
    server_of,
)
from headrace.errors import BadInput


@app.command("replay", epilog=CODES)
def replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="An archive, or a store of any layout; only read.", show_default=False
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="DEST",
            help="A server, nats://host:4222, or a directory (with --layout).",
            show_default=False,
        ),
    ],
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", help="Of the directory: jetstream, kafka, nats_streaming, rabbitmq, rocketmq."
        ),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="STREAM",
            help="The stream that takes the messages, and no other. It must take their subjects: see --subject.",
        ),
    ] = None,
    application: Annotated[
        str,
        typer.Option(
            "--application",
            metavar="NAME",
            help="Part of the ids: another name replays everything once more.",
        ),
    ] = "replay",
    pace: Annotated[
        float,
        typer.Option("--pace", help="0: at once. 1: with the original pauses. 10: ten times as fast.", min=0),
    ] = 0.0,
    logs: Logs = None,
    subjects: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="SUBJECT", help="Only these subjects; wildcards. May be repeated."),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="TEXT",
            help="The subject that the messages get, as of convert; 'copy.{subject}' has their own in it.",
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", metavar="SEQ", help="From this sequence on.", min=0)
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", metavar="SEQ", help="Up to this one (included).", min=0)
    ] = None,
    creds: Creds = None,
    engine: EngineName = "spark",
    master: Master = None,
    dry_run: DryRun = False,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Send the messages of an archive again, each once, in order.

    Into a stream their ids are application:log:sequence: a Headrace server knows them for ever, another one inside the
    stream's duplicate window. Into a directory sequences are kept, and a second run goes on where it ends.
    """
    from headrace.cli.pipeline_line import line
    from headrace.cli.screen import Screen, print_json
    from headrace.client import StreamTarget
    from headrace.ops.replay import DirectoryTarget, ReplayTarget, ReplayTask
    from headrace.ops.replay import replay as run
    from headrace.units import plural

    server = server_of(target, creds)
    if (server is None) == (layout is None):
        raise BadInput("a directory needs --layout; a server, nats://host:4222, has none")
    if server is not None:
        into: ReplayTarget = StreamTarget(server, stream, application)
    else:
        place = DirectoryTarget(target, layout or "")
        place.check()
        into = place
    task = ReplayTask(
        source,
        tuple(logs or ()),
        into,
        pace=pace,
        first=first,
        next=None if until is None else until + 1,
        subjects=tuple(subjects or ()),
        subject=subject,
        key=read_key(key, key_file),
    )
    name = target if server is None else server.place
    check_source(source)
    with (
        engine_of("local" if dry_run else engine, None if dry_run else master) as made,
        line("replay") as report_progress,
    ):
        result = run(task, name, engine=made, progress=report_progress, dry_run=dry_run)
    if as_json:
        print_json(result.to_dict())
        return 0
    screen = Screen()
    if dry_run:
        for log in result.logs:
            screen.line(f"  {log.name}  {plural(log.rows, 'message')}")
        screen.line(f"{name}: would get up to {plural(result.rows, 'message')} (--dry-run)", "bold")
        return 0
    known = f", {result.duplicates:,} were there already" if result.duplicates else ""
    screen.parts(
        (f"{name}: ", None),
        (f"{plural(result.stored, 'message')} stored", "bold green"),
        (f"{known} ({result.seconds:.1f} s)", None),
    )
    return 0


@app.command("convert", epilog=CODES)
def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The directory to read; not changed.", show_default=False)
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="As of headrace convert.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="jetstream, nats_streaming, kafka, rocketmq or rabbitmq.", show_default=False
        ),
    ],
    rules: Annotated[
        list[str] | None, typer.Option("--map", metavar="FROM=TO", help="As of headrace convert.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="TEXT", help="As of headrace convert.")
    ] = None,
    log: Annotated[str | None, typer.Option("--log", "-s", metavar="NAME", help="Only this one.")] = None,
    order: Order = "time",
    restart: Annotated[bool, typer.Option("--restart", help="As of headrace convert.")] = False,
    unread_ok: UnreadOk = False,
    engine: EngineName = "spark",
    master: Master = None,
    dry_run: DryRun = False,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Convert a directory, on a worker: headrace convert with its most used options, its answer and its exit codes.

    A product's directory has one writer, so that one conversion is one task; its logs are read, recast and compared side by
    side, on all cores of that worker.
    """
    from headrace.cli.convert import show_converted, show_plan
    from headrace.cli.screen import Screen, print_json
    from headrace.ops.conversion import ConversionSpec
    from headrace.ops.parallel import convert as run

    check_source(source)
    spec = ConversionSpec(
        rules=tuple(rules or ()),
        subject=subject,
        log=log,
        order=order,
        restart=restart,
        unread_ok=unread_ok,
        dry_run=dry_run,
        key=read_key(key, key_file),
    )
    with engine_of("local" if dry_run else engine, None if dry_run else master) as made:
        report = run(source, target, to, spec, engine=made)
    if as_json:
        print_json(report.to_dict())
        return report.exit_code
    screen = Screen()
    show_plan(screen, report)
    return show_converted(screen, report)
