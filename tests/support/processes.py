"""Processes as /proc tells them: whose children they are, what they run."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def parents() -> dict[int, int]:
    """Of every process, its parent."""
    found: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    return found


def children(pid: int) -> list[int]:
    """Everything below a process."""
    known = parents()
    found, at = [pid], 0
    while at < len(found):
        found += [each for each, parent in known.items() if parent == found[at]]
        at += 1
    return found[1:]


def command(pid: int) -> str:
    """What it was started with; empty when it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def python_workers(pid: int) -> list[int]:
    """Python workers of Spark tasks below a process: forks of a daemon, not the daemon itself."""
    known = parents()
    return [
        each
        for each in children(pid)
        if "pyspark.daemon" in command(each) and "pyspark.daemon" in command(known.get(each, 0))
    ]
