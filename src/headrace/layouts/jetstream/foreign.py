"""Directories that somebody else wrote: which era, whether a server has them open, what writing will change."""

from __future__ import annotations

import os

from headrace.errors import StoreLocked
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.paths import INDEX, MSGS, SIDE, files_with

_CONFIG_BYTES_MAX = 1 << 20


def era_of(disk: Disk, stream_dir: str) -> str:
    """The oldest server line that writes such files: "2.6", "2.9" or "2.15" (2.10 and later)."""
    msgs = f"{stream_dir}/{MSGS}"
    if disk.entry(f"{msgs}/{INDEX}") is not None:
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
    real = os.path.realpath(root)
    base = os.path.dirname(real)
    for pid in _processes():
        if pid == os.getpid() or _command(pid) != "nats-server":
            continue
        if _has_open(pid, real) or _started_on(pid, {real, base}):
            raise StoreLocked(
                f"{root}: a nats-server (process {pid}) has this directory open; stop it first (kill -TERM {pid}), "
                "or open for reading only"
            )


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _has_open(pid: int, real: str) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith(real + "/"):
                return True
        except OSError:
            continue
    return False


def _started_on(pid: int, directories: set[str]) -> bool:
    """A server closes idle block files; its command line still names the directory."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return False
    for word in words[1:]:
        value = word.rpartition("=")[2]
        place = os.path.realpath(os.path.join(cwd, value)) if value else ""
        if place in directories or (place and _names_one(place, directories)):
            return True
    return False


def _names_one(config: str, directories: set[str]) -> bool:
    """Whether a configuration file mentions one of the directories."""
    try:
        if not os.path.isfile(config) or os.path.getsize(config) > _CONFIG_BYTES_MAX:
            return False
        with open(config, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return False
    return any(directory in text for directory in directories)


def file_system_notice(path: str) -> str | None:
    """A warning when the directory lies where a sync does not mean what we promise."""
    real, best, kind = os.path.realpath(path), "", ""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, point, found, *_ = line.split(" ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, found
    except (OSError, ValueError):
        return None
    reasons = {
        "tmpfs": "it is memory: everything is gone with the machine's power",
        "ramfs": "it is memory: everything is gone with the machine's power",
        "overlay": "a container's layer: everything is gone with the container",
        "nfs": "what a sync means is up to the file server",
        "nfs4": "what a sync means is up to the file server",
    }
    return f"{path} lies on {kind}: {reasons[kind]}" if kind in reasons else None
