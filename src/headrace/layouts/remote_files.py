"""A remote file system as `Disk.foreign` asks for it: entries, listings, open files. Over pyarrow's own file systems
(s3, gs, abfs, hdfs), or any other that fsspec knows.

Requests are slow and cost money. One listing answers for every name of its directory and is kept as long as this object
lives (one planning, one task); above the directory that was asked for nothing is listed: it may be large, or forbidden.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from pyarrow import ArrowException, fs

from headrace.errors import BadInput, HeadraceError
from headrace.layouts.places import head_and_names

LINE_MAX = 300
OPEN_MAX = 256
NATIVE = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
arrow_fs: Any = fs  # the stubs know it but in part
Entry = tuple[bool, int, int]
"""Directory?, bytes, time of the last change in ns."""


@lru_cache(maxsize=32)
def file_system(head: str) -> tuple[Any, str]:
    """The file system behind `scheme://authority;parameters`, and where its paths begin."""
    place, *parameters = head.split(";")
    scheme = place.partition(":")[0]
    if scheme == "s3" and not any(each.startswith("region=") for each in parameters):
        # Without a region it is asked of Amazon, which an endpoint of one's own need not be.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region or os.environ.get("AWS_ENDPOINT_URL"):
            parameters.append(f"region={region or 'us-east-1'}")
    try:
        if scheme in NATIVE:
            uri = f"{place}/?{'&'.join(parameters)}" if parameters else f"{place}/"
            system, base = arrow_fs.FileSystem.from_uri(uri)
        else:
            system, base = _by_fsspec(place, dict(each.split("=", 1) for each in parameters))
    except HeadraceError:
        raise
    except (ArrowException, OSError, ValueError, ImportError, TypeError) as problem:
        raise BadInput(f"{place}: cannot be opened: {_line(problem)}") from None
    return system, base.rstrip("/")


def _by_fsspec(place: str, parameters: dict[str, str]) -> tuple[Any, str]:
    scheme = place.partition(":")[0]
    try:
        import fsspec  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError:
        raise BadInput(
            f"{place}: {scheme}:// needs the Python package fsspec, and the one it uses for {scheme}, on driver and workers"
        ) from None
    core: Any = fsspec
    system, base = core.core.url_to_fs(place, use_listings_cache=False, **parameters)
    return arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(system)), base


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if len(text) <= LINE_MAX else f"{text[:LINE_MAX]}…"


class RemotePlace:
    """What one disk asks."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._head, _ = head_and_names(root)
        self._system, self._base = file_system(self._head)
        self._listed: dict[str, dict[str, Entry] | None] = {}
        self._open: dict[str, tuple[Any, int]] = {}

    def _at(self, path: str) -> str:
        head, names = head_and_names(path)
        if head != self._head:
            raise BadInput(f"{path}: not on {self._head}")
        return f"{self._base}{names}".rstrip("/") or "/"

    def entry(self, path: str) -> Entry | None:
        """What a name is; None where there is nothing."""
        path = path.rstrip("/")
        above, _, name = path.rpartition("/")
        if self._is_below(path):
            return (self._list(above) or {}).get(name)
        if path == self._root and self._list(path):
            return True, 0, 0
        return _entry(self._system.get_file_info(self._at(path)))

    def list(self, path: str) -> list[tuple[str, bool, int]]:
        """Name, directory?, bytes of everything in a directory."""
        found = self._list(path.rstrip("/"))
        if found is None:
            raise FileNotFoundError("no such directory")
        return [(name, is_dir, size) for name, (is_dir, size, _) in found.items()]

    def _is_below(self, path: str) -> bool:
        return path.startswith(f"{self._root}/")

    def _list(self, path: str) -> dict[str, Entry] | None:
        """From the root downwards: a directory that its parent does not name is not asked for."""
        if path not in self._listed:
            known = self.entry(path) if self._is_below(path) else (True,)
            self._listed[path] = self._ask(path) if known is not None and known[0] else None
        return self._listed[path]

    def _ask(self, path: str) -> dict[str, Entry] | None:
        selector = arrow_fs.FileSelector(self._at(path))
        try:
            infos = self._system.get_file_info(selector)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return {info.base_name: entry for info in infos if (entry := _entry(info)) is not None}

    def open(self, path: str) -> tuple[Any, int]:
        """A file that reads at any place, and its size."""
        if path not in self._open:
            above, _, name = path.rpartition("/")
            if above in self._listed and name not in (self._listed[above] or {}):
                raise FileNotFoundError("no such file")
            file = self._system.open_input_file(self._at(path))
            # Handles are small; what is dropped here lives on with those who read it.
            if len(self._open) >= OPEN_MAX:
                self._open.clear()
            self._open[path] = file, file.size()
        return self._open[path]


def _entry(info: Any) -> Entry | None:
    if info.type == arrow_fs.FileType.NotFound:
        return None
    is_dir = info.type == arrow_fs.FileType.Directory
    return is_dir, 0 if is_dir else info.size or 0, info.mtime_ns or 0
