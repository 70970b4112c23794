"""Directories that somebody else wrote: which era, whether a server has them open, what writing will change."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import StoreLocked
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.paths import INDEX, MSGS, SIDE, files_with
from headrace.layouts.processes import has_open
from headrace.layouts.shortcuts import is_there

_CONFIG_BYTES_MAX = 1 << 20


def era_of(disk: Disk, stream_dir: str) -> str:
    """The oldest server line that writes such files: "2.6", "2.9" or "2.15" (2.10 and later)."""
    msgs = f"{stream_dir}/{MSGS}"
    if is_there(disk, f"{msgs}/{INDEX}"):
        return "2.15"
    if files_with(disk, msgs, ".fss"):
        return "2.9"
    return "2.6" if files_with(disk, msgs, ".idx") else "2.15"


def is_ours(disk: Disk, stream_dir: str) -> bool:
    """Whether Headrace has written to the stream before."""
    return disk.entry(f"{stream_dir}/{SIDE}") is not None


def takeover_notices(disk: Disk, streams: dict[str, str]) -> list[str]:
    """One line per era of streams that Headrace has not written to yet: what changes, who can still open it."""
    eras: dict[str, list[str]] = {}
    for name, directory in streams.items():
        if not is_ours(disk, directory):
            eras.setdefault(era_of(disk, directory), []).append(name)
    lines: list[str] = []
    for era, names in sorted(eras.items()):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        if era == "2.15":
            lines.append(
                f"first write to {shown}: files of nats-server 2.10 or later. A folder headrace/ is added beside the "
                "messages; nats-server 2.10 and later can still open the directory."
            )
        else:
            lines.append(
                f"first write to {shown}: files of nats-server {era}. They are upgraded: .idx and .fss files go, "
                "tombstones and index.db come. nats-server 2.10 and later can open the directory afterwards, "
                "2.9.21 and older can not (write a portable copy for those)."
            )
    return lines


def refuse_if_served(root: str) -> None:
    """Raise StoreLocked when a running nats-server has files under `root` open or was started on it."""
    real = Path(root).resolve()
    for pid in _processes():
        if pid == os.getpid() or _text(pid, "comm").strip() != "nats-server":
            continue
        if has_open(pid, real) or _started_on(pid, {real, real.parent}):
            raise StoreLocked(
                f"{root}: a nats-server (process {pid}) has this directory open; stop it first (kill -TERM {pid}), "
                "or open for reading only"
            )


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:
        return []


def _text(pid: int, name: str) -> str:
    return _text_of(Path(f"/proc/{pid}/{name}"))


def _started_on(pid: int, directories: set[Path]) -> bool:
    """A server closes idle block files; its command line, or the configuration it names, still shows it."""
    try:
        cwd = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False
    for word in _text(pid, "cmdline").split("\0")[1:]:
        value = word.rpartition("=")[2]
        if value and ((cwd / value).resolve() in directories or _names_one(cwd / value, directories)):
            return True
    return False


def _names_one(config: Path, directories: set[Path]) -> bool:
    """Whether a configuration file mentions one of the directories."""
    try:
        if not config.is_file() or config.stat().st_size > _CONFIG_BYTES_MAX:
            return False
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(str(directory) in text for directory in directories)


def file_system_notice(path: str) -> str | None:
    """A warning when the directory lies where a sync does not mean what we promise."""
    real, best, kind = Path(path).resolve(), Path("/"), ""
    for line in _text_of(Path("/proc/mounts")).splitlines():
        _, point, found, *_ = [*line.split(" "), "", "", ""]
        if real.is_relative_to(point) and len(point) >= len(str(best)):
            best, kind = Path(point), found
    reasons = {
        "tmpfs": "it is memory: everything is gone with the machine's power",
        "ramfs": "it is memory: everything is gone with the machine's power",
        "overlay": "a container's layer: everything is gone with the container",
        "nfs": "what a sync means is up to the file server",
        "nfs4": "what a sync means is up to the file server",
    }
    return f"{path} lies on {kind}: {reasons[kind]}" if kind in reasons else None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
