"""`Journal`: small keyed state made durable by one append-only file. One implementation for all layouts.

    <name>.<generation>.journal
      head     "HRJRNL1\\0" | u64 generation | u64 oldest | u64 first position | u32 CRC-32 of the 32 bytes
      record   u32 length  | u32 CRC-32 of (length, kind, payload) | u8 kind | payload       … repeated
               length = 1 + payload bytes; integers little-endian; the CRC covers the length too

A position is the number of records ever appended; it goes on over generations, so that a checkpoint can
say up to where it has taken the journal in. `oldest` is the first generation that is still needed:

    clean        7 (oldest 7)                    replay 7
    torn tail    7 (oldest 7), 8 (oldest 7)      replay 7, then 8: a torn file is never cut or appended to
    begun anew   8 (oldest 8), then 7 is removed replay 8; a 7 that a crash left behind is not read
    rotated      8 (oldest 7), then 7 is removed replay 7 while it is there; 8 goes on behind it

Appending, writing and syncing is the core's (`JournalWriter`): `append` buffers in memory, `write` hands the buffer to the
operating system, `commit` syncs as well; callers in other threads share that sync. A failed write may be tried again (the
same bytes at the same place); a failed sync poisons. `rotate` and `drop_older` make a checkpoint beside which others go on appending.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.errors import DiskFault
from headrace.layouts._kernels import JOURNAL_RECORD_BYTES_MAX as RECORD_BYTES_MAX
from headrace.layouts._kernels import JournalWriter
from headrace.layouts.base import Damage
from headrace.layouts.shortcuts import unreadable

if TYPE_CHECKING:
    from headrace._core import Disk, DiskFile
    from headrace.layouts._kernels import CommitHandle

MAGIC = b"HRJRNL1\0"
SUFFIX = ".journal"
FILE_BYTES_MAX = 1 << 30
_HEAD = struct.Struct("<8sQQQ")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<II")
HEAD_BYTES = _HEAD.size + _CRC.size
FRAME_BYTES = _FRAME.size
_SMALL_BYTES = 4096  # repair and search look at small records only: both are quadratic
_SEARCH_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record; `position` is the number of records up to and including it."""

    position: int
    kind: int
    payload: bytes


class Journal:
    """The journal `name` in `directory`. Load it, then `start` it for writing; it is thread-safe."""

    def __init__(self, disk: Disk, directory: str, name: str) -> None:
        self._disk, self._directory, self._name = disk, directory, name
        self._files = threading.Lock()
        """Held while generations come and go."""
        self._writer = JournalWriter(f"{directory}/{name}")
        self._generation = self._oldest = 0
        self._loaded = 0
        self._started = False
        self.damage: list[Damage] = []

    @property
    def position(self) -> int:
        """How many records were ever appended."""
        return self._writer.position if self._started else self._loaded

    @property
    def size(self) -> int:
        """Bytes in the file that is being written, and waiting for it."""
        return self._writer.size

    def commit_handle(self) -> CommitHandle:
        """For a `Committer`: `commit` without the interpreter."""
        return self._writer.commit_handle()

    def files(self) -> list[str]:
        """Paths of all generations on disk, oldest first."""
        return [self._path(generation) for generation in self._generations()]

    def load(self, *, strict: bool = True) -> Iterator[JournalRecord]:
        """Every sound record, oldest first. What is unsound is noted in `damage`; nothing is changed. Without `strict` a
        file that cannot be read is noted, too: for readers, which change nothing after it."""
        self.damage = []
        contents: dict[int, bytes] = {}
        for generation in self._generations():
            try:
                contents[generation] = self._disk.read(self._path(generation), FILE_BYTES_MAX)
            except DiskFault as problem:
                if strict:
                    raise
                self.damage.append(unreadable(self._path(generation), problem, "metadata"))
        heads = {g: head for g, data in contents.items() if (head := _read_head(data, g)) is not None}
        for generation in heads:
            if (
                crc32(contents[generation][: _HEAD.size])
                != _CRC.unpack_from(contents[generation], _HEAD.size)[0]
            ):
                self.damage.append(
                    Damage(self._path(generation), 0, HEAD_BYTES, "repaired", "one bit of the head")
                )
        for generation in contents.keys() - heads.keys():
            detail = "the head is not sound; the file was just being made, or is damaged"
            self.damage.append(Damage(self._path(generation), 0, HEAD_BYTES, "metadata", detail))
        if not heads:
            # The records still prove themselves; without a position they count as taken in already,
            # which at worst delivers a message again.
            heads = {g: (g, 0) for g in contents}
        if not heads:
            return
        newest = max(heads)
        self._generation, self._oldest = max(contents), heads[newest][0]
        for generation in sorted(g for g in heads if self._oldest <= g <= newest):
            self._loaded = max(self._loaded, heads[generation][1])
            yield from self._records(generation, contents[generation])

    def start(self, *, after_position: int = 0, keep_older: bool = False) -> None:
        """Begin a new generation for writing. `load` must have been read to its end before.

        With `keep_older` what was loaded stays needed; otherwise the caller's checkpoint, durable by
        now, holds all of it, and the older files are removed.
        """
        with self._files:
            position = max(self.position, after_position)
            older = self._generations()
            file = self._new_generation(position, keep_older=keep_older and bool(older))
            self._writer.start(file, HEAD_BYTES, position)
            self._started = True
            if not keep_older:
                self._remove(older)

    def append(self, kind: int, payload: bytes) -> int:
        """Note a record; it is durable once `commit` returned. Returns its position."""
        return self._writer.append(kind, payload)

    def write(self) -> None:
        """Hand what was noted to the operating system: it outlives the process, not yet a power cut."""
        self._writer.write()

    def commit(self, position: int | None = None) -> None:
        """Return once everything up to `position` (default: all so far) is on disk."""
        self._writer.commit(self._writer.position if position is None else position)

    def rotate(self) -> None:
        """Begin a new file for what is appended from now on. The older ones stay needed until `drop_older`."""
        with self._files:
            position, file = self._writer.hold(), None
            try:
                file = self._new_generation(position, keep_older=True)
            finally:
                self._writer.release(position, file, HEAD_BYTES)

    def drop_older(self) -> None:
        """Everything in older files is durable elsewhere by now: they go."""
        with self._files:
            self._oldest = self._generation
            self._remove([g for g in self._generations() if g < self._generation])

    def close(self, *, remove: bool = False) -> None:
        """Give up the file; `remove` after a checkpoint that made it needless."""
        with self._files:
            self._writer.close()
            if remove:
                self._remove(self._generations())

    def check(self) -> None:
        """Raise StorePoisoned or StoreClosed when nothing can be appended."""
        self._writer.check()

    def _new_generation(self, position: int, *, keep_older: bool) -> DiskFile:
        """A file for records after `position`, on disk with its head and name."""
        generation = max([self._generation, *self._generations()]) + 1
        oldest = self._oldest if keep_older else generation
        head = _HEAD.pack(MAGIC, generation, oldest, position)
        for made in self._disk.create_dir_all(self._directory):
            above, slash, _ = made.rpartition("/")
            self._disk.sync_dir(above or slash or ".")
        path = self._path(generation)
        try:
            file = self._disk.open(path, "create_new")
            file.write_at(0, head + _CRC.pack(crc32(head)))
            file.sync_data()
            self._disk.sync_dir(self._directory)
        except DiskFault as error:
            self._undo(path, error)
            raise
        self._generation, self._oldest = generation, oldest
        return file

    def _undo(self, path: str, error: DiskFault) -> None:
        """Take a half-made generation away: found after a crash, it would say that the older ones,
        which go on being written, are not needed. If it will not go, nothing more is accepted."""
        try:
            if self._disk.entry(path) is not None:
                self._disk.remove_file(path)
            self._disk.sync_dir(self._directory)
        except DiskFault:
            self._writer.poison(str(error))

    def _remove(self, generations: list[int]) -> None:
        """Files that nobody needs: one that stays, or comes back after a crash, is not read (`oldest`),
        or holds only what the checkpoint has (its positions), so a failure here is no failure."""
        try:
            for generation in generations:
                self._disk.remove_file(self._path(generation))
            if generations:
                self._disk.sync_dir(self._directory)
        except DiskFault:
            pass

    def _generations(self) -> list[int]:
        if self._disk.entry(self._directory) is None:
            return []
        found: list[int] = []
        for name, is_dir, _ in self._disk.list(self._directory):
            number = name.removeprefix(f"{self._name}.").removesuffix(SUFFIX)
            if not is_dir and number.isdecimal() and name == f"{self._name}.{number}{SUFFIX}":
                found.append(int(number))
        return sorted(found)

    def _path(self, generation: int) -> str:
        return f"{self._directory}/{self._name}.{generation}{SUFFIX}"

    def _records(self, generation: int, data: bytes) -> Iterator[JournalRecord]:
        offset, path = HEAD_BYTES, self._path(generation)
        while offset < len(data):
            size = _sound_size(data, offset)
            if size is None:
                repaired = _repaired(data, offset)
                if repaired is None:
                    self._note_tail(path, data, offset)
                    return
                data, where = repaired
                self.damage.append(Damage(path, where, 1, "repaired", "one bit of this byte was inverted"))
                continue
            self._loaded += 1
            payload = data[offset + FRAME_BYTES + 1 : offset + FRAME_BYTES + size]
            yield JournalRecord(self._loaded, data[offset + FRAME_BYTES], payload)
            offset += FRAME_BYTES + size

    def _note_tail(self, path: str, data: bytes, offset: int) -> None:
        """Bytes that are no record: the end of an interrupted write, or damage with records behind it.

        Records behind damage are not used: whoever replays must not skip one (an ack whose delivery is
        missing would ack the wrong message).
        """
        limit = min(len(data), offset + _SEARCH_BYTES_MAX)
        after = next((at for at in range(offset + 1, limit) if _sound_size(data, at, _SMALL_BYTES)), None)
        kind, detail = "unsound-tail", "an interrupted write; it was not acknowledged"
        if after is not None:
            kind, detail = "bad-record", f"sound records follow at byte {after}; they are not used"
        self.damage.append(Damage(path, offset, len(data) - offset, kind, detail))


def _sound_size(data: bytes | bytearray, offset: int, length_max: int = RECORD_BYTES_MAX) -> int | None:
    """The length field of the record at `offset` if the whole record is there and its CRC agrees."""
    if offset + FRAME_BYTES >= len(data):
        return None
    length, seen = _FRAME.unpack_from(data, offset)
    if not 1 <= length <= length_max or offset + FRAME_BYTES + length > len(data):
        return None
    body = data[offset + FRAME_BYTES : offset + FRAME_BYTES + length]
    return length if crc32(data[offset : offset + 4] + body) == seen else None


def _repaired(data: bytes, offset: int) -> tuple[bytes, int] | None:
    """The file with one bit of the record at `offset` inverted so that it is sound, and where."""
    length = _FRAME.unpack_from(data, offset)[0] if offset + FRAME_BYTES <= len(data) else 0
    body = length if 1 <= length <= _SMALL_BYTES else 0
    trial = bytearray(data)
    for at in range(offset, min(offset + FRAME_BYTES + body, len(data))):
        for bit in range(8):
            trial[at] ^= 1 << bit
            if _sound_size(trial, offset) is not None:
                return bytes(trial), at
            trial[at] ^= 1 << bit
    return None


def _read_head(data: bytes, generation: int) -> tuple[int, int] | None:
    """(oldest generation needed, position before the first record), or None if the head is unsound.

    A single inverted bit is put right: the file's name and the CRC leave no doubt.
    """
    head = bytearray(data[:HEAD_BYTES])
    if len(head) < HEAD_BYTES:
        return None
    for flipped in range(-1, HEAD_BYTES * 8):
        if flipped >= 0:
            head[flipped >> 3] ^= 1 << (flipped & 7)
        magic, number, oldest, first = _HEAD.unpack_from(head)
        sound = _CRC.unpack_from(head, _HEAD.size)[0] == crc32(head[: _HEAD.size])
        if sound and magic == MAGIC and number == generation:
            return oldest, first
        if flipped >= 0:
            head[flipped >> 3] ^= 1 << (flipped & 7)
    return None
