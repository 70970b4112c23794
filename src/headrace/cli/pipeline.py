"""`headrace pipeline`: archive, replay, verify, convert, health, dlq, init. Thin over `ops` and `spark.pipelines`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, Stream, read_key
from headrace.errors import BadInput, NotFound
from headrace.units import format_size, parse_size

if TYPE_CHECKING:
    from headrace.cli.screen import Screen
    from headrace.client import Access
    from headrace.layouts.base import Volume
    from headrace.ops.archive import ArchiveResult, Released
    from headrace.ops.engines import WorkEngine

EPILOG = (
    "Exit codes: 0 fine and sound, 1 damaged or not read as a whole, 2 could not be done, 130 interrupted."
)
LISTED_MAX = 40

app = typer.Typer(
    help="Archive, replay, check and convert whole stores in parallel, with Spark or without.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EngineName = Annotated[
    str, typer.Option("--engine", help="spark, or local: threads of this process, no Java needed.")
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark's master (local[*]); with spark-submit the one given there."
    ),
]
Creds = Annotated[
    str | None,
    typer.Option("--creds", metavar="FILE", help="Credentials for a server: a .creds file of NATS."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")]
Logs = Annotated[
    list[str] | None,
    typer.Option(
        "--log", "-s", metavar="NAME", help="Only these logs; patterns such as 'orders-*'. May be repeated."
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="A store of any layout, or a server: nats://host:4222. Only read.",
        show_default=False,
    ),
]


@contextmanager
def engine_of(name: str, master: str | None, server: Access | None = None) -> Generator[WorkEngine]:
    """The engine that is asked for; a Spark session made for it is stopped."""
    if name == "local":
        from headrace.ops.engines import Threads

        if master is not None:
            raise BadInput("--master is Spark's; --engine local has none")
        # A process has one connection to a server, and one thread at a time may use it.
        yield Threads(1 if server is not None else None)
    elif name == "spark":
        try:
            from headrace.spark.pipelines import engine
        except ImportError as problem:
            raise BadInput(
                f"Spark is not installed ({problem}): pip install 'headrace[spark]', or take --engine local"
            ) from None
        with engine(master=master) as made:
            yield made
    else:
        raise BadInput(f"--engine {name!r}; known are: spark, local")


def server_of(text: str, creds: str | None) -> Access | None:
    """The server that a source or target names; None for a directory."""
    if not text.startswith(("nats://", "tls://")):
        if creds is not None:
            raise BadInput("--creds is for a server: nats://host:4222")
        return None
    from headrace.client import read_access

    return read_access(text).with_secrets(creds=creds)


def check_source(text: str) -> None:
    """NotFound before an engine is started for nothing."""
    from headrace.layouts.places import check_path, is_remote

    if not is_remote(text) and not Path(check_path(text)).exists():
        raise NotFound(f"{text}: no such directory")


def volume_of(server: Access) -> Volume:
    """A server's streams."""
    from headrace.client import ServerVolume

    return ServerVolume(server)


def releaser(server: Access) -> Released:
    """Lets the stream go of what is committed."""
    from headrace.client import release

    def released(log: str, first: int, following: int) -> None:
        release(server, log, following)

    return released


@app.command("archive", epilog=EPILOG)
def archive(
    source: Source,
    target: Annotated[
        str,
        typer.Argument(
            metavar="DEST", help="The archive's directory; made when it is not there.", show_default=False
        ),
    ],
    logs: Logs = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="Divide into directories: date, hour, or a pattern of subjects with names, 'orders.{region}.>'. May be repeated.",
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="parquet, delta or iceberg.")] = "parquet",
    compression: Annotated[
        str,
        typer.Option(
            "--compression",
            help="auto, zstd, snappy or none. auto: zstd, and snappy for data that it would not shrink.",
        ),
    ] = "auto",
    file_size: Annotated[
        str,
        typer.Option("--file-size", metavar="SIZE", help="About how much of the store goes into one file."),
    ] = "64MiB",
    release: Annotated[
        bool,
        typer.Option(
            "--release",
            help="With a server as SRC: remove from the stream what is committed, as far as every consumer has acknowledged it.",
        ),
    ] = False,
    newest: Annotated[
        bool, typer.Option("--newest", help="Also the newest block of each log, which may still grow.")
    ] = False,
    until: Annotated[
        int | None, typer.Option("--until", metavar="SEQ", help="Not beyond this sequence (included).", min=0)
    ] = None,
    lost_ok: Annotated[
        bool, typer.Option("--lost-ok", help="Go on when retention took messages before they were archived.")
    ] = False,
    creds: Creds = None,
    engine: EngineName = "spark",
    master: Master = None,
    dry_run: DryRun = False,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Add what is new of a store to an archive of Parquet files (or a Delta or Iceberg table).

    Interrupted or killed, the same command goes on after its last commit. Run twice, the second run adds nothing.
    """
    from headrace.cli.pipeline_line import line
    from headrace.cli.screen import Screen, print_json
    from headrace.ops.archive import ArchiveOptions
    from headrace.ops.archive import archive as run

    options = ArchiveOptions(
        logs=tuple(logs or ()),
        by=tuple(by or ()),
        compression=compression,
        target_bytes=parse_size(file_size),
        newest=newest,
        until_seq=until,
        lost_ok=lost_ok,
        format=form,
        key=read_key(key, key_file),
    )
    options.check()
    server = server_of(source, creds)
    if server is None:
        check_source(source)
    if release and server is None:
        raise BadInput("--release is for a server as SRC: nats://host:4222")
    if server is not None:
        # Everything that a server shows is durable; it has no newest block.
        options = replace(options, newest=True)
    with (
        engine_of("local" if dry_run else engine, None if dry_run else master, server) as made,
        line("archive") as report_progress,
    ):
        result = run(
            source if server is None else server.place,
            target,
            options,
            engine=made,
            volume=None if server is None else volume_of(server),
            dry_run=dry_run,
            progress=report_progress,
            released=releaser(server) if release and server is not None else None,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        _show_archive(Screen(), result)
    return 1 if result.left_out else 0


@app.command("archive-slice", epilog=EPILOG)
def archive_slice(
    target: Annotated[
        str, typer.Argument(metavar="DEST", help="The archive's directory.", show_default=False)
    ],
    channel: Annotated[
        str, typer.Argument(metavar="CHANNEL", help="As the server calls it.", show_default=False)
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help="msgs.N.dat.bak", show_default=False)],
    index: Annotated[str, typer.Argument(metavar="INDEX", help="msgs.N.idx.bak", show_default=False)],
    by: Annotated[list[str] | None, typer.Option("--by", metavar="WHAT", help="As of archive.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave both files where they are.")] = False,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Archive one slice that a NATS Streaming server gave up; then remove its two files.

    For file_slice_archive_script: a script of one line, exec headrace pipeline archive-slice /lake/stan "$@"
    """
    from headrace.cli.screen import Screen, print_json
    from headrace.ops.archive import ArchiveOptions
    from headrace.ops.archive_slice import archive_slice as run

    options = ArchiveOptions(by=tuple(by or ()), key=read_key(key, key_file))
    result = run(target, channel, data, index, options, keep=keep)
    if as_json:
        print_json(result.to_dict())
    else:
        _show_archive(Screen(), result)
    return 0


def _show_archive(screen: Screen, result: ArchiveResult) -> None:
    from headrace.units import plural

    for log, first, following, size in result.groups[:LISTED_MAX]:
        screen.line(f"  {log}  {first}..{following - 1}  {format_size(size)}")
    if len(result.groups) > LISTED_MAX:
        screen.line(f"  and {len(result.groups) - LISTED_MAX:,} more", "dim")
    for each in result.logs:
        for a, b in each.lost:
            screen.line(f"  {each.name}: {a}..{b - 1} were gone before they were archived", "bold red")
        if each.left:
            screen.line(
                f"  {each.name}: {plural(each.left, 'sequence')} of the newest block left for later (--newest takes them)",
                "dim",
            )
    screen.unread(result.unread)
    if result.dry_run:
        screen.line(
            f"{result.target}: would write {plural(result.blocks, 'group')} of blocks (--dry-run)", "bold"
        )
        return
    rate = f", {result.rows / result.seconds:,.0f} a second" if result.rows and result.seconds > 0.1 else ""
    screen.parts(
        (f"{result.target}: ", None),
        (f"{plural(result.rows, 'message')} added in {plural(result.files, 'file')}", "bold green"),
        (
            f", {result.rows_all:,} in all; {format_size(result.bytes_read)} read, {format_size(result.bytes_written)} written "
            f"({result.seconds:.1f} s{rate})",
            None,
        ),
    )


@app.command("verify", epilog=EPILOG)
def verify(
    directory: Directory,
    stream: Stream = None,
    engine: EngineName = "spark",
    master: Master = None,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Check every byte of a store, its blocks in parallel. Changes nothing.

    The answer and the exit codes are those of headrace verify; --json has one entry for each block.
    """
    from headrace.cli.pipeline_line import line
    from headrace.cli.verify import show_report
    from headrace.ops.parallel import verify as run

    check_source(directory)
    with engine_of(engine, master) as made, line("verify") as report_progress:
        report = run(
            directory, stream=stream, key=read_key(key, key_file), engine=made, progress=report_progress
        )
    return show_report(report, as_json)
