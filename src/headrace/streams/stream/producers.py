"""What producers have done already, over restarts: exactly once into a stream beyond the duplicate window.

    Headrace-Producer: app/ORDERS           who sends
    Headrace-Producer-Seq: 41-44            message 44; 41 to 43 were left out on purpose (44 alone: no others)

The numbers of a stream's producers are bitmaps above a floor in the core (`Producers`). A message carries its own, so
nothing more is written when it is stored. At start they come from a checkpoint and from the records behind it, removed
ones too:

    state `producers` of the store "HRP2" │ length of the JSON, 4 bytes │ JSON │ bitmaps, one behind the other
      JSON                         version, when the stream was made, the last sequence that is covered and its time,
                                   [[producer, last use, floor, bytes of its bitmaps], …]
      bitmaps                      64-bit Roaring bitmaps in their portable form
    version 1                      JSON, which ends in [[producer, last use, [[first, last], …]], …]

It is saved before the first number of a stream is taken (no state: no numbers, nothing to read), before records go or
change, now and then, and at a clean stop; what it covers is on disk before the state is. One that cannot be read is not
used: all records are read, and the finding is reported. An empty one means just that: read all records.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import Damaged, HeadraceError
from headrace.streams._kernels import Judged, Producers
from headrace.streams.errors import api_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.layouts.stream_store import StreamStore

LOG = logging.getLogger("headrace.streams")
NAME = b"Headrace-Producer"
NUMBERS = b"Headrace-Producer-Seq"
PRODUCERS_MAX = 10_000
CLOSED_KEPT_NS = 3_600_000_000_000
"""A task that was given up may still be sending: what it sends to a closed producer is a duplicate."""
BYTES_MAX = 64 << 20
"""Of all numbers of a stream's producers."""
VERSION = 2
STATE = "producers"
_MAGIC = b"HRP2"
_SHOWN_BYTES = 64
_OLD_WIDTH_MAX = 1 << 32
"""A range of version 1 that is wider is not one that a client made of messages; as bits it would fill the memory."""


class KnownProducer(NamedTuple):
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

    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self.producers = Producers(PRODUCERS_MAX, BYTES_MAX)
        self._saved = (0, 0)
        """(covers, changes) of the file."""
        if store.config.mirror is None:
            self._restore()

    # At start

    def _restore(self) -> None:
        store, producers = self._store, self.producers
        in_memory = store.type() == "memory"
        if not in_memory and not store.has_saved(STATE):
            return
        above = 0 if in_memory else self._load()
        for batch in store.history(above=above):
            producers.take(batch, above)
        self._saved = (above, producers.changes if above == store.last_seq else -1)
        if len(producers) or above:
            producers.open()
        elif not in_memory:
            store.remove_saved(STATE)  # no record has a number: as if nobody ever used one
        if not above:
            self._save_if_possible()  # or the next start reads everything again

    def _save_if_possible(self) -> None:
        try:
            self.save()
        except HeadraceError as problem:
            LOG.warning(
                "stream %s: what producers have done is not saved, the records are read next time: %s",
                self._store.name,
                problem,
            )

    def _load(self) -> int:
        """Take what was saved; returns the last sequence that it covers, 0 if all records are to be read."""
        store = self._store
        try:
            content = store.load_saved(STATE)
            if content is None:
                return 0
            saved = self._read_bitmaps(content) if content.startswith(_MAGIC) else self._read_ranges(content)
        except Damaged as problem:
            return self._distrust(problem.seen)
        except (HeadraceError, msgspec.DecodeError) as problem:
            return self._distrust(str(problem))
        if isinstance(saved, str):
            return self._distrust(saved)
        if saved.covers > store.last_seq or store.time_of(saved.covers) not in (None, saved.covers_ns):
            LOG.warning(
                "stream %s: what producers have done is of other messages than it has: all of these are read",
                store.name,
            )
            return 0
        return saved.covers

    def _read_bitmaps(self, content: bytes) -> _Head | str:
        """Take a state of version 2; returns what it covers, or why it cannot be used."""
        at = 8 + int.from_bytes(content[4:8], "little")
        saved = msgspec.json.decode(content[8:at], type=_Saved)
        if (problem := self._foreign(saved, VERSION)) is not None:
            return problem
        if at + sum(size for *_, size in saved.producers) != len(content):
            return f"{len(content)} bytes, which is not what its head says"
        pieces = list[bytes]()
        for *_, size in saved.producers:
            pieces.append(content[at : at + size])
            at += size
        for (name, used_ns, floor, _), piece in zip(saved.producers, pieces, strict=True):
            self.producers.load(name.encode(), used_ns, floor, piece)
        return saved

    def _read_ranges(self, content: bytes) -> _Head | str:
        """The same for version 1."""
        saved = msgspec.json.decode(content, type=_SavedRanges)
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

    def _distrust(self, why: str) -> int:
        text = (
            f"what producers have done cannot be read ({why}); it is taken from the messages that are there"
        )
        self._store.report_unusable(STATE, text)
        return 0

    def promote(self) -> None:
        """The stream is a mirror no more: it knows what its messages say."""
        self._store.save(STATE, b"")
        self._restore()

    # While it runs

    def ensure_ready(self, name: bytes | None, numbers: bytes | None) -> None:
        """The kernel can take a message's numbers when this returns; ApiError if they cannot be taken."""
        verdict = self._judged(name, numbers).verdict
        if verdict == "malformed":
            shown = f"{_shown(name)} and {_shown(numbers)}"
            raise api_error("HRProducerHeaderF", seen=shown)
        if verdict in ("bytes", "producers"):
            raise api_error(
                f"HRProducer{verdict.title()}ExceededF", producer=_shown(name), max=_limit(verdict)
            )
        if not self.producers.is_open:
            self._begin()

    def _judged(self, name: bytes | None, numbers: bytes | None) -> Judged:
        """Where there are too many, those that are closed for long make room."""
        judged = self.producers.judge(name, numbers)
        if judged.verdict == "producers" and self.producers.drop_closed(self._store.clock() - CLOSED_KEPT_NS):
            judged = self.producers.judge(name, numbers)
        return judged

    def _begin(self) -> None:
        """The first number of the stream: a start after a crash must know that there are some."""
        if self._store.type() != "memory":
            with self._store.lock:
                self._write(self._store.last_seq)
        self.producers.open()

    def taken_back(self) -> None:
        """A batch failed: of its numbers those stay whose messages are in the store."""
        self.producers.stored(self._store.complete)
        self.producers.forget()

    def check_space(self, name: str) -> None:
        """Whether one more producer may be named by hand; ApiError if not, or if that is no name."""
        verdict = self._judged(name.encode(), b"0").verdict
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
            covers = store.last_seq if unsure is None else unsure - 1
            if (covers, producers.changes) != self._saved:
                self._write(covers)
                self._saved = (covers, producers.changes if unsure is None else -1)

    def _write(self, covers: int) -> None:
        store = self._store
        producers, bitmaps = list[tuple[str, int, int, int]](), list[bytes]()
        for name, used_ns, floor, bits in self.producers.export():
            producers.append((name, used_ns, floor, len(bits)))
            bitmaps.append(bits)
        head = msgspec.json.encode(
            _Saved(VERSION, store.created_ns, covers, store.time_of(covers) or 0, producers)
        )
        store.sync()
        store.save(STATE, b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, *bitmaps)))

    # By hand

    def raise_floor(self, name: str, below: int, now_ns: int) -> None:
        """Everything below a number is done; saved when this returns, or nothing has changed."""
        with self._store.lock:
            before = self._one(name)
            if not self.producers.is_open:
                self._begin()
            self.producers.raise_floor(name.encode(), below, now_ns)
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

    def known(self, names: Sequence[str], ranges_max: int) -> list[KnownProducer]:
        """What is to be seen of producers; those that are not there are left out."""
        with self._store.lock:
            self.producers.stored(self._store.complete)
            found = ((name, self.producers.shown(name.encode(), ranges_max)) for name in names)
            return [KnownProducer(name, *shown) for name, shown in found if shown is not None]

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
    return BYTES_MAX >> 20 if verdict == "bytes" else PRODUCERS_MAX
