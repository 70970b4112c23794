"""Our files beside a stream (`<stream>/headrace/`): the clean-stop stamp, the durable mark, the reserve.

clean.json   written last at a clean stop: the hash of index.db and every block's size. If both still
             agree, index.db describes exactly these files and nothing needs a scan.
durable      "HRMARK01" | u64 block | u64 bytes of it | u64 last sequence | u32 CRC-32
             rewritten in place after each sync, for readers beside a live writer, and as evidence (evidence.py)
N.guard      the boundaries of the records of block N (rust/core guard.rs); gone before the block is
dedupe       states that whoever serves the stream keeps here: CRC-32 of the content, content. ids of messages in the
producers    duplicate window, what producers have done, positions in origins (streams/stream/dedupe.py, producers.py,
origins      sourcing/state.py). An empty one has to be found out again: restoring from a snapshot leaves `producers` so
reserve      a little space to give back when the disk is full, so that deletes still work
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from headrace.errors import Damaged, DiskFault, HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.paths import BLOCK_DIGITS_MAX, BLOCK_MAX, INDEX_BYTES_MAX, SEQUENCE_MAX, SIDE
from headrace.layouts.shortcuts import problem_of

_MARK = struct.Struct("<8sQQQ")
_MARK_LOOKS = 20
_MARK_MAGIC = b"HRMARK01"
RESERVE_BYTES = 1 << 20
PRODUCERS = "producers"
DEDUPE = "dedupe"
GUARD_BYTES_MAX = 1 << 28
STAMP, DURABLE = "clean.json", "durable"
MEMORY_BYTES_MAX = 128 << 20
SIDE_FILES = {STAMP: 64 << 20, DURABLE: 4096, DEDUPE: MEMORY_BYTES_MAX, PRODUCERS: MEMORY_BYTES_MAX}
"""Our files of a stream, guards aside, and how large each may be."""


class DurableMark(NamedTuple):
    """How far a log is on disk for good."""

    block: int
    bytes: int
    """Of that block."""
    last: int
    """The last sequence."""


class CleanStamp(msgspec.Struct, frozen=True):
    """What a clean stop left."""

    index_hash: str
    last_seq: int
    blocks: dict[int, int]
    crc: int = 0
    """Of the others, so that a single number in it can be relied on."""

    def summed(self) -> CleanStamp:
        """With its checksum."""
        bare = msgspec.structs.replace(self, crc=0)
        return msgspec.structs.replace(bare, crc=zlib.crc32(msgspec.json.encode(bare)))

    @property
    def possible(self) -> bool:
        """Whether such blocks and sequences can be."""
        numbers = (*self.blocks, *self.blocks.values())
        return all(0 <= each <= BLOCK_MAX for each in numbers) and 0 <= self.last_seq <= SEQUENCE_MAX

    @property
    def whole(self) -> bool:
        """Whether the checksum fits."""
        return self.crc != 0 and self.summed().crc == self.crc


class Sidecar:
    """The side directory of one stream."""

    def __init__(self, disk: Disk, stream_dir: str) -> None:
        self._disk, self.path = disk, f"{stream_dir}/{SIDE}"
        self._has_reserve = False

    def prepare(self, *, reserve: bool = True) -> None:
        """Make the directory, and the reserve if the disk has room for it (or upkeep does that soon)."""
        make_dirs(self._disk, self.path)
        if reserve:
            self.keep_reserve()

    # The clean stop

    def read_stamp(self) -> CleanStamp | None:
        """The stamp, if there is a readable one."""
        try:
            raw = self._disk.read(f"{self.path}/{STAMP}", SIDE_FILES[STAMP])
            stamp = msgspec.json.decode(raw, type=CleanStamp)
            return stamp if stamp.possible else None
        except (HeadraceError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write_stamp(self, stamp: CleanStamp) -> None:
        """Say that the stop was clean; everything it speaks of must be synced."""
        self._disk.replace_file(f"{self.path}/{STAMP}", msgspec.json.encode(stamp.summed()))

    def remove_stamp(self) -> None:
        """From here on files change: the stamp must be gone before the first of them does."""
        if self._disk.entry(f"{self.path}/{STAMP}") is not None:
            self._disk.remove_file(f"{self.path}/{STAMP}")
            self._disk.sync_dir(self.path)

    # The durable mark

    @property
    def mark_path(self) -> str:
        """The file that the log's core rewrites after each sync (rust/core commit.rs)."""
        return f"{self.path}/{DURABLE}"

    def read_mark(self) -> DurableMark | None:
        """The mark, or None when no whole one is there.

        A reader beside a writer may meet the mark while it is being written: it looks again.
        """
        for _ in range(_MARK_LOOKS):
            try:
                raw = self._disk.read(self.mark_path, SIDE_FILES[DURABLE])
            except HeadraceError:
                return None
            mark = self._decode_mark(raw)
            if mark is not None:
                return mark
        return None

    @staticmethod
    def _decode_mark(raw: bytes) -> DurableMark | None:
        body, crc = raw[: _MARK.size], raw[_MARK.size : _MARK.size + 4]
        if len(crc) != 4 or struct.unpack("<I", crc)[0] != zlib.crc32(body):
            return None
        fields: tuple[Any, ...] = _MARK.unpack(body)
        mark = DurableMark(*fields[1:])
        possible = mark.block <= BLOCK_MAX and mark.last <= SEQUENCE_MAX
        return mark if fields[0] == _MARK_MAGIC and possible else None

    # The reserve

    def keep_reserve(self) -> None:
        """Have the reserve on disk, if there is room. Asked every second for every stream: once it is there nobody looks."""
        if self._has_reserve:
            return
        path = f"{self.path}/reserve"
        try:
            entry = self._disk.entry(path)
            if entry is None or entry.size < RESERVE_BYTES:
                file = self._disk.open(path, "write")
                file.write_at(0, bytes(RESERVE_BYTES))
                file.sync_data()
            self._has_reserve = True
        except DiskFault:
            self.release_reserve()

    def release_reserve(self) -> bool:
        """Give the reserve's space back. False if it was given already."""
        path = f"{self.path}/reserve"
        self._has_reserve = False
        try:
            if self._disk.entry(path) is None:
                return False
            self._disk.remove_file(path)
            return True
        except DiskFault:
            return False

    # Small states of whoever serves the stream: CRC-32 of the content, content. An empty file is a state that has to be
    # found out again.

    def _state_path(self, name: str) -> str:
        return f"{self.path}/{name}"

    def has_state(self, name: str) -> bool:
        """Whether a state was written."""
        return self._disk.entry(self._state_path(name)) is not None

    def read_state(self, name: str) -> bytes | None:
        """Its content; None without a file, and for an empty one. Damaged if the checksum does not fit."""
        path = self._state_path(name)
        if self._disk.entry(path) is None:
            return None
        raw = self._disk.read(path, SIDE_FILES.get(name, MEMORY_BYTES_MAX))
        if not raw:
            return None
        seen, content = raw[:4], raw[4:]
        if zlib.crc32(content).to_bytes(4, "little") != seen:
            raise Damaged(
                path, 0, "its checksum does not fit", "a whole file", "it is made from the messages"
            )
        return content

    def write_state(self, name: str, content: bytes) -> None:
        """Replace it; synced when this returns."""
        make_dirs(self._disk, self.path)
        framed = zlib.crc32(content).to_bytes(4, "little") + content if content else b""
        self._disk.replace_file(self._state_path(name), framed)

    def remove_state(self, name: str) -> None:
        """Remove its file."""
        self._disk.remove_file(self._state_path(name))

    def state_damage(self, name: str, why: str) -> Damage:
        """What is to be reported of a state that cannot be used."""
        path = self._state_path(name)
        try:
            entry = self._disk.entry(path)
        except HeadraceError:
            entry = None
        return Damage(path, 0, entry.size if entry is not None else 0, "metadata", why)

    # What is not sound

    def make_way(self, index: str) -> list[Damage]:
        """For a writer: shortcuts that cannot be read, `index` among them, are moved into damaged/, so that new ones can
        be written in their place."""
        limits = {f"{self.path}/{name}": bytes_max for name, bytes_max in SIDE_FILES.items()}
        limits |= {f"{self.path}/reserve": 4 * RESERVE_BYTES, index: INDEX_BYTES_MAX}
        if self._disk.entry(self.path) is not None:
            # There are many guards; one that is no directory is replaced or removed as it stands.
            there = [
                name for name, is_dir, _ in self._disk.list(self.path) if is_dir and name.endswith(".guard")
            ]
            limits |= {f"{self.path}/{name}": GUARD_BYTES_MAX for name in there}
        found: list[Damage] = []
        for path, bytes_max in limits.items():
            if (problem := problem_of(self._disk, path, bytes_max)) is not None:
                aside = self._aside(path)
                self._disk.rename(path, aside)
                self._disk.sync_dir(path.rsplit("/", 1)[0])
                found.append(Damage(path, 0, 0, "index", f"{problem.detail}; moved to {aside}"))
        return found

    def _aside(self, path: str) -> str:
        """A free name in damaged/."""
        directory = f"{self.path}/damaged"
        make_dirs(self._disk, directory)
        target = copy = f"{directory}/{path.rsplit('/', 1)[-1]}"
        at = 1
        while self._disk.entry(copy) is not None:
            copy, at = f"{target}.{at}", at + 1
        return copy

    def keep_original(self, path: str) -> None:
        """Copy a block with unsound bytes into damaged/ before it is replaced or removed."""
        copy = self._aside(path)
        file = self._disk.open(copy, "create_new")
        file.write_at(0, self._disk.read(path))
        file.sync_data()
        self._disk.sync_dir(copy.rsplit("/", 1)[0])

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

    def remove_guards(self, numbers: Iterable[int]) -> None:
        """Before these blocks go: a guard without its block says that the block was lost. On disk when this returns."""
        there = [path for path in map(self.guard_path, numbers) if self._disk.entry(path) is not None]
        for path in there:
            self._disk.remove_file(path)
        if there:
            self._disk.sync_dir(self.path)

    def guards(self) -> list[int]:
        """The blocks that have one."""
        if self._disk.entry(self.path) is None:
            return []
        names = (name for name, is_dir, _ in self._disk.list(self.path) if not is_dir)
        stems = (name.removesuffix(".guard") for name in names if name.endswith(".guard"))
        return sorted(int(stem) for stem in stems if stem.isdecimal() and len(stem) <= BLOCK_DIGITS_MAX)
