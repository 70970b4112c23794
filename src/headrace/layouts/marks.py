"""How far each log is durable, told to readers beside a live writer: one small file per directory, rewritten in place.

    slot, 40 bytes:  first 8 bytes of BLAKE2b of the log's name | three u64 of the layout's choice | CRC-32 | 4 unused

The writer publishes after each sync and never syncs the file: it counts only while the writer's lock is held. Whoever meets
a slot half written looks again. A mark that is too old is still true.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import zlib

from headrace._core import Disk, DiskFile
from headrace.errors import DiskFault, HeadraceError

FILE = "headrace.marks"
Mark = tuple[int, int, int]
_BODY = struct.Struct("<8sQQQ")
_SLOT_BYTES = 40
_LOOKS = 20
_FILE_BYTES_MAX = 64 << 20


def _key(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


class Marks:
    """The writer's side. The caller holds the directory's lock."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._path, self._disk = f"{directory}/{FILE}", disk
        self._file: DiskFile | None = None
        self._slots: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Forget what a writer before us said."""
        self._file = self._disk.open(self._path, "write")
        self._file.set_len(0)

    def publish(self, name: str, mark: Mark) -> None:
        """Best effort: readers fall behind, never ahead."""
        with self._lock:
            slot = self._slots.setdefault(name, len(self._slots))
        body = _BODY.pack(_key(name), *mark)
        try:
            if self._file is not None:
                data = body + struct.pack("<I4x", zlib.crc32(body))
                self._file.write_at(slot * _SLOT_BYTES, data)
        except DiskFault:
            pass


class MarksBeside:
    """The reader's side."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._path, self._disk = f"{directory}/{FILE}", disk
        self._file: DiskFile | None = None
        self._slots: dict[str, int] = {}

    def of(self, name: str) -> Mark | None:
        """The newest mark of a log; None when the writer has published none."""
        try:
            if self._file is None:
                self._file = self._disk.open(self._path)
            key = _key(name)
            for _ in range(_LOOKS):
                slot = self._slots.get(name)
                mark = self._at(slot, key) if slot is not None else None
                if mark is not None:
                    return mark
                if not self._search(name, key):
                    return None
        except HeadraceError:
            self._file = None
        return None

    def _at(self, slot: int, key: bytes) -> Mark | None:
        assert self._file is not None
        data = self._file.read_at(slot * _SLOT_BYTES, _SLOT_BYTES)
        body, crc = data[: _BODY.size], data[_BODY.size : _BODY.size + 4]
        if len(crc) != 4 or struct.unpack("<I", crc)[0] != zlib.crc32(body):
            return None
        found, first, second, third = _BODY.unpack(body)
        return (first, second, third) if found == key else None

    def _search(self, name: str, key: bytes) -> bool:
        """Find the slot by its key, whether or not the rest of it is whole."""
        assert self._file is not None
        data = self._file.read_at(0, min(len(self._file), _FILE_BYTES_MAX))
        at = data.find(key)
        while at >= 0 and at % _SLOT_BYTES:
            at = data.find(key, at + 1)
        self._slots.pop(name, None)
        if at >= 0:
            self._slots[name] = at // _SLOT_BYTES
        return at >= 0
