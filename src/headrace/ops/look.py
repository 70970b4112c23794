"""`inspect`, `verify` and `salvage` for a directory of any product, or an archive: which one it is, is found out."""

from __future__ import annotations

import os

from headrace._core import Disk
from headrace.layouts.layout import THREADS, Progress
from headrace.layouts.places import check_path
from headrace.layouts.registry import layout_at
from headrace.layouts.report import Report
from headrace.layouts.salvage import SalvageReport


def inspect(
    path: str | os.PathLike[str],
    *,
    log: str | None = None,
    key: str | None = None,
    quick: bool = False,
    disk: Disk | None = None,
    progress: Progress | None = None,
) -> Report:
    """What is in a directory, or in one log of it. Raises when it is none of a known product, or when a key is needed.

    `quick` looks at names, metadata and indexes only.
    """
    checked = check_path(path)
    return layout_at(checked, disk).inspect(
        checked, log=log, key=key, quick=quick, disk=disk, progress=progress
    )


def verify(
    path: str | os.PathLike[str],
    *,
    log: str | None = None,
    key: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> Report:
    """Check every byte of a directory, or of one log. Raises only when nothing can be said: no store, no key."""
    checked = check_path(path)
    return layout_at(checked, disk).verify(
        checked, log=log, key=key, disk=disk, progress=progress, threads=threads
    )


def salvage(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    log: str | None = None,
    key: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> SalvageReport:
    """Copy everything that is sound in a directory, or in one log, into a new one at `out`, and say what is not. The
    source is only read; `out` gets its name when the copy is whole."""
    checked = check_path(path)
    return layout_at(checked, disk).salvage(
        checked, os.fspath(out), log=log, key=key, disk=disk, progress=progress, threads=threads
    )
