"""Where a path leads: this machine's disk, or a file system that is reached by a URI and only read.

    /data/store   file:///data/store            the disk itself
    s3://bucket/store/jetstream/…/1.blk         `remote_disk`: one that asks the file system
    └─ head ───┘└─ names, as they are ─┘

A path stays a text through plans, tasks and errors, and says by itself how its file is opened. So parameters
(`s3://bucket/store?region=eu-west-1`) move in front of the names: `s3://bucket;region=eu-west-1/store`. Secrets have no
place in such a text; they are the machine's own (environment, profile, role).
"""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from headrace._core import Disk
from headrace.errors import BadInput, DiskFault, HeadraceError, NotFound, ReadOnly

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(.*)", re.DOTALL)
_ALIASES = {"s3a": "s3", "s3n": "s3"}
_NO_PORTS = ("s3", "gs", "gcs", "abfs", "abfss")
_AUTHORITY = re.compile(r"([^@:\[\]]*@)?([^@:\[\]]*|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_SECRET = re.compile(
    r"secret|password|passwd|token|key|signature|^sig$|^sas|credential(?!_kind$)", re.IGNORECASE
)
_MAGIC = frozenset("*[")


def is_remote(path: str) -> bool:
    """Whether a path is one of another file system."""
    return "://" in path and (found := _URI.match(path)) is not None and found[1].lower() != "file"


def place_of(path: str) -> str:
    """A path as a user gives it → as it is used here. BadInput for one that no worker could open, or with a secret in it."""
    if not is_remote(path):
        return _local(path)
    found = _URI.match(path)
    assert found is not None
    scheme = _ALIASES.get(found[1].lower(), found[1].lower())
    authority, *known = found[2].split(";")
    names, _, query = found[3].partition("?")
    if scheme in ("nats", "tls", "ws", "wss"):
        raise BadInput(f"path={scheme}://…: that is a server, not a directory; give it as url")
    fits = _AUTHORITY.fullmatch(authority)
    if fits is None or (fits[3] and scheme in _NO_PORTS):
        raise BadInput(
            f"path={scheme}://…: a user and password (or a port) in it: a plan would show them. Give credentials in the "
            "environment, a profile or a role of the machine, another address as ?endpoint_override=host:port"
        )
    if not authority and scheme != "memory":
        raise BadInput(f"path={path!r}: no bucket or host behind {scheme}://")
    given = [(unquote(name), unquote(value)) for name, _, value in (each.partition("=") for each in known)]
    given += parse_qsl(query, keep_blank_values=True)
    for name, _ in given:
        if _SECRET.search(name):
            raise BadInput(
                f"path={scheme}://{authority}…: the parameter {name} is a secret, and a plan would show it. Give credentials "
                "in the environment, a profile or a role of the machine"
            )
    suffix = "".join(f";{quote(name, safe='')}={quote(value, safe=':,')}" for name, value in sorted(given))
    return f"{scheme}://{authority}{suffix}{names}".rstrip("/")


def _local(path: str) -> str:
    """`file:` is taken off."""
    scheme, colon, rest = path.partition(":")
    if not colon or scheme.lower() != "file":
        return path
    if rest.startswith("//"):
        host, _, rest = rest[2:].partition("/")
        rest = f"/{rest}"
        if host not in ("", "localhost"):
            raise BadInput(f"path={path!r}: file:// of another host ({host})")
    return unquote(rest)


def head_and_names(path: str) -> tuple[str, str]:
    """(`s3://bucket;region=…`, `/store/…`) of a remote path."""
    found = _URI.match(path)
    if found is None:
        raise BadInput(f"{path!r} is no path of a remote file system")
    # A name may have a question mark; parameters are in front by now.
    head = f"{found[1]}://{found[2]}"
    return head, path[len(head) :]


def disk_at(path: str) -> Disk:
    """The disk that a path lies on. What a remote one has listed and read it keeps: take a new one to see what is new."""
    if not is_remote(path):
        return Disk.real(path)
    from headrace.layouts.remote_files import RemotePlace

    return Disk.foreign(RemotePlace(path))


def disk_given(path: str, disk: Disk | None) -> Disk | None:
    """The disk that was given, or that of a remote place. None: this machine's, where processes and locks can be asked."""
    return disk_at(path) if disk is None and is_remote(path) else disk


def opened(path: str) -> Any:
    """What pyarrow reads a file from: its path, or the open remote file."""
    if not is_remote(path):
        return path
    from headrace.layouts.remote_files import RemotePlace

    return RemotePlace(path).open(path)[0]


def may_pass(problem: HeadraceError, path: str) -> bool:
    """Whether asking again may help: a network that fails says nothing of the file, and is no damage."""
    return isinstance(problem, DiskFault) and is_remote(path)


def only_read(path: str, what: str) -> str:
    """The path, where something is to be written: ReadOnly for a remote one, BadInput for none."""
    if not path:
        raise BadInput(f"'' is not a path: {what} is a directory")
    if is_remote(path):
        scheme = path.partition(":")[0]
        raise ReadOnly(
            f"{what} on {scheme}://: remote places are only read; write to a local directory, then copy it"
        )
    return path


def has_magic(path: str) -> bool:
    """Whether a remote path is a pattern. (`?` begins the parameters.)"""
    return bool(_MAGIC & set(head_and_names(path)[1]))


def matching(pattern: str) -> list[str]:
    """The directories of a remote file system that fit, sorted; the disk is asked name by name."""
    head, names = head_and_names(pattern)
    found = [head]
    parts = names.strip("/").split("/")
    # All before the first pattern needs no listing: it may be forbidden to list a bucket's root.
    plain = next((at for at, part in enumerate(parts) if _MAGIC & set(part)), len(parts))
    found = ["/".join([head, *parts[:plain]])]
    disk = disk_at(found[0])
    for part in parts[plain:]:
        below: list[str] = []
        for directory in found:
            try:
                entries = disk.list(directory)
            except NotFound:
                continue
            below += [
                f"{directory}/{name}"
                for name, is_dir, _ in entries
                if is_dir
                and fnmatch.fnmatchcase(name, part)
                and (part.startswith(".") or not name.startswith("."))
            ]
        found = below
    return sorted(found)


def absolute(path: str) -> str:
    """The path from the root, links not followed: a stream's directory has its name, also behind a link."""
    checked = check_path(path)
    return checked if is_remote(checked) else os.path.normpath(Path.cwd() / checked)


def check_path(path: str | os.PathLike[str]) -> str:
    """The path as text that the core can take."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{text!r}: the path is not valid UTF-8; rename the directory or use a link"
        ) from error
    if not text or "\0" in text:
        raise BadInput(f"{text!r} is not a path")
    return place_of(text) if is_remote(text) else text
