"""The audit of one stream: what its files say of each other.

    index.db, N.idx     against the blocks: counts, sums, messages that the index knows and the blocks do not have
    obs/<consumer>/     metadata, o.dat, the journal; positions that lie beyond the stream

A server that was killed leaves an index that is older than its blocks: that is a note. An index whose own hash
is wrong, or that describes exactly these blocks and disagrees with them, is damage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from headrace.errors import Damaged, KeyNeeded
from headrace.layouts.base import Damage
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import BlockLog, Disk
from headrace.layouts.jetstream.consumer_recovery import FoundConsumer, recover_consumers
from headrace.layouts.jetstream.inspector import BlockFacts, Expected, Range, Survey, scan_file, without
from headrace.layouts.jetstream.paths import INDEX, SIDE
from headrace.layouts.journal import SUFFIX, Journal

_TAIL_BYTES = 8
_CACHE_BYTES = 1 << 20
_SHOWN_MAX = 3


@dataclass(slots=True)
class Index:
    """index.db as decoded; `blocks` by number."""

    path: str
    told: dict[str, Any]
    blocks: dict[int, Expected]


@dataclass(slots=True)
class BlockIndex:
    """An N.idx of 2.6 or 2.9 that belongs to its block as it is."""

    path: str
    messages: int
    bytes: int
    expected: Expected


@dataclass(slots=True)
class Indexes:
    """Every index of a stream that could be read."""

    index: Index | None = None
    by_block: dict[int, BlockIndex] = field(default_factory=lambda: {})


def read_indexes(disk: Disk, found: Survey) -> Indexes:
    """Decode the indexes and tell every block what it should hold; what is wrong goes into the survey."""
    indexes = Indexes(_read_index_db(disk, found))
    for at, block in enumerate(found.blocks):
        told = _read_idx(disk, found, at)
        if told is not None:
            indexes.by_block[block.number] = told
        expected = told.expected if told is not None else None
        if indexes.index is not None:
            expected = indexes.index.blocks.get(block.number, expected)
        if expected is not None and found.writer is None:
            found.blocks[at] = replace(block, expected=expected)
    return indexes


def _read_index_db(disk: Disk, found: Survey) -> Index | None:
    path = f"{found.msgs_dir}/{INDEX}"
    if disk.entry(path) is None:
        return None
    raw = disk.read(path)
    try:
        if found.encrypted and found.secret is not None:
            plain = found.secret.open_file(disk, found.directory, found.stream, raw[:-_TAIL_BYTES])
            raw = plain + _kernels.highway_hash(sha256(found.stream.encode()).digest(), plain)
        told = _kernels.js_decode_index(path, raw, found.stream)
    except Damaged as problem:
        found.damage.append(
            Damage(path, problem.offset, len(raw), "index", f"{problem.seen}; it is not used")
        )
        return None
    blocks = {n: Expected(first, last, tuple(gone)) for n, _, first, _, last, _, gone in told["blocks"]}
    return Index(path, told, blocks)


def _read_idx(disk: Disk, found: Survey, at: int) -> BlockIndex | None:
    block = found.blocks[at]
    path = f"{found.msgs_dir}/{block.number}.idx"
    if disk.entry(path) is None:
        return None
    raw = disk.read(path, 1 << 30)
    try:
        if block.cipher is not None:
            cipher, seed, nonce = block.cipher
            raw = _kernels.crypt_open(cipher, seed, raw, nonce, file=path)
        tail = _plain_tail(disk, block.path, block.file_bytes, block.cipher)
        messages, size, first, _, last, _, deleted, fits = _kernels.js_decode_idx(path, raw, tail)
    except Damaged as problem:
        found.damage.append(
            Damage(path, problem.offset, len(raw), "index", f"{problem.seen}; it is not used")
        )
        return None
    if not fits:
        found.notes.append(f"{block.number}.idx does not describe {block.number}.blk as it is: not used")
        return None
    return BlockIndex(path, messages, size, Expected(first, last, tuple(deleted)))


def _plain_tail(disk: Disk, path: str, length: int, cipher: tuple[str, bytes, bytes] | None) -> bytes:
    if length < _TAIL_BYTES:
        return b""
    tail = disk.open(path, "read").read_at(length - _TAIL_BYTES, _TAIL_BYTES)
    return tail if cipher is None else _kernels.crypt_block(*cipher, tail, length - _TAIL_BYTES)


def audit_indexes(
    disk: Disk, found: Survey, indexes: Indexes, blocks: list[BlockFacts], threads: int = 2
) -> tuple[list[Damage], list[str]]:
    """Compare the indexes with the checked blocks: (damage, notes)."""
    damage: list[Damage] = []
    notes: list[str] = []
    if found.writer is not None:
        return damage, [f"{found.writer} is writing now: indexes were not compared with the blocks"]
    if any(block.problem for block in blocks) or (indexes.index is None and not indexes.by_block):
        return damage, notes
    index = indexes.index
    fresh = index is not None and _describes(index, blocks)
    if index is not None:
        if not fresh:
            notes.append(
                f"{INDEX} does not end where the blocks end: it is older, or the tail is gone; not used"
            )
        _audit_missing(disk, found, index, blocks, fresh, damage, notes)
    elif indexes.by_block:
        for facts in (facts for facts in blocks if facts.absent):
            damage.append(_missing(facts.file, facts.absent, f"{facts.number}.idx"))
    if not damage and not any(block.damage for block in blocks):
        damage += _audit_counts(disk, found, indexes, fresh, threads)
    return damage, notes


def _describes(index: Index, blocks: list[BlockFacts]) -> bool:
    """Whether index.db was written when the newest block ended as it ends now."""
    newest = next((facts for facts in blocks if facts.number == index.told["newest"]), None)
    if newest is None or not newest.newest:
        return False
    return newest.file_bytes == 0 or newest.last_hash == index.told["last_hash"].hex()


def _audit_missing(
    disk: Disk,
    found: Survey,
    index: Index,
    blocks: list[BlockFacts],
    fresh: bool,
    damage: list[Damage],
    notes: list[str],
) -> None:
    present = {facts.number for facts in blocks}
    absent = {facts.file: facts.absent for facts in blocks if facts.absent}
    for number, expected in index.blocks.items():
        if number not in present and expected.first <= expected.last:
            live = without(
                ((expected.first, expected.last + 1),), [(seq, seq + 1) for seq in expected.deleted]
            )
            if live:
                absent[f"{found.msgs_dir}/{number}.blk"] = live
    if not absent:
        return
    tombstones = [(seq, seq + 1) for block in found.blocks for seq, _ in scan_file(disk, block).tombstones]
    evidence = max((facts.last_seq or 0 for facts in blocks), default=0)
    evidence = max([evidence, *(after - 1 for _, after in tombstones)])
    for file, spans in absent.items():
        left = without(spans, tombstones)
        # What lies behind everything that the blocks hold cannot have been removed since: that leaves a trace.
        certain = left if fresh else without(left, [(0, evidence + 1)])
        if certain:
            damage.append(_missing(file, certain, INDEX))
        elif left:
            notes.append(f"an older {INDEX} knows messages {_shown(left)}: removed since, or lost")


def _missing(file: str, spans: tuple[Range, ...], index: str) -> Damage:
    count = sum(after - first for first, after in spans)
    detail = f"{count} messages that {index} knows are not there: {_shown(spans)}"
    return Damage(file, 0, 0, "missing", detail, spans[0][0], spans[-1][1])


def _shown(spans: tuple[Range, ...]) -> str:
    texts = [
        str(first) if after == first + 1 else f"{first}..{after - 1}" for first, after in spans[:_SHOWN_MAX]
    ]
    return ", ".join(texts) + (
        f" and {len(spans) - _SHOWN_MAX} more ranges" if len(spans) > _SHOWN_MAX else ""
    )


def scanned_log(
    disk: Disk,
    found: Survey,
    indexes: Indexes,
    *,
    threads: int = 2,
    cache_bytes: int = _CACHE_BYTES,
    leave_out: frozenset[int] = frozenset(),
) -> BlockLog:
    """The messages by a scan of every block (but those left out), less what the indexes say is gone."""
    log = BlockLog(disk, found.msgs_dir, f"{found.directory}/{SIDE}", found.stream, cache_bytes)
    blocks = [block for block in found.blocks if block.number not in leave_out]
    ciphers = {block.number: block.cipher for block in blocks if block.cipher is not None}
    log.open_by_scan([block.number for block in blocks], ciphers, threads)
    held = {number: (first, last) for number, first, last, *_ in log.blocks()}
    claims = {number: each.expected for number, each in indexes.by_block.items()}
    if indexes.index is not None:
        claims |= indexes.index.blocks
    for number, expected in claims.items():
        if number in held:
            first, last = held[number]
            log.forget([*range(first, min(expected.first, last + 1)), *expected.deleted])
    if indexes.index is not None:
        told = indexes.index.told
        log.evict_front(None, None, None, told["first"] if told["msgs"] else told["last"] + 1)
    return log


def _audit_counts(disk: Disk, found: Survey, indexes: Indexes, fresh: bool, threads: int) -> list[Damage]:
    """What the indexes say is gone taken away from the blocks: the rest must be what they count."""
    if indexes.index is not None and not fresh:
        return []
    log = scanned_log(disk, found, indexes, threads=threads)
    if indexes.index is not None:
        return _compare_totals(log, indexes.index, indexes.index.told)
    found_counts = {number: (msgs, size) for number, _, _, msgs, size, *_ in log.blocks()}
    return [
        Damage(each.path, 0, 0, "index", _differs(each.messages, each.bytes, *found_counts[number]))
        for number, each in indexes.by_block.items()
        if found_counts.get(number, (each.messages, each.bytes)) != (each.messages, each.bytes)
    ]


def _compare_totals(log: BlockLog, index: Index, told: dict[str, Any]) -> list[Damage]:
    messages, size, last, *_ = log.totals()
    if not told["adds_up"]:
        return [Damage(index.path, 0, 0, "index", "its totals are not the sum of its blocks")]
    if (told["msgs"], told["bytes"]) != (messages, size):
        return [Damage(index.path, 0, 0, "index", _differs(told["msgs"], told["bytes"], messages, size))]
    if last > told["last"]:
        return [
            Damage(
                index.path, 0, 0, "index", f"says the last sequence is {told['last']}, the blocks have {last}"
            )
        ]
    return []


def _differs(messages: int, size: int, seen_messages: int, seen_bytes: int) -> str:
    return f"says {messages} messages in {size} bytes, the blocks hold {seen_messages} in {seen_bytes}"


def audit_consumers(
    disk: Disk, found: Survey, last_seq: int
) -> tuple[list[FoundConsumer], list[Damage], list[str]]:
    """Every consumer as it would be recovered: (consumers, damage, notes)."""
    journal = Journal(disk, f"{found.directory}/{SIDE}", "consumers")
    try:
        told = recover_consumers(disk, found.directory, found.stream, journal, found.secret)
    except KeyNeeded:
        raise
    except Damaged as problem:
        return [], [Damage(problem.file, problem.offset, 0, "metadata", f"found {problem.seen}")], []
    damage: list[Damage] = []
    notes: list[str] = []
    for each in told.damage:
        in_journal = each.file.endswith(SUFFIX)
        if each.kind == "index" or (in_journal and (each.kind == "unsound-tail" or found.writer is not None)):
            notes.append(f"{each.file.rsplit('/', 1)[-1]}: {each.detail}")
        else:
            damage.append(each)
    for consumer in told.consumers:
        if found.writer is None and consumer.state.delivered.stream > last_seq:
            notes.append(
                f"consumer {consumer.name} has seen sequence {consumer.state.delivered.stream}, "
                f"the blocks end at {last_seq}"
            )
    return told.consumers, damage, notes
