"""What was given out, by every file that knows of it: is something missing that the blocks should hold?

    headrace/durable       the last sync: block, bytes of it, last sequence
    headrace/clean.json    the last sequence at a clean stop, and every block with its size
    headrace/N.guard       sealed block N was there, with so many bytes and records. A guard goes, durably, before its
                           block does: one without a block, or longer than its block, shows a loss
    headrace/producers, headrace/dedupe      sequences of messages with numbers or ids
    msgs/index.db          which messages lay in which block
    obs/, the journal      what consumers were sent

The newest block is never removed, so what any of them knows behind the last record and tombstone is lost. Another server
that worked on the directory since may have removed blocks and left our guards: an index.db that is newer shows that.
Nothing is written here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.paths import INDEX, SEQUENCE_MAX
from headrace.layouts.jetstream.recovery.spans import Range, count, shown, without
from headrace.layouts.jetstream.store.sidecar import (
    DEDUPE,
    GUARD_BYTES_MAX,
    MEMORY_BYTES_MAX,
    PRODUCERS,
    CleanStamp,
    DurableMark,
    Sidecar,
)

_PRODUCERS_MAGIC = b"HRP2"


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block file as it was found; `last` is 0 when there is no record in it, `first` then too."""

    file_bytes: int
    plain_bytes: int
    last_hash: bytes
    first: int = 0
    last: int = 0
    guard_covers: int = 0
    unsound: bool = False


@dataclass(slots=True)
class Held:
    """What the blocks of a stream were found to hold."""

    msgs_dir: str
    blocks: dict[int, HeldBlock]
    last: int
    """The highest sequence of any sound record or tombstone."""
    lost: list[Range] = field(default_factory=lambda: [])
    """Sequences of unsound bytes: they are reported where they lie."""

    @property
    def newest(self) -> int:
        return max(self.blocks, default=0)

    def path(self, number: int) -> str:
        return f"{self.msgs_dir}/{number}.blk"


@dataclass(slots=True)
class Evidence:
    """What follows from it."""

    last: int = 0
    """No sequence up to here may be given out again."""
    newest_block: int = 0
    """No block up to here may be made again."""
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])


@dataclass(frozen=True, slots=True)
class _Claim:
    what: str
    last: int
    certain: bool = True
    """It speaks of messages that were on disk."""


class _Index:
    """index.db, for what it says of single blocks."""

    def __init__(self, decoded: dict[str, Any], held: Held) -> None:
        self.decoded: dict[str, Any] = decoded
        self.last: int = decoded["last"]
        self.newest: int = decoded["newest"]
        self.entries: dict[int, tuple[int, int, list[int]]] = {
            number: (first, last, gone)
            for number, _, first, _, last, _, gone in decoded["blocks"]
            if first <= last
        }
        end = held.blocks.get(self.newest)
        self.fresh = (
            end is not None
            and self.newest == held.newest
            and (end.file_bytes == 0 or end.last_hash == decoded["last_hash"])
        )
        """It was written when the newest block ended as it ends now."""

    def live(self, number: int) -> tuple[Range, ...]:
        first, last, gone = self.entries[number]
        return without(((first, last + 1),), ((seq, seq + 1) for seq in gone))

    def gone(self) -> tuple[Range, ...]:
        """Sequences that it knows and does not call live."""
        live = [span for number in self.entries for span in self.live(number)]
        return without(((1, self.last + 1),), live)

    def explains(self, number: int, held: HeldBlock | None) -> bool:
        """Whether it was written after the block was sealed, and knew no more of it than is there."""
        if self.newest <= number:
            return False
        entry = self.entries.get(number)
        return entry is None or (held is not None and entry[1] <= held.last)


def examine(
    disk: Disk,
    stream_dir: str,
    held: Held,
    index: dict[str, Any] | None,
    consumer_seq: int,
    tombstones: Callable[[], Iterable[Range]],
) -> Evidence:
    """Compare what is there with what is known. `tombstones` are asked for only when whole blocks are missing."""
    side = Sidecar(disk, stream_dir)
    mark, decoded = side.read_mark(), None if index is None else _Index(index, held)
    orphans = _guards_without_block(disk, side, held)
    stamp = side.read_stamp()
    stamped = _stamped(stamp, decoded, held)
    claims = _claims(disk, side, mark, decoded, consumer_seq, held)
    if stamp is not None and stamp.whole:
        claims.append(_Claim("the stamp of a clean stop", stamp.last_seq))
    found = Evidence()
    found.newest_block = max(
        *(held.newest, 0, *orphans, *stamped),
        *(0 if mark is None else mark.block, 0 if decoded is None else decoded.newest),
    )
    # Where nothing else counts, as many records as the lost blocks held.
    records = sum(records for number, (_, records) in orphans.items() if number > held.newest)
    found.last = max([held.last, held.last + records, *(claim.last for claim in claims)])
    lost = _lost_end(held, decoded, claims)
    found.damage += _newest_block(held, mark, decoded, lost, claims)
    removed = cache(lambda: tuple(tombstones()))
    if decoded is not None:
        foreign = disk.entry(side.path) is None
        _blocks_of_index(held, decoded, {*orphans, *stamped}, foreign, removed, found)
    _missing_blocks(held, decoded, orphans, stamped, removed, found)
    _short_blocks(held, decoded, stamped, found)
    return found


def _missing_blocks(
    held: Held,
    index: _Index | None,
    orphans: dict[int, tuple[int, int]],
    stamped: dict[int, int],
    tombstones: Callable[[], Iterable[Range]],
    found: Evidence,
) -> None:
    """Blocks of which a guard or the stamp is left."""
    named = {each.file for each in found.damage}
    details = {
        number: f"at the last clean stop it had {size} bytes"
        for number, size in stamped.items()
        if number not in held.blocks
    }
    for number, (size, records) in orphans.items():
        if index is None or not index.explains(number, None):
            details[number] = f"its guard says that it held {records} records in {size} bytes"
    for number, detail in sorted(details.items()):
        if held.path(number) in named:
            continue
        gap = _gap(held, number, 0, 0, f"the block is not there; {detail}", found.last)
        if (
            gap.first_seq is None
            or gap.next_seq is None
            or without([(gap.first_seq, gap.next_seq)], tombstones())
        ):
            found.damage.append(gap)


def _short_blocks(held: Held, index: _Index | None, stamped: dict[int, int], found: Evidence) -> None:
    """Blocks that end in a sound record, but too early."""
    named = {each.file for each in found.damage}
    for number, block in held.blocks.items():
        if block.unsound or held.path(number) in named:
            continue
        guarded = block.guard_covers - block.plain_bytes
        if stamped.get(number, 0) > block.file_bytes:
            lacking, detail = (
                stamped[number] - block.file_bytes,
                f"at the last clean stop it had {stamped[number]} bytes",
            )
        elif guarded > 0 and (index is None or not index.explains(number, block)):
            lacking, detail = guarded, f"its guard covers {block.guard_covers} bytes"
        else:
            continue
        found.damage.append(_gap(held, number, block.file_bytes, lacking, f"cut short: {detail}", found.last))


def _stamped(stamp: CleanStamp | None, index: _Index | None, held: Held) -> dict[int, int]:
    """Block → size at the last clean stop, if nobody has written since."""
    if stamp is None or not stamp.whole or held.last > stamp.last_seq:
        return {}
    same = index is None or index.decoded["hash"].hex() == stamp.index_hash
    return stamp.blocks if same else {}


def _claims(
    disk: Disk, side: Sidecar, mark: DurableMark | None, index: _Index | None, consumer_seq: int, held: Held
) -> list[_Claim]:
    claims: list[_Claim] = []
    if mark is not None:
        claims.append(_Claim("the durable mark", mark.last))
    if mark is None or mark.block > held.newest or mark.last > held.last:
        # They may be large, and know nothing more where the blocks reach as far as the mark.
        claims.append(_Claim("what producers have sent", _producers_cover(disk, side)))
        claims.append(_Claim("the memory of message ids", _highest_id(disk, side), certain=False))
    if index is not None:
        claims.append(_Claim(INDEX, index.last))
    claims.append(_Claim("a consumer's position", consumer_seq))
    return claims


def _lost_end(held: Held, index: _Index | None, claims: list[_Claim]) -> tuple[Range, ...]:
    """Sequences behind everything that the blocks hold which were on disk once and are not known to be removed."""
    top = max((claim.last for claim in claims if claim.certain), default=0)
    if top <= held.last:
        return ()
    left = without(((held.last + 1, top + 1),), held.lost)
    return without(left, index.gone()) if left and index is not None else left


def _newest_block(
    held: Held, mark: DurableMark | None, index: _Index | None, lost: tuple[Range, ...], claims: list[_Claim]
) -> list[Damage]:
    """The block that was written last is missing, or shorter than it was, or other evidence goes beyond it."""
    seqs = (lost[0][0], lost[-1][1]) if lost else (None, None)
    if mark is not None and mark.bytes and held.last <= mark.last:
        purged = index is not None and index.fresh and index.decoded["first"] > mark.last
        block = held.blocks.get(mark.block)
        known = f"{mark.bytes} bytes of it were synced, up to sequence {mark.last}"
        if mark.block > held.newest and not purged:
            return [Damage(held.path(mark.block), 0, 0, "missing", f"the block is not there; {known}", *seqs)]
        packed = block is not None and block.plain_bytes != block.file_bytes
        if block is not None and not packed and not block.unsound and block.file_bytes < mark.bytes:
            lacking = mark.bytes - block.file_bytes
            return [
                Damage(
                    held.path(mark.block), block.file_bytes, lacking, "missing", f"cut short: {known}", *seqs
                )
            ]
    if not lost:
        return []
    what = max((claim for claim in claims if claim.certain), key=lambda claim: claim.last).what
    detail = (
        f"{count(lost)} messages are not there ({what} knows them, the blocks end at sequence {held.last}): "
        f"{shown(lost)}"
    )
    place = held.path(held.newest) if held.blocks else held.msgs_dir
    return [Damage(place, 0, 0, "missing", detail, *seqs)]


def _blocks_of_index(
    held: Held,
    index: _Index,
    proved: set[int],
    foreign: bool,
    tombstones: Callable[[], Iterable[Range]],
    found: Evidence,
) -> None:
    """Blocks that index.db knows and that are not there. What lies behind the end of the blocks is reported as that.
    Blocks go without a trace when their messages are evicted; in our stores something else proves that they did not."""
    absent = [number for number in index.entries if number not in held.blocks]
    if not absent:
        return
    removed = [*tombstones(), (held.last + 1, 1 << 64)]
    start = min((block.first for block in held.blocks.values() if block.first), default=held.last + 1)
    for number in absent:
        left = without(index.live(number), removed)
        if not left:
            continue
        if number in proved or (foreign and index.fresh and left[0][0] > start):
            detail = f"{count(left)} messages that {INDEX} knows are not there: {shown(left)}"
            seqs = (left[0][0], left[-1][1])
            found.damage.append(Damage(held.path(number), 0, 0, "missing", detail, *seqs))
        else:
            found.notes.append(f"an older {INDEX} knows messages {shown(left)}: removed since, or lost")


def _gap(held: Held, number: int, offset: int, length: int, detail: str, last: int) -> Damage:
    """A block is missing from an offset on: with the sequences between what is there of it and the next one."""
    below = [block.last for n, block in held.blocks.items() if n <= number]
    above = [block.first for n, block in held.blocks.items() if n > number and block.first]
    first, following = max(below, default=0) + 1, min(above, default=last + 1)
    seqs = (first, following) if first < following else (None, None)
    return Damage(held.path(number), offset, length, "missing", detail, *seqs)


def _guards_without_block(disk: Disk, side: Sidecar, held: Held) -> dict[int, tuple[int, int]]:
    """Block → (bytes, records) of every whole guard whose block is not there."""
    found: dict[int, tuple[int, int]] = {}
    for number in side.guards():
        if number not in held.blocks:
            try:
                extent = _kernels.js_guard_extent(disk.read(side.guard_path(number), GUARD_BYTES_MAX))
            except HeadraceError:
                continue
            if extent is not None:
                found[number] = extent
    return found


def _checked(disk: Disk, path: str) -> bytes:
    """What stands behind the CRC in front of a file; empty if that does not fit."""
    try:
        raw = disk.read(path, MEMORY_BYTES_MAX) if disk.entry(path) is not None else b""
    except HeadraceError:
        return b""
    return raw[4:] if zlib.crc32(raw[4:]).to_bytes(4, "little") == raw[:4] else b""


def _producers_cover(disk: Disk, side: Sidecar) -> int:
    """The last sequence whose message was taken into account when the numbers of producers were saved."""
    body = _checked(disk, f"{side.path}/{PRODUCERS}")
    if body[:4] == _PRODUCERS_MAGIC:
        body = body[8 : 8 + int.from_bytes(body[4:8], "little")]
    try:
        covers = msgspec.json.decode(body, type=list[Any])[2]
    except (msgspec.DecodeError, IndexError):
        return 0
    return covers if isinstance(covers, int) and covers <= SEQUENCE_MAX else 0


def _highest_id(disk: Disk, side: Sidecar) -> int:
    try:
        saved = msgspec.json.decode(_checked(disk, f"{side.path}/{DEDUPE}"), type=list[tuple[str, int, int]])
    except msgspec.DecodeError:
        return 0
    return max((seq for _, seq, _ in saved if seq <= SEQUENCE_MAX), default=0)
