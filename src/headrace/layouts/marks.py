"""How far each log is durable: one small file per directory, rewritten in place.

    slot, 40 bytes:  first 8 bytes of BLAKE2b of the log's name | three u64 of the layout's choice | CRC-32 | 4 unused

For readers beside a live writer it counts while the writer's lock is held. After a kill it is evidence of what had been
acknowledged: a log that ends before its mark has lost something. The writer publishes after each sync and does not sync
the file itself: a mark that is too old is still true. Whoever meets a slot half written looks again.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import zlib
from collections.abc import Mapping

from headrace._core import Disk, DiskFile
from headrace.errors import DiskFault, HeadraceError

FILE = "headrace.marks"
Mark = tuple[int, int, int]
NOTHING: Mark = (0, 0, 0)
_BODY = struct.Struct("<8sQQQ")
_SLOT_BYTES = 40
_LOOKS = 20
_FILE_BYTES_MAX = 64 << 20


def _key(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _decode(slot: bytes) -> tuple[bytes, Mark] | None:
    body, crc = slot[: _BODY.size], slot[_BODY.size : _BODY.size + 4]
    if len(crc) != 4 or struct.unpack("<I", crc)[0] != zlib.crc32(body):
        return None
    key, first, second, third = _BODY.unpack(body)
    return key, (first, second, third)


class MarksBefore:
    """What the last writer left, read once."""

    def __init__(self, slots: Mapping[bytes, tuple[int, Mark]] | None = None) -> None:
        self.slots: dict[bytes, tuple[int, Mark]] = dict(slots or {})
        """Key → (slot, mark)."""

    @classmethod
    def read(cls, disk: Disk, directory: str) -> MarksBefore:
        """Every whole slot; nothing when there is no file, or one that cannot be read."""
        path = f"{directory}/{FILE}"
        try:
            data = disk.read(path, _FILE_BYTES_MAX) if disk.entry(path) is not None else b""
        except HeadraceError:
            return cls()
        found: dict[bytes, tuple[int, Mark]] = {}
        for at in range(0, len(data), _SLOT_BYTES):
            decoded = _decode(data[at : at + _SLOT_BYTES])
            if decoded is not None:
                found[decoded[0]] = (at // _SLOT_BYTES, decoded[1])
        return cls(found)

    def of(self, name: str) -> Mark | None:
        """The mark of a log."""
        found = self.slots.get(_key(name))
        return None if found is None else found[1]


class Marks:
    """The writer's side. The caller holds the directory's lock."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._path, self._disk = f"{directory}/{FILE}", disk
        self._file: DiskFile | None = None
        self._slots: dict[bytes, int] = {}
        self._free = 0
        self._lock = threading.Lock()

    def begin(self, before: MarksBefore | None = None) -> None:
        """Forget what a writer before us said; `before` stands until its logs are published again."""
        self._file = self._disk.open(self._path, "write")
        if before is None or not before.slots:
            self._file.set_len(0)
            return
        self._slots = {key: slot for key, (slot, _) in before.slots.items()}
        self._free = max(self._slots.values()) + 1

    def publish(self, name: str, mark: Mark) -> None:
        """Best effort: readers fall behind, never ahead."""
        try:
            self._write(name, mark)
        except DiskFault:
            pass

    def retract(self, name: str, mark: Mark = NOTHING) -> None:
        """Before a log goes, or files of it: on disk when this returns."""
        file = self._write(name, mark)
        if file is not None:
            file.sync_data()

    def _write(self, name: str, mark: Mark) -> DiskFile | None:
        key = _key(name)
        with self._lock:
            if key not in self._slots:
                self._slots[key], self._free = self._free, self._free + 1
            slot = self._slots[key]
        body = _BODY.pack(key, *mark)
        if self._file is not None:
            self._file.write_at(slot * _SLOT_BYTES, body + struct.pack("<I4x", zlib.crc32(body)))
        return self._file


class MarksBeside:
    """The reader's side, while a writer is at work."""

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
        found = _decode(self._file.read_at(slot * _SLOT_BYTES, _SLOT_BYTES))
        return found[1] if found is not None and found[0] == key else None

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
