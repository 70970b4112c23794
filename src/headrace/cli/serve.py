"""`headrace serve`: the server, with nats-server's own flags. They are spelled out in `server.config.flags`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.server.config.options import Options


def _version(wanted: bool) -> None:
    if wanted:
        import headrace

        print(f"headrace {headrace.__version__}")
        raise typer.Exit


def serve(
    addr: Annotated[
        str | None,
        typer.Option("--addr", "-a", "--net", metavar="HOST", help="Listen on this address. [0.0.0.0]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", metavar="PORT", help="Port for clients; -1: any free one. [4222]"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            "-n",
            "--server_name",
            metavar="NAME",
            help="The server's name. Each needs its own store.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="A configuration file of nats-server. Flags lie over what it says.",
        ),
    ] = None,
    test: Annotated[
        bool, typer.Option("-t", help="Check the configuration, say whether it is valid, and exit.")
    ] = False,
    ignore_unsupported: Annotated[
        bool,
        typer.Option(
            "--ignore-unsupported/--no-ignore-unsupported",
            help="Skip keys and flags that Headrace has not, and list them, instead of refusing to start.",
        ),
    ] = False,
    jetstream: Annotated[
        bool | None, typer.Option("--jetstream/--no-jetstream", help="Streams (-js).", show_default=False)
    ] = None,
    store_dir: Annotated[
        str | None,
        typer.Option(
            "--store_dir",
            metavar="DIR",
            help="Where streams live (-sd). Without it: a folder in your data directory for the name or, without one, the port (headrace/NAME, headrace/port-4224).",
        ),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            "--sync",
            metavar="always|DURATION",
            help="What an acknowledgement means. always: it is on disk. A duration, such as 2m: it was written, and "
            "is synced that often; a power cut may lose the rest. [always]",
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http_port",
            "-m",
            metavar="PORT",
            help="Monitoring over HTTP: /healthz /varz /connz /jsz /metrics …",
        ),
    ] = None,
    http_host: Annotated[
        str | None, typer.Option("--http-host", metavar="HOST", help="Where monitoring listens. [127.0.0.1]")
    ] = None,
    client_advertise: Annotated[
        str | None,
        typer.Option("--client_advertise", metavar="HOST:PORT", help="The address that clients are told."),
    ] = None,
    pid: Annotated[
        str | None, typer.Option("--pid", "-P", metavar="FILE", help="Write the process id to this file.")
    ] = None,
    ports_file_dir: Annotated[
        str | None,
        typer.Option("--ports_file_dir", metavar="DIR", help="Write the ports in use to a file there."),
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            "--signal",
            metavar="WHAT[=PID]",
            help="Tell a running server (-sl): reload, reopen, ldm, quit, term or stop. PID may be a pid file.",
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="The user that clients must give.")
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            "--pass", metavar="PASSWORD", help="And the password. Others on this machine may see it."
        ),
    ] = None,
    auth: Annotated[
        str | None, typer.Option("--auth", metavar="TOKEN", help="The token that clients must give.")
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls", help="TLS; client certificates are not asked for.", show_default=False
        ),
    ] = None,
    tlscert: Annotated[
        str | None, typer.Option("--tlscert", metavar="FILE", help="The server's certificate.")
    ] = None,
    tlskey: Annotated[
        str | None, typer.Option("--tlskey", metavar="FILE", help="And its private key.")
    ] = None,
    tlsverify: Annotated[
        bool | None,
        typer.Option(
            "--tlsverify/--no-tlsverify", help="TLS; clients must show a certificate.", show_default=False
        ),
    ] = None,
    tlscacert: Annotated[
        str | None, typer.Option("--tlscacert", metavar="FILE", help="The CA of the clients' certificates.")
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", "-l", metavar="FILE", help="Log to this file instead of stderr.")
    ] = None,
    log_size_limit: Annotated[
        int | None,
        typer.Option("--log_size_limit", metavar="BYTES", min=0, help="Begin a new log file at this size."),
    ] = None,
    logtime: Annotated[
        bool | None,
        typer.Option("--logtime/--no-logtime", "-T", help="Times in the log. [on]", show_default=False),
    ] = None,
    logtime_utc: Annotated[
        bool | None,
        typer.Option("--logtime_utc/--no-logtime_utc", help="Those times in UTC.", show_default=False),
    ] = None,
    json_logs: Annotated[
        bool | None,
        typer.Option(
            "--json-logs/--no-json-logs", help="The log as JSON, an object a line.", show_default=False
        ),
    ] = None,
    debug: Annotated[
        bool | None,
        typer.Option("--debug/--no-debug", "-D", help="Debug lines in the log.", show_default=False),
    ] = None,
    trace: Annotated[
        bool | None,
        typer.Option(
            "--trace/--no-trace", "-V", help="Trace the protocol in the log; -DV is both.", show_default=False
        ),
    ] = None,
    trace_system: Annotated[
        bool | None,
        typer.Option(
            "--trace-system/--no-trace-system",
            help="Trace the system account as well (-VV, -DVV).",
            show_default=False,
        ),
    ] = None,
    max_traced_msg_len: Annotated[
        int | None,
        typer.Option(
            "--max_traced_msg_len", metavar="BYTES", min=0, help="Cut traced messages at this length."
        ),
    ] = None,
    skipped: Annotated[list[str] | None, typer.Option("--skipped", hidden=True)] = None,
    version: Annotated[
        bool,
        typer.Option("--version", "-v", help="Print the version and exit.", is_eager=True, callback=_version),
    ] = False,
) -> int:
    """Serve streams to NATS clients: one process, one directory. An acknowledgement means: on disk.

    Takes nats-server's flags in all their spellings (-js, -sd=DIR, --http_port 8222 …) and its configuration file.
    Stop it with Ctrl-C. Exit code 0: stopped as asked. 2: could not start.
    """
    from headrace.server.config.flags import Flags, resolve
    from headrace.server.config.problems import ConfigError

    flags = Flags(
        config=config,
        addr=addr,
        port=port,
        name=name,
        client_advertise=client_advertise,
        http_port=http_port,
        http_host=http_host,
        pid=pid,
        ports_file_dir=ports_file_dir,
        user=user,
        password=password,
        auth=auth,
        jetstream=jetstream,
        store_dir=store_dir,
        sync=sync,
        tls=tls,
        tlscert=tlscert,
        tlskey=tlskey,
        tlsverify=tlsverify,
        tlscacert=tlscacert,
        debug=debug,
        trace=trace,
        trace_system=trace_system,
        log=log,
        log_size_limit=log_size_limit,
        logtime=logtime,
        logtime_utc=logtime_utc,
        max_traced_msg_len=max_traced_msg_len,
        json_logs=json_logs,
        ignore_unsupported=ignore_unsupported,
        skipped=tuple(skipped or ()),
    )

    def reread() -> Options:
        return resolve(flags)

    try:
        options = reread()
        if signal is not None:
            return _send(signal, options)
        if test:
            return _check(options)
        return _run(options, reread)
    except ConfigError as error:
        for problem in error.problems:
            print(f"headrace: {problem}", file=sys.stderr)
        return 2


def _send(text: str, options: Options) -> int:
    from headrace.server.signals import send

    send(text, options.pid_file)
    return 0


def _check(options: Options) -> int:
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


def _run(options: Options, reread: Callable[[], Options]) -> int:
    from headrace.server.logs import ServerLog
    from headrace.server.run import serve as run

    log = ServerLog(options.log)
    try:
        for line in options.skipped:
            log.warning(f"Skipped {line}")
        for line in options.warnings:
            log.warning(line)
        return run(options, log, reread=reread)
    finally:
        log.close()
