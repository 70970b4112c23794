"""The audit of one stream: what its files say of each other.

    index.db, N.idx     against the blocks: counts, sums, messages that the index knows and the blocks do not have
    obs/<consumer>/     metadata, o.dat, the journal
    all evidence        of messages that were given out, against the end of the blocks (evidence.py)

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
from headrace.layouts.jetstream.checks.inspector import BlockFacts, Expected, Survey, scan_file
from headrace.layouts.jetstream.consumers.recovery import ConsumerRecovery, recover_consumers
from headrace.layouts.jetstream.paths import INDEX, INDEX_BYTES_MAX, SIDE
from headrace.layouts.jetstream.recovery.evidence import Evidence, Held, HeldBlock, examine
from headrace.layouts.jetstream.recovery.spans import Range, count, shown, without
from headrace.layouts.jetstream.store.sidecar import SIDE_FILES
from headrace.layouts.journal import SUFFIX, Journal
from headrace.layouts.shortcuts import read_shortcut

_TAIL_BYTES = 8
_CACHE_BYTES = 1 << 20


@dataclass(slots=True)
class Index:
    """index.db as decoded; `blocks` by number."""

    path: str
    decoded: dict[str, Any]
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
    """Decode the indexes and give every block what it should hold; what is wrong goes into the survey."""
    for name, bytes_max in SIDE_FILES.items():
        if name in found.side_names:
            read_shortcut(disk, f"{found.directory}/{SIDE}/{name}", bytes_max, found.damage)
    indexes = Indexes(_read_index_db(disk, found))
    for at, block in enumerate(found.blocks):
        decoded = _read_idx(disk, found, at)
        if decoded is not None:
            indexes.by_block[block.number] = decoded
        expected = decoded.expected if decoded is not None else None
        if indexes.index is not None:
            expected = indexes.index.blocks.get(block.number, expected)
        if expected is not None and found.writer is None:
            found.blocks[at] = replace(block, expected=expected)
    return indexes


def _read_index_db(disk: Disk, found: Survey) -> Index | None:
    path = f"{found.msgs_dir}/{INDEX}"
    raw = read_shortcut(disk, path, INDEX_BYTES_MAX, found.damage)
    if raw is None:
        return None
    try:
        if found.encrypted and found.secret is not None:
            plain = found.secret.open_file(disk, found.directory, found.stream, raw[:-_TAIL_BYTES])
            raw = plain + _kernels.highway_hash(sha256(found.stream.encode()).digest(), plain)
        decoded = _kernels.js_decode_index(path, raw, found.stream)
    except Damaged as problem:
        found.damage.append(
            Damage(path, problem.offset, len(raw), "index", f"{problem.seen}; it is not used")
        )
        return None
    blocks = {n: Expected(first, last, tuple(gone)) for n, _, first, _, last, _, gone in decoded["blocks"]}
    return Index(path, decoded, blocks)


def _read_idx(disk: Disk, found: Survey, at: int) -> BlockIndex | None:
    block = found.blocks[at]
    path = f"{found.msgs_dir}/{block.number}.idx"
    raw = read_shortcut(disk, path, INDEX_BYTES_MAX, found.damage)
    if raw is None:
        return None
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
        _audit_absent(disk, found, blocks, fresh, damage, notes)
    elif indexes.by_block:
        for facts in (facts for facts in blocks if facts.absent):
            damage.append(_missing(facts.file, facts.absent, f"{facts.number}.idx"))
    present = {facts.number for facts in blocks}
    removed = index is not None and any(
        each.first <= each.last and number not in present for number, each in index.blocks.items()
    )
    if not damage and not removed and not any(block.damage for block in blocks):
        damage += _audit_counts(disk, found, indexes, fresh, threads)
    return damage, notes


def _describes(index: Index, blocks: list[BlockFacts]) -> bool:
    """Whether index.db was written when the newest block ended as it ends now."""
    newest = next((facts for facts in blocks if facts.number == index.decoded["newest"]), None)
    if newest is None or not newest.newest:
        return False
    return newest.file_bytes == 0 or newest.last_hash == index.decoded["last_hash"].hex()


def _audit_absent(
    disk: Disk, found: Survey, blocks: list[BlockFacts], fresh: bool, damage: list[Damage], notes: list[str]
) -> None:
    """Messages that index.db knows in blocks that are there. Blocks that are not: see `audit_evidence`."""
    absent = {facts.file: facts.absent for facts in blocks if facts.absent}
    if not absent:
        return
    # What lies behind everything that the blocks hold is `audit_evidence`'s too.
    end = max(facts.last_known for facts in blocks)
    gone = [*_tombstones(disk, found), (end + 1, 1 << 64)]
    for file, spans in absent.items():
        left = without(spans, gone)
        if left and fresh:
            damage.append(_missing(file, left, INDEX))
        elif left:
            notes.append(f"an older {INDEX} knows messages {shown(left)}: removed since, or lost")


def _tombstones(disk: Disk, found: Survey) -> list[Range]:
    return [(seq, seq + 1) for block in found.blocks for seq, _ in scan_file(disk, block).tombstones]


def _missing(file: str, spans: tuple[Range, ...], index: str) -> Damage:
    detail = f"{count(spans)} messages that {index} knows are not there: {shown(spans)}"
    return Damage(file, 0, 0, "missing", detail, spans[0][0], spans[-1][1])


def audit_evidence(
    disk: Disk, found: Survey, indexes: Indexes, blocks: list[BlockFacts], consumer_seq: int
) -> Evidence:
    """Whether anything beside the blocks knows of more than they hold. Not asked while somebody writes, nor where a
    block could not be read: what it holds is not known."""
    if found.writer is not None or any(facts.problem for facts in blocks):
        return Evidence()
    ends = [each.expected.last for each in indexes.by_block.values()]
    held = Held(found.msgs_dir, {}, max([0, *(facts.last_known for facts in blocks), *ends]))
    for facts in blocks:
        held.blocks[facts.number] = HeldBlock(
            facts.file_bytes,
            facts.plain_bytes,
            bytes.fromhex(facts.last_hash),
            facts.first_seq or 0,
            facts.last_seq or 0,
            facts.guard_covers,
            any(each.kind != "order" for each in facts.damage),
        )
        held.lost += [
            (each.first_seq, each.next_seq)
            for each in facts.damage
            if each.first_seq is not None and each.next_seq is not None
        ]
    decoded = None if indexes.index is None else indexes.index.decoded
    return examine(disk, found.directory, held, decoded, consumer_seq, lambda: _tombstones(disk, found))


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
    held = {block.number: block for block in log.blocks()}
    claims = {number: each.expected for number, each in indexes.by_block.items()}
    if indexes.index is not None:
        claims |= indexes.index.blocks
    for number, expected in claims.items():
        if number in held:
            block = held[number]
            log.forget([*range(block.first_seq, min(expected.first, block.last_seq + 1)), *expected.deleted])
    if indexes.index is not None:
        decoded = indexes.index.decoded
        log.evict_front(None, None, None, decoded["first"] if decoded["msgs"] else decoded["last"] + 1)
    return log


def _audit_counts(disk: Disk, found: Survey, indexes: Indexes, fresh: bool, threads: int) -> list[Damage]:
    """What the indexes say is gone taken away from the blocks: the rest must be what they count."""
    if indexes.index is not None and not fresh:
        return []
    log = scanned_log(disk, found, indexes, threads=threads)
    if indexes.index is not None:
        return _compare_totals(log, indexes.index, indexes.index.decoded)
    found_counts = {block.number: (block.messages, block.bytes) for block in log.blocks()}
    return [
        Damage(each.path, 0, 0, "index", _differs(each.messages, each.bytes, *found_counts[number]))
        for number, each in indexes.by_block.items()
        if found_counts.get(number, (each.messages, each.bytes)) != (each.messages, each.bytes)
    ]


def _compare_totals(log: BlockLog, index: Index, decoded: dict[str, Any]) -> list[Damage]:
    messages, size, last = log.messages, log.live_bytes, log.last_seq
    if not decoded["adds_up"]:
        return [Damage(index.path, 0, 0, "index", "its totals are not the sum of its blocks")]
    if (decoded["msgs"], decoded["bytes"]) != (messages, size):
        return [
            Damage(index.path, 0, 0, "index", _differs(decoded["msgs"], decoded["bytes"], messages, size))
        ]
    if last > decoded["last"]:
        return [
            Damage(
                index.path,
                0,
                0,
                "index",
                f"says the last sequence is {decoded['last']}, the blocks have {last}",
            )
        ]
    return []


def _differs(messages: int, size: int, seen_messages: int, seen_bytes: int) -> str:
    return f"says {messages} messages in {size} bytes, the blocks hold {seen_messages} in {seen_bytes}"


def audit_consumers(disk: Disk, found: Survey) -> tuple[ConsumerRecovery, list[Damage], list[str]]:
    """Every consumer as it would be recovered: (consumers and what they have seen, damage, notes)."""
    journal = Journal(disk, f"{found.directory}/{SIDE}", "consumers")
    try:
        decoded = recover_consumers(disk, found.directory, found.stream, journal, found.secret)
    except KeyNeeded:
        raise
    except Damaged as problem:
        return (
            ConsumerRecovery(),
            [Damage(problem.file, problem.offset, 0, "metadata", f"found {problem.seen}")],
            [],
        )
    damage: list[Damage] = []
    notes: list[str] = []
    for each in decoded.damage:
        in_journal = each.file.endswith(SUFFIX)
        if each.kind == "index" or (in_journal and (each.kind == "unsound-tail" or found.writer is not None)):
            notes.append(f"{each.file.rsplit('/', 1)[-1]}: {each.detail}")
        else:
            damage.append(each)
    return decoded, damage, notes
