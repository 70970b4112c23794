"""Channel names and where things lie.

    <root>/server.dat clients.dat .truncate.lck        headrace.lock headrace.*   ours: plain files, which the server ignores
    <root>/<channel>/subs.dat msgs.<n>.dat msgs.<n>.idx
    <root>/<channel>/headrace/                         ours: a folder inside a channel, which the server ignores

A channel's name is its directory's, verbatim. It is checked here before a path is made of it.
"""

from __future__ import annotations

import re

from headrace.errors import BadInput, DiskFault
from headrace.layouts.nats_streaming._kernels import Disk

SERVER = "server.dat"
CLIENTS = "clients.dat"
SUBS = "subs.dat"
WITNESS = ".truncate.lck"
RAFT = "raft.log"
LOCK = "headrace.lock"
SIDE = "headrace"
HEAD = b"\x01\0\0\0"
NAME_BYTES_MAX = 255
_SLICE = re.compile(r"^msgs\.(.*)\.dat$", re.DOTALL)


def check_channel(name: str) -> None:
    """BadInput unless `name` can be a channel's: what the server refuses, and what no directory can be called."""
    tokens = name.split(".")
    if not name or "" in tokens:
        raise BadInput(f"channel name {name!r} is empty, or begins or ends with '.', or has '..' in it")
    if "/" in name or "\0" in name:
        raise BadInput(f"channel name {name!r} holds '/' or a zero byte: it would leave its directory")
    if any("*" in token or ">" in token for token in tokens):
        raise BadInput(f"channel name {name!r}: wildcards are not allowed")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadInput(f"channel name {name!r} is not valid Unicode text") from None
    if size > NAME_BYTES_MAX:
        raise BadInput(f"channel name {name[:40]!r}… has {size} bytes: file name too long (at most 255)")


def channels(disk: Disk, root: str) -> list[str]:
    """Every directory in the root is a channel, also an empty one; but not one with a cluster node's Raft log."""
    if disk.entry(root) is None:
        return []
    found = [name for name, is_dir, _ in disk.list(root) if is_dir]
    return [name for name in found if not raft_logs(disk, f"{root}/{name}")]


def raft_logs(disk: Disk, directory: str) -> list[str]:
    """`<cluster>/<node>/raft.log`: what a node of a cluster keeps beside its store, or in it if it was started there."""
    if disk.entry(f"{directory}/{SUBS}") is not None:
        return []  # a channel, whatever else lies in it
    nodes = [f"{directory}/{name}/{RAFT}" for name, is_dir, _ in disk.list(directory) if is_dir]
    return [path for path in nodes if disk.entry(path) is not None]


def slice_numbers(disk: Disk, directory: str) -> tuple[list[int], list[str]]:
    """(numbers of the slices, in order; names that look like one and are none)."""
    numbers: list[int] = []
    wrong: list[str] = []
    for name, is_dir, _ in disk.list(directory):
        match = _SLICE.match(name)
        if match is None or is_dir:
            continue
        if match[1].isascii() and match[1].isdecimal() and len(match[1]) < 19:
            numbers.append(int(match[1]))
        else:
            wrong.append(name)
    return sorted(numbers), wrong


def misplaced(disk: Disk, directory: str) -> list[str]:
    """Directories where the messages of a slice should be."""
    return [name for name, is_dir, _ in disk.list(directory) if is_dir and _SLICE.match(name)]


def data_path(directory: str, number: int) -> str:
    """The messages of a slice."""
    return f"{directory}/msgs.{number}.dat"


def index_path(directory: str, number: int) -> str:
    """The index of a slice."""
    return f"{directory}/msgs.{number}.idx"


def _begins_right(disk: Disk, path: str) -> bool:
    try:
        return disk.entry(path) is not None and disk.open(path).read_at(0, len(HEAD)) == HEAD
    except DiskFault:
        return False


def looks_like_streaming(disk: Disk, path: str) -> bool:
    """Whether a directory holds a NATS Streaming file store: its two files, or channels that lost them."""
    root = path.rstrip("/") or "/"
    entry = disk.entry(root)
    if entry is None or not entry.is_dir:
        return False
    for name in (SERVER, CLIENTS):
        if _begins_right(disk, f"{root}/{name}"):
            return True
    return any(
        disk.entry(f"{root}/{name}/{SUBS}") is not None and bool(slice_numbers(disk, f"{root}/{name}")[0])
        for name in [name for name, is_dir, _ in disk.list(root) if is_dir][:64]
    )
