"""What producers have done already, over restarts: exactly once into a stream beyond the duplicate window.

    Headrace-Producer: app/ORDERS           who sends
    Headrace-Producer-Seq: 41-44            message 44; 41 to 43 were left out on purpose (44 alone: no others)

The numbers of a stream's producers are bitmaps above a floor in the core (`Producers`). A message carries its own, so
nothing more is written when it is stored. At start they come from a checkpoint and from the records behind it, removed
ones too:

    <stream>/headrace/producers    CRC-32 │ "HRP2" │ length of the JSON, 4 bytes │ JSON │ bitmaps, one behind the other
      JSON                         version, when the stream was made, the last sequence that is covered and its time,
                                   [[producer, last use, floor, bytes of its bitmaps], …]
      bitmaps                      64-bit Roaring bitmaps in their portable form
    version 1                      CRC-32 │ JSON, which ends in [[producer, last use, [[first, last], …]], …]

It is written before the first number of a stream is taken (no file: no numbers, nothing to read), before records go or
change, now and then, and at a clean stop; what it covers is on disk before the file is. One that cannot be read is not
used: all records are read, and the finding is told. An empty one means just that: read all records.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.jetstream.paths import make_dirs
from headrace.layouts.jetstream.sidecar import PRODUCERS
from headrace.streams._kernels import Producers
from headrace.streams.errors import api_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.layouts.jetstream.store import FileStreamStore

LOG = logging.getLogger("headrace.streams")
NAME = b"Headrace-Producer"
NUMBERS = b"Headrace-Producer-Seq"
PRODUCERS_MAX = 10_000
CLOSED_KEPT_NS = 3_600_000_000_000
"""A task that was given up may still be sending: what it sends to a closed producer is a duplicate."""
BYTES_MAX = 64 << 20
"""Of all numbers of a stream's producers."""
VERSION = 2
_MAGIC = b"HRP2"
_SHOWN_BYTES = 64
_FILE_BYTES_MAX = 128 << 20
_OLD_WIDTH_MAX = 1 << 32
"""A range of version 1 that is wider is not one that a client made of messages; as bits it would fill the memory."""


class Known(NamedTuple):
    """What there is to see of a producer."""

    name: str
    used_ns: int
    floor: int
    numbers: int
    """How many are done above the floor; `ranges` has the first of them."""
    ranges: list[tuple[int, int]]


class _Head(msgspec.Struct, array_like=True):
    version: int
    made_ns: int
    covers: int
    covers_ns: int


class _Saved(_Head, array_like=True):
    producers: list[tuple[str, int, int, int]]


class _SavedRanges(_Head, array_like=True):
    producers: list[tuple[str, int, list[tuple[int, int]]]]


class ProducerMarks:
    """The numbers of one stream. A mirror keeps none: it takes what its origin has taken."""

    def __init__(self, store: FileStreamStore) -> None:
        self._store = store
        self._path = f"{store.sidecar.path}/{PRODUCERS}"
        self.producers = Producers(PRODUCERS_MAX, BYTES_MAX)
        self._saved = (0, 0)
        """(covers, changes) of the file."""
        if store.config.mirror is None:
            self._restore()

    # At start

    def _restore(self) -> None:
        store, producers = self._store, self.producers
        in_memory = store.type() == "memory"
        if not in_memory and store.disk.entry(self._path) is None:
            return
        above = 0 if in_memory else self._load()
        for batch in store.history(lambda block: block[2] > above):
            producers.take(batch, above)
        self._saved = (above, producers.changes if above == store.log.totals()[2] else -1)
        if len(producers) or above:
            producers.open()
        elif not in_memory:
            store.disk.remove_file(self._path)  # no record tells of a number: as if nobody ever used one
        if not above:
            self._save_if_possible()  # or the next start reads everything again

    def _save_if_possible(self) -> None:
        try:
            self.save()
        except HeadraceError as problem:
            LOG.warning("%s: not saved, the records are read next time: %s", self._path, problem)

    def _load(self) -> int:
        """Take what was saved; returns the last sequence that it covers, 0 if all records are to be read."""
        store = self._store
        try:
            raw = store.disk.read(self._path, _FILE_BYTES_MAX)
            if not raw:
                return 0
            if zlib.crc32(raw[4:]).to_bytes(4, "little") != raw[:4]:
                return self._distrust("its checksum does not fit", len(raw))
            saved = self._read_bitmaps(raw) if raw[4:8] == _MAGIC else self._read_ranges(raw)
        except (HeadraceError, msgspec.DecodeError) as problem:
            return self._distrust(str(problem))
        if isinstance(saved, str):
            return self._distrust(saved, len(raw))
        found = store.log.load(saved.covers) if saved.covers else None
        if saved.covers > store.log.totals()[2] or (found is not None and found[1] != saved.covers_ns):
            LOG.warning("%s covers other messages than the stream has: all of these are read", self._path)
            return 0
        return saved.covers

    def _read_bitmaps(self, raw: bytes) -> _Head | str:
        """Take a file of version 2; returns what it covers, or why it cannot be used."""
        at = 12 + int.from_bytes(raw[8:12], "little")
        saved = msgspec.json.decode(raw[12:at], type=_Saved)
        if (problem := self._foreign(saved, VERSION)) is not None:
            return problem
        if at + sum(each[3] for each in saved.producers) != len(raw):
            return f"{len(raw)} bytes, which is not what its head tells"
        pieces = list[bytes]()
        for *_, size in saved.producers:
            pieces.append(raw[at : at + size])
            at += size
        for (name, used_ns, floor, _), piece in zip(saved.producers, pieces, strict=True):
            self.producers.load(name.encode(), used_ns, floor, piece)
        return saved

    def _read_ranges(self, raw: bytes) -> _Head | str:
        """The same for version 1."""
        saved = msgspec.json.decode(raw[4:], type=_SavedRanges)
        if (problem := self._foreign(saved, 1)) is not None:
            return problem
        for name, _, ranges in saved.producers:
            wide = next((each for each in ranges if each[0] and each[1] - each[0] >= _OLD_WIDTH_MAX), None)
            if wide is not None:
                return f"producer {name!r} has the range {wide[0]}-{wide[1]}, too wide to keep"
        for name, used_ns, ranges in saved.producers:
            self.producers.put(name.encode(), ranges, used_ns)
        return saved

    def _foreign(self, head: _Head, version: int) -> str | None:
        if head.version == version and head.made_ns == self._store.created_ns:
            return None
        return f"version {head.version} of a stream made at {head.made_ns}"

    def _distrust(self, why: str, size: int = 0) -> int:
        text = (
            f"what producers have done cannot be read ({why}); it is taken from the messages that are there"
        )
        LOG.warning("%s: %s", self._path, text)
        self._store.note_damage(Damage(self._path, 0, size, "metadata", text))
        return 0

    def promote(self) -> None:
        """The stream is a mirror no more: it knows what its messages tell."""
        store = self._store
        if store.type() != "memory":
            store.disk.replace_file(self._path, b"")
        self._restore()

    # While it runs

    def judge(self, name: bytes | None, numbers: bytes | None) -> tuple[int, int] | None:
        """The numbers that a message adds, None if it is done already; ApiError if it cannot be taken."""
        verdict, first, last = self._judged(name, numbers)
        if verdict == "malformed":
            shown = f"{_shown(name)} and {_shown(numbers)}"
            raise api_error("HRProducerHeaderF", seen=shown)
        if verdict in ("room", "producers"):
            raise api_error(
                f"HRProducer{verdict.title()}ExceededF", producer=_shown(name), max=_limit(verdict)
            )
        if verdict == "done":
            return None
        if not self.producers.is_open:
            self._begin()
        return first, last

    def _judged(self, name: bytes | None, numbers: bytes | None) -> tuple[str, int, int]:
        """Where there are too many, those that are closed for long make room."""
        judged = self.producers.judge(name, numbers)
        if judged[0] == "producers" and self.producers.drop_closed(self._store.clock() - CLOSED_KEPT_NS):
            judged = self.producers.judge(name, numbers)
        return judged

    def _begin(self) -> None:
        """The first number of the stream: a start after a crash must know that there are some."""
        if self._store.type() != "memory":
            with self._store.lock:
                self._write(self._store.log.totals()[2])
        self.producers.open()

    def taken_back(self) -> None:
        """A batch failed: of its numbers those stay whose messages are in the store."""
        self.producers.stored(self._store.complete)
        self.producers.forget()

    def check_room(self, name: str) -> None:
        """Whether one more producer may be named by hand; ApiError if not, or if that is no name."""
        verdict = self._judged(name.encode(), b"0")[0]
        if verdict == "malformed":
            raise api_error("HRProducerRequestF", err=f"{name!r} is no name of a producer")
        if verdict == "producers":
            raise api_error("HRProducerProducersExceededF", producer=name, max=PRODUCERS_MAX)

    # Saving

    def stop(self) -> None:
        """A clean stop: the next start has nothing to read."""
        self._save_if_possible()

    def checkpoint(self, sequence: int) -> None:
        """Save, unless the file covers the messages up to a sequence."""
        if self._saved[0] < sequence:
            self.save()

    def save_changes(self) -> None:
        """Save, if there are numbers that the file does not have."""
        if self.producers.changes != self._saved[1]:
            self.save()

    def save(self) -> None:
        """Save, unless the file says the same; what it covers is on disk before. Synced when this returns."""
        store, producers = self._store, self.producers
        if not producers.is_open or store.type() == "memory":
            return
        with store.lock:
            producers.stored(store.complete)
            unsure = producers.unsure_from
            covers = store.log.totals()[2] if unsure is None else unsure - 1
            if (covers, producers.changes) != self._saved:
                self._write(covers)
                self._saved = (covers, producers.changes if unsure is None else -1)

    def _write(self, covers: int) -> None:
        store, log = self._store, self._store.log
        found = log.load(covers) if covers else None
        producers, bitmaps = list[tuple[str, int, int, int]](), list[bytes]()
        for name, used_ns, floor, bits in self.producers.export():
            producers.append((name, used_ns, floor, len(bits)))
            bitmaps.append(bits)
        head = msgspec.json.encode(
            _Saved(VERSION, store.created_ns, covers, found[1] if found is not None else 0, producers)
        )
        body = b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, *bitmaps))
        mark = log.totals()[3]
        if log.durable()[0] < mark:
            log.commit(mark)
            store.publish()
        make_dirs(store.disk, store.sidecar.path)
        store.disk.replace_file(self._path, zlib.crc32(body).to_bytes(4, "little") + body)

    # By hand

    def settle(self, name: str, below: int, now_ns: int) -> None:
        """Everything below a number is done; saved when this returns, or nothing has changed."""
        with self._store.lock:
            before = self._one(name)
            if not self.producers.is_open:
                self._begin()
            self.producers.settle(name.encode(), below, now_ns)
            self._save_or(name, before)

    def delete(self, name: str) -> bool:
        """Forget a producer; False if there is none of that name."""
        with self._store.lock:
            before = self._one(name)
            if before is None:
                return False
            self.producers.remove(name.encode())
            self._save_or(name, before)
            return True

    def names(self) -> list[str]:
        """Of all producers, in order."""
        with self._store.lock:
            return self.producers.names()

    def known(self, names: Sequence[str], ranges_max: int) -> list[Known]:
        """What is to be seen of producers; those that are not there are left out."""
        with self._store.lock:
            self.producers.stored(self._store.complete)
            found = ((name, self.producers.shown(name.encode(), ranges_max)) for name in names)
            return [Known(name, *shown) for name, shown in found if shown is not None]

    def _one(self, name: str) -> tuple[str, int, int, bytes] | None:
        self.producers.stored(self._store.complete)
        return self.producers.saved(name.encode())

    def _save_or(self, name: str, before: tuple[str, int, int, bytes] | None) -> None:
        try:
            self.save()
        except HeadraceError as problem:
            self.producers.remove(name.encode())
            if before is not None:
                self.producers.load(name.encode(), *before[1:])
            raise api_error("HRProducerSaveF", err=problem) from problem


def _shown(value: bytes | None) -> str:
    if value is None:
        return "none"
    return repr(value[:_SHOWN_BYTES].decode(errors="replace")) + ("…" if len(value) > _SHOWN_BYTES else "")


def _limit(verdict: str) -> int:
    return BYTES_MAX >> 20 if verdict == "room" else PRODUCERS_MAX
