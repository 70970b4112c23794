"""Opening a stream's messages: from any era, after any kind of stop.

Order: finish a purge that was under way → a clean stop of ours is believed as stamped → otherwise every
block is scanned → what indexes know of removed messages is applied → the next sequence is chosen from all
evidence. Nothing is cut. Read-only opening writes nothing and follows the same steps in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.errors import Damaged, HeadraceError, KeyNeeded
from headrace.layouts.base import Damage
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import BlockLog, Disk, OpenedBlock
from headrace.layouts.jetstream.paths import (
    BLOCK_MAX,
    INDEX,
    INDEX_BYTES_MAX,
    MSGS,
    MSGS_NEW,
    MSGS_OLD,
    SEQUENCE_MAX,
    block_numbers,
    files_with,
    misplaced,
)
from headrace.layouts.jetstream.recovery.evidence import Held, HeldBlock, examine
from headrace.layouts.jetstream.recovery.spans import Range
from headrace.layouts.jetstream.sealed import StoreKey
from headrace.layouts.jetstream.store.sidecar import DurableMark, Sidecar
from headrace.layouts.shortcuts import read_shortcut

SCAN_THREADS = min(4, os.cpu_count() or 1)
_IDX_TAIL = 8


@dataclass
class RecoveredStream:
    """The opened log and what the writer has to know of it."""

    log: BlockLog
    msgs_dir: str
    clean: bool = False
    damage: list[Damage] = field(default_factory=lambda: [])
    unsound: list[int] = field(default_factory=lambda: [])
    """Blocks with bytes that are not sound: nothing is appended to them."""
    forgotten: list[tuple[int, int]] = field(default_factory=lambda: [])
    """Messages that only an index of an older era knows to be gone: they need tombstones."""
    raised_to: int = 0
    """The last sequence was raised to this by evidence beyond the sound records (0: it was not)."""
    newest_block: int = 0
    """The highest block that anything knows of: a new one gets a higher number."""
    era: str = "2.15"
    live: bool = False
    """A reader beside a Headrace writer."""


def finish_purge(disk: Disk, stream_dir: str) -> None:
    """Complete or undo a purge that a crash interrupted, as the server would."""
    new, old, msgs = (f"{stream_dir}/{name}" for name in (MSGS_NEW, MSGS_OLD, MSGS))
    if disk.entry(new) is not None:
        if disk.entry(msgs) is None or _holds_a_purge(disk, stream_dir):
            if disk.entry(msgs) is not None:
                if disk.entry(old) is not None:
                    disk.remove_dir_all(old)
                disk.rename(msgs, old)
            disk.rename(new, msgs)
        else:
            disk.remove_dir_all(new)
        disk.sync_dir(stream_dir)
    if disk.entry(old) is not None:
        if disk.entry(msgs) is None:
            # Killed between the two renames with nothing new in place: the old messages are all there is.
            disk.rename(old, msgs)
        else:
            disk.remove_dir_all(old)
        disk.sync_dir(stream_dir)


def _holds_a_purge(disk: Disk, stream_dir: str) -> bool:
    """Whether the new directory is complete: its tombstone, the only proof of the last sequence, is there."""
    new, stream = f"{stream_dir}/{MSGS_NEW}", stream_dir.rsplit("/", 1)[-1]
    if files_with(disk, new, ".key"):
        return bool(block_numbers(disk, new))
    for number in block_numbers(disk, new):
        seen = _kernels.js_scan_block(disk, f"{new}/{number}.blk", stream, number)
        if seen.tombstones or len(seen.batch):
            return True
    return False


def messages_dir(disk: Disk, stream_dir: str) -> str:
    """Where the messages are, also in the middle of a purge, without changing anything."""
    if _holds_a_purge(disk, stream_dir):
        return f"{stream_dir}/{MSGS_NEW}"
    for name in (MSGS, MSGS_NEW, MSGS_OLD):
        if block_numbers(disk, f"{stream_dir}/{name}"):
            return f"{stream_dir}/{name}"
    return f"{stream_dir}/{MSGS}"


def recover(
    disk: Disk,
    stream_dir: str,
    stream: str,
    *,
    cache_bytes: int,
    secret: StoreKey | None = None,
    consumer_seq: int = 0,
    read_only: bool = True,
    trust_stamp: bool = True,
) -> RecoveredStream:
    """Open the messages of a stream. `consumer_seq` is the highest one that a consumer has seen."""
    msgs_dir = messages_dir(disk, stream_dir)
    sidecar = Sidecar(disk, stream_dir)
    # Before any block is listed or read: a mark read later could cover bytes whose writing we saw half done.
    mark, live = sidecar.read_mark(), read_only and disk_is_live(disk, stream_dir)
    log = BlockLog(disk, msgs_dir, sidecar.path, stream, cache_bytes)
    found = RecoveredStream(log, msgs_dir)
    blocks = block_numbers(disk, msgs_dir)
    found.damage += misplaced(disk, msgs_dir)
    ciphers = _ciphers(disk, msgs_dir, stream, blocks, secret)
    index = _read_index(disk, stream_dir, msgs_dir, stream, secret, found)
    if index is not None and not ciphers and trust_stamp and _stopped_clean(sidecar, index, blocks):
        try:
            log.open_by_index(index, stream, blocks)
            found.clean = True
            return found
        except HeadraceError as problem:
            path = f"{msgs_dir}/{INDEX}"
            found.damage.append(Damage(path, 0, len(index), "index", f"not used: {problem}"))
            log = found.log = BlockLog(disk, msgs_dir, sidecar.path, stream, cache_bytes)
    report, last, plausible = log.open_by_scan(list(blocks), ciphers, SCAN_THREADS)
    found.unsound = [block.number for block in report if block.unsound_tail]
    found.unsound += [
        each.block for each in log.findings() if each.kind != "order" and each.block not in found.unsound
    ]
    decoded = None if index is None else _kernels.js_decode_index(INDEX, index, stream)
    held = _held(log, msgs_dir, report, last, found)
    _apply_idx_files(disk, msgs_dir, blocks, ciphers, found)
    held.last = log.last_seq
    # A file that says more than can be was not written by a server.
    consumer_seq = consumer_seq if consumer_seq <= SEQUENCE_MAX else 0
    evidence = max(plausible, consumer_seq)
    live = found.live = live or (read_only and disk_is_live(disk, stream_dir))
    if not live:
        tombstones = partial(_tombstones, disk, msgs_dir, stream, blocks, ciphers)
        seen = examine(disk, stream_dir, held, decoded, consumer_seq, tombstones)
        found.damage += seen.damage
        found.newest_block = seen.newest_block if seen.newest_block <= BLOCK_MAX else 0
        evidence = max(evidence, seen.last if seen.last <= SEQUENCE_MAX else 0)
    if decoded is not None:
        evidence = max(evidence, _apply_index(log, decoded))
    if evidence > log.last_seq:
        found.raised_to = evidence
        log.raise_last(evidence, 0)
    if mark is not None and live:
        _hide_undurable(log, mark)
    return found


def disk_is_live(disk: Disk, stream_dir: str) -> bool:
    """Whether a Headrace writer has the volume of this stream open now."""
    root = stream_dir.split("/jetstream/")[0]
    try:
        return disk.lock_holder(f"{root}/headrace.lock") is not None
    except HeadraceError:
        return False


def _hide_undurable(log: BlockLog, mark: DurableMark) -> None:
    """Beside a live writer nothing above its durable mark is shown."""
    number, length, durable_last = mark
    last = log.last_seq
    if last > durable_last:
        log.forget(list(range(durable_last + 1, last + 1)))
    log.lower_last(durable_last, number, length)


def _ciphers(
    disk: Disk, msgs_dir: str, stream: str, blocks: dict[int, int], secret: StoreKey | None
) -> dict[int, tuple[str, bytes, bytes]]:
    """The key of every enciphered block."""
    found: dict[int, tuple[str, bytes, bytes]] = {}
    for name in files_with(disk, msgs_dir, ".key"):
        number, _, _ = name.partition(".")
        if not number.isdecimal() or int(number) not in blocks:
            continue
        path = f"{msgs_dir}/{name}"
        if secret is None:
            raise KeyNeeded(
                path, 0, "an encrypted block", "a server key", "give the key of the server that wrote it"
            )
        found[int(number)] = _kernels.crypt_open_seed(
            disk.read(path, 4096), secret.key.encode(), secret.account, f"{stream}:{number}", file=path
        )
    return found


def _read_index(
    disk: Disk, stream_dir: str, msgs_dir: str, stream: str, secret: StoreKey | None, found: RecoveredStream
) -> bytes | None:
    """index.db in plain form if its own hash fits, else None and a finding."""
    path = f"{msgs_dir}/{INDEX}"
    raw = read_shortcut(disk, path, INDEX_BYTES_MAX, found.damage)
    if raw is None:
        return None
    if secret is not None and disk.entry(f"{stream_dir}/meta.key") is not None:
        try:
            plain = secret.open_file(disk, stream_dir, stream, raw[:-8])
            raw = plain + _kernels.highway_hash(_stream_key(stream), plain)
        except Damaged as problem:
            found.damage.append(Damage(path, 0, len(raw), "index", f"not used: {problem}"))
            return None
    try:
        _kernels.js_decode_index(path, raw, stream)
    except Damaged as problem:
        found.damage.append(Damage(path, problem.offset, len(raw), "index", f"not used: {problem.seen}"))
        return None
    return raw


def _stream_key(stream: str) -> bytes:
    from hashlib import sha256

    return sha256(stream.encode()).digest()


def _stopped_clean(sidecar: Sidecar, index: bytes, blocks: dict[int, int]) -> bool:
    stamp = sidecar.read_stamp()
    return stamp is not None and stamp.index_hash == index[-8:].hex() and stamp.blocks == blocks


def _held(log: BlockLog, msgs_dir: str, report: list[OpenedBlock], last: int, found: RecoveredStream) -> Held:
    """What the scan saw, before anything else is applied to it."""
    spans = {block.number: (block.first_seq, block.last_seq) for block in log.blocks()}
    blocks: dict[int, HeldBlock] = {}
    for block in report:
        first, until = spans.get(block.number, (0, 0))
        blocks[block.number] = HeldBlock(
            block.file_bytes,
            block.plain_bytes,
            block.last_hash,
            0 if first > until else first,
            until,
            block.guard_covers,
            block.number in found.unsound,
        )
    lost = [
        (each.first_seq, each.next_seq)
        for each in log.findings()
        if each.first_seq is not None and each.next_seq is not None
    ]
    return Held(msgs_dir, blocks, last, lost)


def _tombstones(
    disk: Disk,
    msgs_dir: str,
    stream: str,
    blocks: Iterable[int],
    ciphers: dict[int, tuple[str, bytes, bytes]],
) -> list[Range]:
    found: list[Range] = []
    for number in blocks:
        path = f"{msgs_dir}/{number}.blk"
        scan = _kernels.js_scan_block(disk, path, stream, number, cipher=ciphers.get(number))
        found += [(seq, seq + 1) for seq, _ in scan.tombstones]
    return found


def _apply_index(log: BlockLog, decoded: dict[str, Any]) -> int:
    """What index.db says is gone stays gone, stale or not; returns its last sequence."""
    present = {block.number: block for block in log.blocks()}
    gone: list[int] = []
    for number, _, first, _, _, _, deleted in decoded["blocks"]:
        if number in present:
            gone.extend(range(present[number].first_seq, min(first, present[number].last_seq + 1)))
            gone.extend(deleted)
    log.forget(gone)
    log.evict_front(None, None, None, decoded["first"] if decoded["msgs"] else decoded["last"] + 1)
    log.raise_last(0, decoded["last_time"])
    return decoded["last"]


def _apply_idx_files(
    disk: Disk,
    msgs_dir: str,
    blocks: dict[int, int],
    ciphers: dict[int, tuple[str, bytes, bytes]],
    found: RecoveredStream,
) -> None:
    """The per-block indexes of 2.6 and 2.9, where they belong to the block as it is."""
    names = files_with(disk, msgs_dir, ".idx")
    if names or files_with(disk, msgs_dir, ".fss"):
        found.era = "2.9" if files_with(disk, msgs_dir, ".fss") else "2.6"
    log = found.log
    for name in names:
        stem = name.partition(".")[0]
        if not stem.isdecimal() or int(stem) not in blocks:
            continue
        number, path = int(stem), f"{msgs_dir}/{name}"
        raw = read_shortcut(disk, path, INDEX_BYTES_MAX, found.damage)
        if raw is None:
            continue
        try:
            if number in ciphers:
                cipher, seed, nonce = ciphers[number]
                raw = _kernels.crypt_open(cipher, seed, raw, nonce, file=path)
            tail = _plain_tail(disk, f"{msgs_dir}/{number}.blk", blocks[number], ciphers.get(number))
            _, _, first, _, last, last_time, deleted, fits = _kernels.js_decode_idx(path, raw, tail)
        except Damaged as problem:
            found.damage.append(Damage(path, problem.offset, len(raw), "index", f"not used: {problem.seen}"))
            continue
        if not fits:
            found.damage.append(Damage(path, 0, len(raw), "index", "not used: older than its block"))
            continue
        block = next((each for each in log.blocks() if each.number == number), None)
        begin, end = (block.first_seq, block.last_seq) if block is not None else (first, last)
        gone = [*range(begin, min(first, end + 1)), *(seq for seq in deleted if seq >= first)]
        if log.forget(gone):
            found.forgotten.extend((seq, 0) for seq in gone)
        log.raise_last(last, last_time)


def _plain_tail(disk: Disk, path: str, length: int, cipher: tuple[str, bytes, bytes] | None) -> bytes:
    """The last eight bytes of a block, deciphered; empty for an empty one."""
    if length < _IDX_TAIL:
        return b""
    tail = disk.open(path, "read").read_at(length - _IDX_TAIL, _IDX_TAIL)
    if cipher is None:
        return tail
    name, seed, nonce = cipher
    return _kernels.crypt_block(name, seed, nonce, tail, length - _IDX_TAIL)
