"""Our files beside a stream (`<stream>/headrace/`): the clean-stop stamp, the durable mark, the reserve.

clean.json   written last at a clean stop: the hash of index.db and every block's size. If both still
             agree, index.db describes exactly these files and nothing needs a scan.
durable      "HRMARK01" | u64 block | u64 bytes of it | u64 last sequence | u32 CRC-32
             rewritten in place after each sync, for readers beside a live writer
producers    what producers have done, kept by the model (streams/producers.py); restoring from a snapshot leaves it
             empty: everything is to be read once
reserve      a little space to give back when the disk is full, so that deletes still work
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from headrace.errors import DiskFault, HeadraceError
from headrace.layouts.jetstream._kernels import Disk, DiskFile
from headrace.layouts.jetstream.paths import SIDE, make_dirs

_MARK = struct.Struct("<8sQQQ")
_MARK_LOOKS = 20
_MARK_MAGIC = b"HRMARK01"
RESERVE_BYTES = 1 << 20
PRODUCERS = "producers"


class CleanStamp(msgspec.Struct, frozen=True):
    """What a clean stop left."""

    index_hash: str
    last_seq: int
    blocks: dict[int, int]


class Sidecar:
    """The side directory of one stream."""

    def __init__(self, disk: Disk, stream_dir: str) -> None:
        self._disk, self.path = disk, f"{stream_dir}/{SIDE}"
        self._mark: DiskFile | None = None

    def prepare(self, *, reserve: bool = True) -> None:
        """Make the directory, and the reserve if the disk has room for it (or upkeep does that soon)."""
        make_dirs(self._disk, self.path)
        if reserve:
            self.keep_reserve()

    # The clean stop

    def read_stamp(self) -> CleanStamp | None:
        """The stamp, if there is a readable one."""
        try:
            return msgspec.json.decode(self._disk.read(f"{self.path}/clean.json", 64 << 20), type=CleanStamp)
        except (HeadraceError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write_stamp(self, stamp: CleanStamp) -> None:
        """Say that the stop was clean; everything it speaks of must be synced."""
        self._disk.replace_file(f"{self.path}/clean.json", msgspec.json.encode(stamp))

    def remove_stamp(self) -> None:
        """From here on files change: the stamp must be gone before the first of them does."""
        if self._disk.entry(f"{self.path}/clean.json") is not None:
            self._disk.remove_file(f"{self.path}/clean.json")
            self._disk.sync_dir(self.path)

    # The durable mark

    def publish_mark(self, block: int, length: int, last_seq: int) -> None:
        """Tell readers how far the log is durable. Best effort: they fall behind, never ahead."""
        body = _MARK.pack(_MARK_MAGIC, block, length, last_seq)
        try:
            if self._mark is None:
                self._mark = self._disk.open(f"{self.path}/durable", "write")
            self._mark.write_at(0, body + struct.pack("<I", zlib.crc32(body)))
        except DiskFault:
            self._mark = None

    def read_mark(self) -> tuple[int, int, int] | None:
        """(block, bytes of it, last sequence), or None when no whole mark is there.

        A reader beside a writer may meet the mark while it is being written: it looks again.
        """
        for _ in range(_MARK_LOOKS):
            try:
                raw = self._disk.read(f"{self.path}/durable", 4096)
            except HeadraceError:
                return None
            mark = self._decode_mark(raw)
            if mark is not None:
                return mark
        return None

    @staticmethod
    def _decode_mark(raw: bytes) -> tuple[int, int, int] | None:
        body, crc = raw[: _MARK.size], raw[_MARK.size : _MARK.size + 4]
        if len(crc) != 4 or struct.unpack("<I", crc)[0] != zlib.crc32(body):
            return None
        fields: tuple[Any, ...] = _MARK.unpack(body)
        return (fields[1], fields[2], fields[3]) if fields[0] == _MARK_MAGIC else None

    # The reserve

    def keep_reserve(self) -> None:
        """Have the reserve on disk, if there is room."""
        path = f"{self.path}/reserve"
        try:
            entry = self._disk.entry(path)
            if entry is None or entry[1] < RESERVE_BYTES:
                file = self._disk.open(path, "write")
                file.write_at(0, bytes(RESERVE_BYTES))
                file.sync_data()
        except DiskFault:
            self.release_reserve()

    def release_reserve(self) -> bool:
        """Give the reserve's space back. False if it was given already."""
        path = f"{self.path}/reserve"
        try:
            if self._disk.entry(path) is None:
                return False
            self._disk.remove_file(path)
            return True
        except DiskFault:
            return False

    # What is not sound

    def keep_original(self, path: str) -> None:
        """Copy a block with unsound bytes into damaged/ before it is replaced or removed."""
        directory = f"{self.path}/damaged"
        make_dirs(self._disk, directory)
        target = copy = f"{directory}/{path.rsplit('/', 1)[-1]}"
        at = 1
        while self._disk.entry(copy) is not None:
            copy, at = f"{target}.{at}", at + 1
        file = self._disk.open(copy, "create_new")
        file.write_at(0, self._disk.read(path))
        file.sync_data()
        self._disk.sync_dir(directory)

    # Guards

    def guard_path(self, number: int) -> str:
        """The guard of a block."""
        return f"{self.path}/{number}.guard"

    def write_guard(self, number: int, data: bytes) -> None:
        """Replace a guard; not synced, because it carries its own checksum."""
        try:
            file = self._disk.open(self.guard_path(number), "write")
            file.set_len(0)
            file.write_at(0, data)
        except DiskFault:
            self.remove_guard(number)

    def remove_guard(self, number: int) -> None:
        """Must be durable before the block's records change their shape."""
        if self._disk.entry(self.guard_path(number)) is not None:
            self._disk.remove_file(self.guard_path(number))
            self._disk.sync_dir(self.path)

    def forget_guard(self, number: int) -> None:
        """The same for a block that is gone: one that comes back without its block hurts nobody."""
        if self._disk.entry(self.guard_path(number)) is not None:
            self._disk.remove_file(self.guard_path(number))

    def remove_guards_but(self, keep: set[int]) -> None:
        """Drop guards of blocks that are gone."""
        for name, _, _ in self._disk.list(self.path):
            stem, dot, ending = name.partition(".")
            if dot and ending == "guard" and stem.isdecimal() and int(stem) not in keep:
                self._disk.remove_file(f"{self.path}/{name}")
