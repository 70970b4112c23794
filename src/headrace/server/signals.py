"""`--signal reload=PID`: make a running server do something, as `nats-server --signal` does.

reload  read the configuration again (users, limits, TLS)      HUP
reopen  open the log file again, after it was moved            USR1
ldm     lame duck: send clients away slowly, then stop         USR2
quit    stop cleanly, at once                                  INT
term    stop after a lame duck                                 TERM
stop    the same as quit: nothing is won by a harder way       INT
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from headrace.errors import BadInput, NotFound

SIGNALS = {
    "reload": signal.SIGHUP,
    "reopen": signal.SIGUSR1,
    "ldm": signal.SIGUSR2,
    "quit": signal.SIGINT,
    "stop": signal.SIGINT,
    "term": signal.SIGTERM,
}
_PID_BYTES_MAX = 32


def send(text: str, pid_file: str | None = None) -> int:
    """`reload=4711`, `reload=server.pid`, or `reload` with the configuration's pid file. Returns the PID."""
    command, _, target = text.partition("=")
    if command not in SIGNALS:
        raise BadInput(f"--signal {text!r}: there are {', '.join(SIGNALS)}")
    target = target or pid_file or ""
    if not target:
        raise BadInput(f"--signal {command}: say to which server: {command}=PID or {command}=PIDFILE")
    pid = int(target) if target.isdecimal() else read_pid(target)
    try:
        os.kill(pid, SIGNALS[command])
    except ProcessLookupError:
        raise NotFound(f"--signal {command}: there is no process {pid}") from None
    except PermissionError:
        raise BadInput(f"--signal {command}: process {pid} belongs to somebody else") from None
    return pid


def read_pid(path: str) -> int:
    """The number in a pid file."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_PID_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotFound(f"cannot read the pid file {path}: {error.strerror}") from error
    if not text.isdecimal() or int(text) <= 1:
        raise BadInput(f"{path} holds {text!r}, not the PID of a server")
    return int(text)
