"""Whether a running nats-streaming-server has a directory: it takes no lock, so its open files and command line show it."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import StoreLocked
from headrace.layouts.processes import has_open

PROGRAM = "nats-streaming-server"


def server_on(root: str) -> int | None:
    """The process id of a server that has files under `root` open or was started on it."""
    real = Path(root).resolve()
    try:
        processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    for pid in processes:
        if pid != os.getpid() and _is_server(pid) and (has_open(pid, real) or _started_on(pid, real)):
            return pid
    return None


def refuse_if_served(root: str) -> None:
    """StoreLocked when a server runs on the directory."""
    pid = server_on(root)
    if pid is not None:
        raise StoreLocked(
            f"{root}: a {PROGRAM} (process {pid}) has this directory open; stop it first (kill -TERM {pid}), "
            "or open for reading only"
        )


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_server(pid: int) -> bool:
    # The kernel keeps 15 characters of the name.
    return _text(pid, "comm").strip() == PROGRAM[:15]


def _started_on(pid: int, real: Path) -> bool:
    try:
        cwd = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False
    words = _text(pid, "cmdline").split("\0")[1:]
    return any((cwd / value).resolve() == real for word in words if (value := word.rpartition("=")[2]))
