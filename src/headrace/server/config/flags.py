"""The flags of `headrace serve`, which are nats-server's: each is defined once, as a field of `Flags`.

Reading them, `--help` and the reference page come from these fields. Go's flags take one dash or two, and
`-name=value` as well as `-name value`; a switch takes `=false`, and here also `--no-name`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

from headrace.server.config.problems import ConfigError

_FALSE = frozenset({"false", "f", "0", "no"})
_SEE_HELP = "(see headrace serve --help)"


class Flag(NamedTuple):
    """How one flag is spelled, and what `--help` says of it."""

    field: str
    shown: tuple[str, ...]
    """Without dashes; the first is the one that errors name."""
    also: tuple[str, ...]
    """Spellings that `--help` leaves out, or has in its text."""
    kind: type[str] | type[int] | type[bool]
    metavar: str
    help: str
    least: int | None
    has_off: bool

    @property
    def name(self) -> str:
        return dashed(self.shown[0])

    def read(self, text: str) -> str | int:
        """The value; ConfigError if it is not of the kind."""
        if self.kind is str:
            return text
        try:
            number = int(text)
        except ValueError:
            raise ConfigError([f"{self.name} is {text!r}; it takes a whole number"]) from None
        if self.least is not None and number < self.least:
            raise ConfigError([f"{self.name} is {number}; the least is {self.least}"])
        return number


def dashed(name: str) -> str:
    """As a person writes it."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _flag(
    *shown: str,
    help: str,
    metavar: str = "",
    kind: type[str] | type[int] | type[bool] = str,
    also: tuple[str, ...] = (),
    least: int | None = None,
    default: bool | None = None,
) -> Any:
    has_off = kind is bool and len(shown[0]) > 1 and shown[0] not in ("version", "help")
    described = Flag("", shown, also, kind, metavar, help, least, has_off)
    return field(default=default, metadata={"flag": described})


def _switch(*shown: str, help: str, also: tuple[str, ...] = (), default: bool | None = None) -> Any:
    return _flag(*shown, help=help, kind=bool, also=also, default=default)


@dataclass(frozen=True)
class Flags:
    """What the command line said; None where it said nothing."""

    addr: str | None = _flag(
        "addr", "a", "net", also=("host",), metavar="HOST", help="Listen on this address. [0.0.0.0]"
    )
    port: int | None = _flag(
        "port", "p", kind=int, metavar="PORT", help="Port for clients; -1: any free one. [4222]"
    )
    name: str | None = _flag(
        "name", "n", "server_name", metavar="NAME", help="The server's name. Each needs its own store."
    )
    config: str | None = _flag(
        "config",
        "c",
        metavar="FILE",
        help="A configuration file of nats-server. Flags lie over what it says.",
    )
    test: bool = _switch(
        "t", default=False, help="Check the configuration, say whether it is valid, and exit."
    )
    ignore_unsupported: bool = _switch(
        "ignore-unsupported",
        also=("ignore_unsupported",),
        default=False,
        help="Skip keys and flags that Headrace has not, and list them, instead of refusing to start.",
    )
    jetstream: bool | None = _switch("jetstream", also=("js",), help="Streams (-js).")
    store_dir: str | None = _flag(
        "store_dir",
        also=("sd",),
        metavar="DIR",
        help="Where streams live (-sd). Without it: a folder in your data directory for the name or, without one, "
        "the port (headrace/NAME, headrace/port-4224).",
    )
    sync: str | None = _flag(
        "sync",
        metavar="always|DURATION",
        help="What an acknowledgement means. always: it is on disk. A duration, such as 2m: it was written, and "
        "is synced that often; a power cut may lose the rest. [always]",
    )
    http_port: int | None = _flag(
        "http_port",
        "m",
        kind=int,
        metavar="PORT",
        help="Monitoring over HTTP: /healthz /varz /connz /jsz /metrics …",
    )
    http_host: str | None = _flag(
        "http-host", also=("http_host",), metavar="HOST", help="Where monitoring listens. [127.0.0.1]"
    )
    client_advertise: str | None = _flag(
        "client_advertise", metavar="HOST:PORT", help="The address that clients get."
    )
    pid: str | None = _flag("pid", "P", metavar="FILE", help="Write the process id to this file.")
    ports_file_dir: str | None = _flag(
        "ports_file_dir", metavar="DIR", help="Write the ports in use to a file there."
    )
    signal: str | None = _flag(
        "signal",
        also=("sl",),
        metavar="WHAT[=PID]",
        help="Tell a running server (-sl): reload, reopen, ldm, quit, term or stop. PID may be a pid file.",
    )
    user: str | None = _flag("user", metavar="USER", help="The user that clients must give.")
    password: str | None = _flag(
        "pass", metavar="PASSWORD", help="And the password. Others on this machine may see it."
    )
    auth: str | None = _flag("auth", metavar="TOKEN", help="The token that clients must give.")
    tls: bool | None = _switch("tls", help="TLS; client certificates are not asked for.")
    tlscert: str | None = _flag("tlscert", metavar="FILE", help="The server's certificate.")
    tlskey: str | None = _flag("tlskey", metavar="FILE", help="And its private key.")
    tlsverify: bool | None = _switch("tlsverify", help="TLS; clients must show a certificate.")
    tlscacert: str | None = _flag("tlscacert", metavar="FILE", help="The CA of the clients' certificates.")
    log: str | None = _flag("log", "l", metavar="FILE", help="Log to this file instead of stderr.")
    log_size_limit: int | None = _flag(
        "log_size_limit", kind=int, least=0, metavar="BYTES", help="Begin a new log file at this size."
    )
    logtime: bool | None = _switch("logtime", "T", help="Times in the log. [on]")
    logtime_utc: bool | None = _switch("logtime_utc", help="Those times in UTC.")
    json_logs: bool | None = _switch(
        "json-logs", also=("json_logs",), help="The log as JSON, an object a line."
    )
    debug: bool | None = _switch("debug", "D", help="Debug lines in the log.")
    trace: bool | None = _switch("trace", "V", help="Trace the protocol in the log; -DV is both.")
    trace_system: bool | None = _switch(
        "trace-system", also=("VV",), help="Trace the system account as well (-VV, -DVV)."
    )
    max_traced_msg_len: int | None = _flag(
        "max_traced_msg_len", kind=int, least=0, metavar="BYTES", help="Cut traced messages at this length."
    )
    version: bool = _switch("version", "v", default=False, help="Print the version and exit.")
    help: bool = _switch("help", "h", default=False, help="Show this message and exit.")
    skipped: tuple[str, ...] = ()
    """What was given and is not supported, where that is to be ignored: a line each."""


_TOGETHER = {"DV": ("debug", "trace"), "DVV": ("debug", "trace_system")}
_ONE_PROCESS = "one process is the whole server"
_NO_SYSLOG = "log to a file, or to stderr"
_UNSUPPORTED_VALUES = {
    **dict.fromkeys(
        ("routes", "cluster", "cluster_name", "cluster_listen", "cluster_advertise"), _ONE_PROCESS
    ),
    **dict.fromkeys(("no_advertise", "connect_retries"), _ONE_PROCESS),
    **dict.fromkeys(("ms", "https_port"), "monitoring is plain HTTP; put a TLS proxy in front of it"),
    **dict.fromkeys(("r", "remote_syslog"), _NO_SYSLOG),
    "profile": "use py-spy on the process",
}
_UNSUPPORTED_SWITCHES = {"s": _NO_SYSLOG, "syslog": _NO_SYSLOG}


@cache
def described() -> tuple[Flag, ...]:
    """Every flag, in the order of `--help`."""
    return tuple(
        each.metadata["flag"]._replace(field=each.name) for each in fields(Flags) if "flag" in each.metadata
    )


def parse(arguments: Sequence[str]) -> Flags:
    """What the words behind `serve` say; ConfigError with one line if that is not clear."""
    by_spelling = {name: flag for flag in described() for name in (*flag.shown, *flag.also)}
    switched_off = {f"no-{flag.shown[0]}": flag.field for flag in described() if flag.has_off}
    said: dict[str, Any] = {}
    unsupported: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        flag = by_spelling.get(name)
        if not word.startswith("-") or not name:
            raise ConfigError([f"unexpected argument {word!r} {_SEE_HELP}"])
        if flag is not None and flag.kind is bool:
            said[flag.field] = not (equals and value.lower() in _FALSE)
        elif flag is not None:
            given = value if equals else next(words, None)
            if given is None:
                raise ConfigError([f"{word} needs a value"])
            said[flag.field] = flag.read(given)
        elif name in switched_off:
            said[switched_off[name]] = False
        elif name in _TOGETHER:
            said |= dict.fromkeys(_TOGETHER[name], True)
        elif reason := _UNSUPPORTED_VALUES.get(name) or _UNSUPPORTED_SWITCHES.get(name):
            unsupported.append(f"{word.partition('=')[0]} is not supported: {reason}")
            if name in _UNSUPPORTED_VALUES and not equals:
                next(words, None)
        else:
            raise ConfigError([_unknown(word.partition("=")[0], [*by_spelling, *switched_off])])
    if unsupported and not said.get("ignore_unsupported"):
        raise ConfigError(unsupported[:1])
    return Flags(**said, skipped=tuple(unsupported))


def _unknown(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = " or ".join(dashed(name) for name in get_close_matches(word.lstrip("-"), known))
    return f"no such option: {word}{f', did you mean {near}?' if near else ''} {_SEE_HELP}"
