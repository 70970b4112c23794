"""An archive as the commands see it: read-only.

inspect   by the manifest: which files, rows, ranges, times; sizes as they are on disk
verify    and each file's hash, its rows and positions by its own metadata, the sums of the log, files nobody names
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as parquet

from headrace._core import Disk
from headrace.errors import BadInput, DiskFault, NotFound, ReadOnly
from headrace.layouts.archives import ArchivedFile, ArchivedLog, Archives
from headrace.layouts.base import Damage
from headrace.layouts.layout import Layout, Look, OpenRequest
from headrace.layouts.log_names import LogNames
from headrace.layouts.parquet.check import hash_on
from headrace.layouts.parquet.manifest import SIDE, STAGING, Manifest, read_manifest
from headrace.layouts.parquet.volume import NAME, ArchiveLog, ArchiveVolume
from headrace.layouts.places import disk_at, opened
from headrace.layouts.report import FileRow, LogView, Report, VolumeView
from headrace.layouts.unread import Unread

NO_KEY = "an archive is not encrypted: no key is needed"
READ_ONLY = "an archive is only read; `headrace pipeline archive` adds to it"
AGAIN = "archive the range again into another directory"
NOTED_MAX = 20
_files: Any = parquet


class ArchiveLayout(Layout):
    """Parquet files with a manifest."""

    name: ClassVar[str] = NAME
    product: ClassVar[str] = "Parquet archive"
    label: ClassVar[str] = "Parquet archive"
    sealed = True  # a key is refused with an error of its own

    def log_names_of(self, origin: str) -> LogNames:
        """Of the product whose logs were archived."""
        from headrace.layouts import registry

        return registry.log_names_of(origin)

    def recognise(self, path: str, disk: Disk) -> bool:
        """By its manifest."""
        return disk.entry(f"{path}/{SIDE}/manifest.json") is not None

    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """Nothing: `verify` names files that no manifest has."""
        return []

    def volume_at(self, path: str, request: OpenRequest) -> ArchiveVolume:
        """For reading."""
        if request.mode != "r" or request.create:
            raise ReadOnly(f"{path}: {READ_ONLY}")
        if request.key is not None:
            raise BadInput(NO_KEY)
        return ArchiveVolume(path, request.disk)

    def archives(self) -> Archives:
        """What adds to one."""
        from headrace.layouts.parquet.archives import ParquetArchives

        return ParquetArchives()

    def look(self, request: Look) -> Report:
        """By the manifest; in full with each file's hash and its own metadata."""
        path, log, progress, full = request.path, request.log, request.progress, request.full
        if request.key is not None:
            raise BadInput(NO_KEY)
        on = request.disk or disk_at(path)
        manifest = read_manifest(path, on)
        if manifest is None:
            raise NotFound(f"{path}: no archive there (no manifest)")
        view = VolumeView(path, NAME, self.product, f"manifest {manifest.v}", [])
        view.details = {"origin": manifest.layout, "divided by": ", ".join(manifest.by) or "nothing"}
        view.can_be_salvaged = False
        view.own_notes = _unknown_files(on, path, manifest)
        names = sorted(manifest.logs)
        if log is not None:
            names = self.log_names_of(manifest.layout).choose(names, (log,), path=path)
        mine = {name: [file for file in manifest.files if file.log == name] for name in names}
        total, done = sum(file.bytes for each in mine.values() for file in each), 0
        for name in names:
            entry = manifest.logs[name]
            found = LogView(name, path, state=ArchiveLog(path, name, entry, mine[name]).state())
            found.details = {"id": entry.id, "ranges": ", ".join(f"{a}..{b - 1}" for a, b in entry.ranges)}
            found.notes = [f"{a}..{b - 1} were gone before they were archived" for a, b in entry.lost]
            found.damage = _sums(f"{path}/{SIDE}/manifest.json", entry, mine[name])
            for file in mine[name]:
                place, staged = f"{path}/{file.path}", f"{path}/{SIDE}/{STAGING}/{file.path}"
                if file.path in manifest.publishing and on.entry(staged) is not None:
                    place = staged
                    found.notes.append(
                        f"{file.path} is not in its place: the next run of the archive moves it"
                    )
                found.files.append(_row(on, place, file, full, found.problems))
                done += file.bytes
                if progress is not None:
                    progress(done, total)
            view.log_views.append(found)
        return view


def _sums(manifest: str, entry: ArchivedLog, files: list[ArchivedFile]) -> list[Damage]:
    """The log's entry against the files that it is made of."""
    wrong: list[str] = []
    rows = sum(file.rows for file in files)
    if rows != entry.rows:
        wrong.append(f"{entry.rows} rows, but its files have {rows}")
    for file in files:
        if not entry.covers(file.first, file.next):
            wrong.append(f"{file.path} has {file.first}..{file.next - 1}, which is in none of its ranges")
    ends = sorted({(file.first, file.next) for file in files})
    for (_, before), (after, following) in pairwise(ends):
        if after < before:
            wrong.append(f"two files have {after}..{min(before, following) - 1}")
    return [Damage(manifest, 0, 0, "metadata", text) for text in wrong]


def _row(disk: Disk, path: str, file: ArchivedFile, full: bool, problems: list[str]) -> FileRow:
    row = FileRow(path, "file", 0, file.rows, file.first, file.next, file.min_time_ns, file.max_time_ns)

    def wrong(kind: str, text: str) -> None:
        row.damage.append(Damage(path, 0, row.file_bytes, kind, f"{text}; {AGAIN}", file.first, file.next))

    try:
        entry = disk.entry(path)
        if entry is None:
            wrong("missing", "the manifest names it, and it is not there")
            return row
        row.file_bytes = entry.size
        if row.file_bytes != file.bytes:
            wrong("bad-record", f"{row.file_bytes} bytes instead of {file.bytes}")
        elif full:
            found = hash_on(disk, path)
            if found != file.hash:
                wrong("bad-record", f"its hash is {found} instead of {file.hash}")
            elif text := _inside(path, file):
                wrong("metadata", text)
    except DiskFault as problem:
        problems.append(str(problem))
    return row


def _inside(path: str, file: ArchivedFile) -> str | None:
    """What the file says of itself, against the manifest. Its bytes are those that were written."""
    try:
        about = _files.read_metadata(opened(path))
    except (OSError, pa.ArrowException) as problem:
        return f"no Parquet file: {problem}"
    if about.num_rows != file.rows:
        return f"{about.num_rows} rows instead of {file.rows}"
    for at in range(about.num_row_groups):
        ends = about.row_group(at).column(0).statistics
        if ends is not None and ends.has_min_max and not file.first <= ends.min <= ends.max < file.next:
            return f"positions {ends.min}..{ends.max} in a file of {file.first}..{file.next - 1}"
    return None


def _names(disk: Disk, root: str, below: str = "") -> Iterator[str]:
    """Every file of a directory, but for what is hidden."""
    for name, is_dir, _ in disk.list(f"{root}/{below}".rstrip("/")):
        if name[0] not in "._":
            yield from _names(disk, root, f"{below}{name}/") if is_dir else [f"{below}{name}"]


def _unknown_files(disk: Disk, root: str, manifest: Manifest) -> list[str]:
    """Files that a reader of Parquet would take for a part of the archive."""
    known = {file.path for file in manifest.files}
    unknown = sorted(each for each in _names(disk, root) if each.endswith(".parquet") and each not in known)
    return [
        f"{each}: no file of the archive, but readers of Parquet will take it for one" for each in unknown
    ][:NOTED_MAX]


LAYOUT = ArchiveLayout()
