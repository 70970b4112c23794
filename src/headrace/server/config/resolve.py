"""What the server runs with: the configuration file, and what the command line says over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from headrace.errors import BadInput
from headrace.server.config.flags import Flags
from headrace.server.config.load import contradictions, load_file
from headrace.server.config.options import PORT_DEFAULT, JetStreamOptions, ServerOptions, TlsOptions
from headrace.server.config.problems import ConfigError
from headrace.units import parse_duration_ns


def resolve(flags: Flags, environment: Mapping[str, str] = os.environ) -> ServerOptions:
    """The configuration file, if one is named, with the flags over it; checked as a whole.

    Streams are what this server is for: without a file JetStream is on. A file says it itself, as nats-server's does.
    """
    if flags.config is None:
        options = ServerOptions(jetstream=JetStreamOptions(enabled=True))
    else:
        options = load_file(
            flags.config, ignore_unsupported=flags.ignore_unsupported, environment=environment
        )
    options = apply(flags, options)
    if wrong := contradictions(options):
        raise ConfigError([f"{flags.config or 'command line'}: {text}" for text in wrong])
    return options


def apply(flags: Flags, options: ServerOptions) -> ServerOptions:
    """The flags over what the file said."""
    for name, port in (("--port", flags.port), ("--http_port", flags.http_port)):
        if port is not None and not -1 <= port <= 65_535:
            raise ConfigError([f"{name} is {port}; a port is 1 to 65535, or -1 for any free one"])
    return replace(
        options,
        **_said(
            host=flags.addr,
            port=None if flags.port is None else flags.port or PORT_DEFAULT,
            server_name=flags.name,
            client_advertise=flags.client_advertise,
            pid_file=flags.pid,
            ports_file_dir=flags.ports_file_dir,
        ),
        monitor=replace(options.monitor, **_said(port=flags.http_port or None, host=flags.http_host)),
        auth=replace(options.auth, **_said(user=flags.user, password=flags.password, token=flags.auth)),
        jetstream=replace(
            options.jetstream,
            **_said(enabled=flags.jetstream, store_dir=flags.store_dir),
            **_sync(flags.sync),
        ),
        tls=_tls(flags, options.tls),
        log=replace(
            options.log,
            **_said(
                file=flags.log,
                size_limit=flags.log_size_limit,
                time=flags.logtime,
                utc=flags.logtime_utc,
                debug=flags.debug,
                trace=True if flags.trace_system else flags.trace,
                trace_system=flags.trace_system,
                max_traced_msg_len=flags.max_traced_msg_len,
                json=flags.json_logs,
            ),
        ),
        skipped=options.skipped + flags.skipped,
    )


def _said(**given: str | int | bool | None) -> dict[str, str | int | bool]:
    return {name: value for name, value in given.items() if value is not None}


def _sync(text: str | None) -> dict[str, str | int]:
    if text is None:
        return {}
    if text.lower() == "always":
        return {"sync": "sync"}
    try:
        return {"sync": "interval", "sync_interval_ns": max(parse_duration_ns(text), 1)}
    except BadInput:
        raise ConfigError([f"--sync is {text!r}; write always, or a duration such as 2m or 500ms"]) from None


def _tls(flags: Flags, given: TlsOptions | None) -> TlsOptions | None:
    if not any((flags.tls, flags.tlsverify, flags.tlscert, flags.tlskey, flags.tlscacert)):
        return None if flags.tls is False else given
    base = given or TlsOptions("", "")
    tls = replace(
        base,
        **_said(
            cert_file=flags.tlscert, key_file=flags.tlskey, ca_file=flags.tlscacert, verify=flags.tlsverify
        ),
    )
    if not tls.cert_file or not tls.key_file:
        raise ConfigError(["TLS needs a certificate and its key: --tlscert FILE --tlskey FILE"])
    return tls
