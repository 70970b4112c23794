"""`headrace pipeline health` and `dlq`: out of the stream that captures the events of a server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Json, Key, KeyFile, read_key
from headrace.cli.pipeline import EPILOG, LISTED_MAX, Creds, DryRun, server_of, volume_of
from headrace.cli.pipeline_flow import app
from headrace.errors import BadInput
from headrace.units import parse_duration_ns

if TYPE_CHECKING:
    from headrace.client import Access
    from headrace.layouts.base import Volume

Place = Annotated[
    str,
    typer.Argument(
        metavar="SRC", help="A server, nats://host:4222, or a store with both streams.", show_default=False
    ),
]
Events = Annotated[
    str | None,
    typer.Option("--events", metavar="STREAM", help="The stream that captures $JS.EVENT.> (JS_EVENTS)."),
]


@contextmanager
def _opened(source: str, server: Access | None, key: str | None) -> Generator[Volume]:
    from headrace.layouts.registry import open_volume

    with volume_of(server) if server is not None else open_volume(source, key=key) as volume:
        yield volume


@app.command("health", epilog=EPILOG)
def health(
    source: Place,
    events: Events = None,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="How long one row is: 10s, 1m, 1h.")
    ] = "1m",
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Also a page with plots, complete in one file."),
    ] = None,
    setup: Annotated[
        bool,
        typer.Option("--setup", help="Make the stream that captures events on the server SRC, and stop."),
    ] = False,
    creds: Creds = None,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """How consumers do: ack times (p50, p95, p99), redeliveries, naks, messages given up, lag.

    Needs a stream that captures $JS.EVENT.> (--setup makes it), and consumers with a sample frequency for ack times.
    """
    from headrace.cli.screen import Screen, print_json
    from headrace.ops.events import CAPTURED, STREAM
    from headrace.ops.health import health as run
    from headrace.ops.health_page import duration, page
    from headrace.units import plural

    server = server_of(source, creds)
    window_ns = parse_duration_ns(window)
    if window_ns < 1:
        raise BadInput(f"--window {window!r}: longer than nothing")
    if setup:
        if server is None:
            raise BadInput("--setup is for a server: nats://host:4222")
        name = events or STREAM
        made = volume_of(server).create(
            name, subjects=[CAPTURED], storage="file", max_age=7 * 86_400_000_000_000
        )
        print(f"{server.place}: stream {made.name} captures {CAPTURED}, for seven days")
        return 0
    with _opened(source, server, read_key(key, key_file)) as volume:
        result = run(volume, events=events, window_ns=window_ns)
    if html is not None:
        Path(html).write_text(page(result), encoding="utf-8")
    if as_json:
        print_json(result.to_dict())
        return 0
    screen = Screen()
    for row in result.totals:
        lag = "" if row.lag is None else f", {row.lag:,} behind"
        screen.parts(
            (f"{row.stream} > {row.consumer}", "bold"),
            (
                f"  ack p50 {duration(row.ack_p50_ns)}, p95 {duration(row.ack_p95_ns)}, p99 {duration(row.ack_p99_ns)} "
                f"({plural(row.samples, 'sample')}), {row.redelivered:,} redelivered, {row.naked:,} naks, "
                f"{row.given_up:,} given up{lag}",
                None,
            ),
        )
    screen.line(
        f"{result.source}: {plural(result.events, 'event')}, {plural(len(result.totals), 'consumer')}"
    )
    if html is not None:
        screen.line(f"plots: {html}")
    return 0


@app.command("dlq", epilog=EPILOG)
def dlq(
    source: Place,
    events: Events = None,
    stream: Annotated[
        str | None, typer.Option("--stream", "-s", metavar="NAME", help="Only letters of this stream.")
    ] = None,
    consumer: Annotated[
        str | None, typer.Option("--consumer", metavar="NAME", help="Only of this consumer.")
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", help="Not more often than this.", min=1)] = 3,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="TEXT",
            help="Publish there, instead of on their own subjects; 'retry.{subject}' has the own one in it.",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="STREAM",
            help="The stream that takes them. Without it: their own, or the one that takes --subject.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="The server that gets them, when SRC is a directory."),
    ] = None,
    creds: Creds = None,
    dry_run: DryRun = False,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Publish again what consumers were given too often: the originals, with attempts counted in a header.

    Each has the id dlq:STREAM:SEQ:ATTEMPT, so that running this twice publishes once. No other stream than the one that
    is meant takes them: when it does not take a subject, nothing is published.
    """
    from headrace.cli.screen import Screen, print_json
    from headrace.client import Connection, Resender
    from headrace.ops.dead_letters import dead_letters
    from headrace.units import plural

    if to is not None and source.startswith(("nats://", "tls://")):
        raise BadInput("--to is for a directory as SRC: a server gets them back itself")
    server = server_of(to or source, creds)
    if server is None and not dry_run:
        raise BadInput(
            "a directory can only be looked at (--dry-run); --to names the server that gets the messages"
        )
    with (
        _opened(source, server if to is None else None, read_key(key, key_file)) as volume,
        nullcontext() if dry_run or server is None else Connection(server, "headrace-dlq") as connection,
    ):
        result = dead_letters(
            volume,
            events=events,
            stream=stream,
            consumer=consumer,
            attempts_max=attempts,
            resend=None if connection is None else Resender(connection, stream=into, subject=subject),
            subject=subject,
        )
    if as_json:
        print_json(result.to_dict())
        return 0
    screen = Screen()
    for letter in result.letters[:LISTED_MAX]:
        screen.line(
            f"  {letter.stream} {letter.seq}  {letter.consumer}: {letter.reason}, {letter.deliveries} deliveries"
        )
    for what, rows in (("no longer there", result.gone), ("tried often enough", result.spent)):
        if rows:
            screen.line(f"  {plural(len(rows), 'letter')} {what}", "yellow")
    verb = "would be published" if dry_run else "published"
    known = f", {result.duplicates:,} were published before" if result.duplicates else ""
    screen.line(
        f"{result.source}: {plural(len(result.letters), 'dead letter')}, {result.republished:,} {verb} again{known}",
        "bold",
    )
    return 0
