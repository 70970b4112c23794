"""`headrace serve`: the server, with nats-server's own flags. `server.config.flags` defines and reads them.

Typer shows them (`--help`, completion, the reference page) and does not read them: it would make every command with
every parameter before a server starts, which takes longer than all else that a start does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.server.config.flags import Flag, Flags, dashed, described
from headrace.server.config.problems import ConfigError

if TYPE_CHECKING:
    from headrace.server.config.options import ServerOptions


def command(**said: Any) -> int:
    """Serve streams to NATS clients: one process, one directory. An acknowledgement means: on disk.

    Takes nats-server's flags in all their spellings (-js, -sd=DIR, --http_port 8222 …) and its configuration file.
    Stop it with Ctrl-C. Exit code 0: stopped as asked. 2: could not start.
    """
    return serve(Flags(**said))


def _parameter(flag: Flag) -> inspect.Parameter:
    """A flag as Typer describes one."""
    first, *others = map(dashed, flag.shown)
    if flag.has_off:
        first = f"{first}/--no-{flag.shown[0]}"
    shown = typer.Option(
        first, *others, metavar=flag.metavar or None, help=flag.help, min=flag.least, show_default=False
    )
    annotation = Annotated[flag.kind | None, shown]
    return inspect.Parameter(flag.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


# Typer has --help of its own.
command.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
    [_parameter(flag) for flag in described() if flag.field != "help"], return_annotation=int
)


def serve(flags: Flags) -> int:
    """Run the server as the flags say; returns the exit code."""
    if flags.version:
        import headrace

        print(f"headrace {headrace.__version__}")
        return 0
    from headrace.server.config.resolve import resolve

    def reread() -> ServerOptions:
        return resolve(flags)

    try:
        options = reread()
        if flags.signal is not None:
            return _send(flags.signal, options)
        if flags.test:
            return _check(options)
        return _run(options, reread)
    except ConfigError as error:
        for problem in error.problems:
            print(f"headrace: {problem}", file=sys.stderr)
        return 2


def _send(text: str, options: ServerOptions) -> int:
    from headrace.server.signals import send

    send(text, options.pid_file)
    return 0


def _check(options: ServerOptions) -> int:
    """`-t`: also the certificates and the users are made, as a start would do."""
    from headrace.server.auth.users import Authenticator
    from headrace.server.tls import make_context

    Authenticator(options)
    for tls in (options.tls, options.websocket.tls if options.websocket else None):
        if tls is not None:
            make_context(tls)
    for line in options.skipped:
        print(f"headrace: skipped {line}", file=sys.stderr)
    for line in options.warnings:
        print(f"headrace: warning: {line}", file=sys.stderr)
    if options.config_file is None:
        print("headrace: the flags are valid")
    else:
        digest = f" ({options.config_digest})" if options.config_digest else ""
        print(f"headrace: configuration file {options.config_file} is valid{digest}")
    return 0


def _run(options: ServerOptions, reread: Callable[[], ServerOptions]) -> int:
    from headrace.server.logs import LogOutput
    from headrace.server.run import serve as run

    log = LogOutput(options.log)
    try:
        for line in options.skipped:
            log.warning(f"Skipped {line}")
        for line in options.warnings:
            log.warning(line)
        return run(options, log, reread=reread)
    finally:
        log.close()
