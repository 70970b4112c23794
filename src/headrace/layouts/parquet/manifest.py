"""The manifest of an archive: the one file that says which Parquet files belong to it, and what they hold.

    DEST/_headrace/manifest.json   the truth; replaced as a whole (temporary file, fsync, rename)
    DEST/_headrace/staging/…       files that workers have finished and that no manifest names yet
    DEST/_headrace/lock            held (flock) by the one run that writes
    DEST/[date=…/]<log>-<first>-<next>.parquet

A commit is one replacement of the manifest; only then do its files leave `staging` for their places. So whoever reads
DEST as plain Parquet sees no file that is not committed, and a run that was killed in between is completed by the next
one (`publishing` names the files whose move may be missing).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from headrace.errors import BadInput, Damaged, DiskFault, StoreLocked
from headrace.layouts.archives import AddedRange, ArchivedFile, ArchivedLog
from headrace.layouts.parquet._kernels import Disk
from headrace.layouts.places import disk_at

SIDE = "_headrace"
MANIFEST = "manifest.json"
STAGING = "staging"
LOCK = "lock"
VERSION = 1
MANIFEST_BYTES_MAX = 1 << 30


class Manifest(msgspec.Struct, kw_only=True):
    """Everything that is committed."""

    v: int = VERSION
    version: int = 0
    layout: str
    by: list[str] = []
    logs: dict[str, ArchivedLog] = {}
    files: list[ArchivedFile] = []
    publishing: list[str] = []

    @property
    def rows(self) -> int:
        return sum(log.rows for log in self.logs.values())


def read_manifest(path: str | os.PathLike[str], disk: Disk | None = None) -> Manifest | None:
    """What is committed; None where nothing is. Damaged for what cannot be read."""
    file, on = f"{os.fspath(path)}/{SIDE}/{MANIFEST}", disk or disk_at(os.fspath(path))
    entry = on.entry(file)
    if entry is None:
        return None
    if entry.size > MANIFEST_BYTES_MAX:
        raise Damaged(file, 0, f"{entry.size} bytes", f"at most {MANIFEST_BYTES_MAX}", "put back a copy")
    try:
        found = msgspec.json.decode(on.read(file, MANIFEST_BYTES_MAX), type=Manifest)
    except msgspec.MsgspecError as problem:
        raise Damaged(
            file,
            0,
            str(problem),
            "an archive's manifest",
            "put back a copy; the Parquet files are unhurt",
        ) from None
    if found.v != VERSION:
        raise Damaged(file, 0, f"version {found.v}", f"version {VERSION}", "use a newer Headrace")
    return found


class ArchiveWriter:
    """The one writer of an archive: the lock, the manifest, commits. Use as a context."""

    def __init__(
        self, path: str | os.PathLike[str], layout: str, by: Iterable[str] = (), wait_s: float = 0
    ) -> None:
        self.path = Path(path)
        self.side = self.path / SIDE
        self.staging = self.side / STAGING
        self.staging.mkdir(parents=True, exist_ok=True)
        sync_directory(self.path.parent)
        sync_directory(self.path)
        self._lock = _take_lock(self.side / LOCK, wait_s)
        try:
            wanted = list(by)
            found = read_manifest(self.path)
            self.manifest = found or Manifest(layout=layout, by=wanted)
            if found is not None and (found.layout, found.by) != (layout, wanted):
                raise BadInput(
                    f"{self.path} is an archive of {found.layout} by {', '.join(found.by) or 'nothing'}; asked for "
                    f"{layout} by {', '.join(wanted) or 'nothing'}: archive into another directory, or as before"
                )
            self._publish()
            _empty(self.staging)
        except BaseException:
            self.close()
            raise

    def log(self, name: str, incarnation: str) -> ArchivedLog:
        """What is known of a log. BadInput when it was deleted and made again since."""
        known = self.manifest.logs.get(name)
        if known is not None and known.id != incarnation:
            raise BadInput(
                f"{self.path}: log {name} was deleted and made again (it was {known.id}, now it is {incarnation}); "
                "archive it into another directory"
            )
        return known or ArchivedLog(id=incarnation)

    def commit(self, parts: Iterable[AddedRange]) -> None:
        """The files of these ranges, which are in `staging`, become part of the archive, all at once."""
        files: list[ArchivedFile] = []
        for part in parts:
            part.entry.add(part.first, part.next, sum(file.rows for file in part.files))
            self.manifest.logs[part.log] = part.entry
            files += part.files
        self.manifest.files += files
        self.manifest.version += 1
        self.manifest.publishing = [file.path for file in files]
        replace_file(self.side / MANIFEST, msgspec.json.encode(self.manifest))
        self._publish()

    def _publish(self) -> None:
        """Move what the manifest names from `staging` to its place. May be repeated."""
        touched: set[Path] = set()
        for name in self.manifest.publishing:
            source, target = self.staging / name, self.path / name
            if source.exists():
                touched |= _made(target.parent, self.path)
                source.replace(target)
                touched.add(target.parent)
            elif not target.exists():
                raise Damaged(
                    str(target),
                    0,
                    "no file",
                    "a file that the manifest names",
                    "archive into another directory",
                )
        for directory in touched:
            sync_directory(directory)
        self.manifest.publishing = []

    def close(self) -> None:
        """Give up the lock."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def replace_file(path: Path, content: bytes) -> None:
    """The file has the old content or the new one, also after a power cut."""
    temporary = path.with_name(f"{path.name}.new")
    with os.fdopen(_opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Names in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _made(directory: Path, root: Path) -> set[Path]:
    """Make a directory below the root; returns the directories that got a new name in them."""
    parents, at = set[Path](), directory
    while at != root and not at.exists():
        parents.add(at.parent)
        at = at.parent
    directory.mkdir(parents=True, exist_ok=True)
    return parents


def _empty(directory: Path) -> None:
    """What a killed run left: nobody knows it, and it will be made again."""
    for each in sorted(directory.rglob("*"), reverse=True):
        with suppress(FileNotFoundError):
            each.rmdir() if each.is_dir() and not each.is_symlink() else each.unlink()


def _opened(path: Path, flags: int) -> int:
    """No link is followed in the side folder: it would lead a write out of the archive."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DiskFault(
            f"{path}: open failed: {error.strerror}; remove it if it is a link or no file"
        ) from None


def _take_lock(path: Path, wait_s: float) -> int:
    descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "another process"
            os.close(descriptor)
            raise StoreLocked(
                f"{path}: process {holder} is writing this archive; try again when it is done"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
        return descriptor
