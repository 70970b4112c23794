"""nats-server's command line: its spelling made plain, and what it says laid over the configuration file.

Go's flags take one dash or two and `-name=value` as well as `-name value`; `spell_out` turns all of that into the
long form that the command line of `headrace` knows. `Flags` is what came out, None for what was not said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.errors import BadInput
from headrace.server.config.load import contradictions, load_file
from headrace.server.config.options import PORT_DEFAULT, JetStreamOptions, Options, TlsOptions
from headrace.server.config.problems import ConfigError
from headrace.units import parse_duration_ns

# Other spellings → the long form without dashes.
TAKES_VALUE = {
    **dict.fromkeys(("a", "addr", "net", "host"), "addr"),
    **dict.fromkeys(("p", "port"), "port"),
    **dict.fromkeys(("n", "name", "server_name"), "name"),
    **dict.fromkeys(("c", "config"), "config"),
    **dict.fromkeys(("m", "http_port"), "http_port"),
    **dict.fromkeys(("http-host", "http_host"), "http-host"),
    **dict.fromkeys(("P", "pid"), "pid"),
    **dict.fromkeys(("sl", "signal"), "signal"),
    **dict.fromkeys(("l", "log"), "log"),
    **dict.fromkeys(("sd", "store_dir"), "store_dir"),
    **{name: name for name in ("client_advertise", "ports_file_dir", "log_size_limit", "max_traced_msg_len")},
    **{name: name for name in ("user", "pass", "auth", "tlscert", "tlskey", "tlscacert", "sync")},
}
SWITCHES = {
    **dict.fromkeys(("js", "jetstream"), "jetstream"),
    **dict.fromkeys(("D", "debug"), "debug"),
    **dict.fromkeys(("V", "trace"), "trace"),
    **dict.fromkeys(("VV", "trace-system"), "trace-system"),
    **dict.fromkeys(("T", "logtime"), "logtime"),
    **{name: name for name in ("logtime_utc", "tls", "tlsverify")},
    **dict.fromkeys(("json-logs", "json_logs"), "json-logs"),
    **dict.fromkeys(("ignore-unsupported", "ignore_unsupported"), "ignore-unsupported"),
}
ACTIONS = {"t": "-t", "v": "--version", "version": "--version", "h": "--help", "help": "--help"}
TOGETHER = {"DV": ("--debug", "--trace"), "DVV": ("--debug", "--trace-system")}
_ONE_PROCESS = "one process is the whole server"
UNSUPPORTED_VALUES = {
    **dict.fromkeys(
        ("routes", "cluster", "cluster_name", "cluster_listen", "cluster_advertise"), _ONE_PROCESS
    ),
    **dict.fromkeys(("no_advertise", "connect_retries"), _ONE_PROCESS),
    **dict.fromkeys(("ms", "https_port"), "monitoring is plain HTTP; put a TLS proxy in front of it"),
    **dict.fromkeys(("r", "remote_syslog"), "log to a file, or to stderr"),
    "profile": "use py-spy on the process",
}
UNSUPPORTED_SWITCHES = {"s": "log to a file, or to stderr", "syslog": "log to a file, or to stderr"}
_FALSE = {"false", "f", "0", "no"}


def spell_out(arguments: Sequence[str]) -> list[str]:
    """`-js -sd=/x -DV` → `--jetstream --store_dir=/x --debug --trace`. What is not known stays for the command line."""
    left, out = list(arguments), list[str]()
    ignore = any(word.lstrip("-").replace("_", "-") == "ignore-unsupported" for word in arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*out, word, *left]
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            out.append(word)
        elif name in TAKES_VALUE:
            if not equals and not left:
                raise ConfigError([f"{word} needs a value"])
            out.append(f"--{TAKES_VALUE[name]}={value if equals else left.pop(0)}")
        elif name in SWITCHES:
            out.append(
                f"--no-{SWITCHES[name]}" if value.lower() in _FALSE and equals else f"--{SWITCHES[name]}"
            )
        elif name in TOGETHER:
            out += TOGETHER[name]
        elif name in ACTIONS:
            out.append(ACTIONS[name])
        elif reason := UNSUPPORTED_VALUES.get(name) or UNSUPPORTED_SWITCHES.get(name):
            if not ignore:
                raise ConfigError([f"{word.partition('=')[0]} is not supported: {reason}"])
            if name in UNSUPPORTED_VALUES and not equals and left:
                left.pop(0)
            out.append(f"--skipped={word.partition('=')[0]} is not supported: {reason}")
        else:  # unknown here; in the long form, so that it is not read as a row of letters
            out.append(word if word.startswith("--") or len(name) == 1 else f"-{word}")
    return out


@dataclass(frozen=True)
class Flags:
    """What the command line said; None where it said nothing."""

    config: str | None = None
    addr: str | None = None
    port: int | None = None
    name: str | None = None
    client_advertise: str | None = None
    http_port: int | None = None
    http_host: str | None = None
    pid: str | None = None
    ports_file_dir: str | None = None
    user: str | None = None
    password: str | None = None
    auth: str | None = None
    jetstream: bool | None = None
    store_dir: str | None = None
    sync: str | None = None
    tls: bool | None = None
    tlscert: str | None = None
    tlskey: str | None = None
    tlsverify: bool | None = None
    tlscacert: str | None = None
    debug: bool | None = None
    trace: bool | None = None
    trace_system: bool | None = None
    log: str | None = None
    log_size_limit: int | None = None
    logtime: bool | None = None
    logtime_utc: bool | None = None
    max_traced_msg_len: int | None = None
    json_logs: bool | None = None
    ignore_unsupported: bool = False
    skipped: tuple[str, ...] = ()


def resolve(flags: Flags, environment: Mapping[str, str] = os.environ) -> Options:
    """The configuration file, if one is named, with the flags over it; checked as a whole.

    Streams are what this server is for: without a file JetStream is on. A file says it itself, as nats-server's does.
    """
    if flags.config is None:
        options = Options(jetstream=JetStreamOptions(enabled=True))
    else:
        options = load_file(
            flags.config, ignore_unsupported=flags.ignore_unsupported, environment=environment
        )
    options = apply(flags, options)
    if wrong := contradictions(options):
        raise ConfigError([f"{flags.config or 'command line'}: {text}" for text in wrong])
    return options


def apply(flags: Flags, options: Options) -> Options:
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
