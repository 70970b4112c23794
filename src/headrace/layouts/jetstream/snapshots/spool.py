"""A snapshot that arrives is kept in a file of the store's directory until it is complete.

<store>/headrace-restore-<id>    removed when it was taken in, or at the next start
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import HeadraceError
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.stream_store import Spool

PREFIX = "headrace-restore-"
CHUNK_BYTES = 1 << 20


class FileSpool(Spool):
    """One such file."""

    def __init__(self, disk: Disk, directory: str, id: str) -> None:
        self._disk, self._path, self.size = disk, f"{directory}/{PREFIX}{id}", 0
        self._file = disk.open(self._path, "create_new")

    def append(self, data: bytes) -> None:
        """Write the next piece."""
        self._file.write_at(self.size, data)
        self.size += len(data)

    def chunks(self) -> Iterator[bytes]:
        """Everything, in order."""
        for at in range(0, self.size, CHUNK_BYTES):
            yield self._file.read_at(at, min(CHUNK_BYTES, self.size - at))

    def remove(self) -> None:
        """Remove the file; what a full or failing disk keeps goes at the next start."""
        try:
            self._disk.remove_file(self._path)
        except HeadraceError:
            pass


def clear_spools(disk: Disk, directory: str) -> None:
    """Files that a crash left are of no use any more."""
    for name, is_dir, _ in disk.list(directory):
        if name.startswith(PREFIX) and not is_dir:
            disk.remove_file(f"{directory}/{name}")
