"""The inspector: what the files of a store say, one by one, without opening the store for use.

    find_streams   a directory → the streams in it (a store, its `jetstream` folder, or a single stream)
    survey         one stream: metadata, era, writer, the list of its block files
    check_block    one block file: every hash and boundary, what is in it and what is not sound

A `BlockFile` says all that `check_block` needs and can be pickled: blocks are checked in threads here or on a
cluster. Nothing is written, no lock is taken. What a writer has under way is not called damage.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.config.meta_json import decode_stream_meta
from headrace.config.model import StreamConfig
from headrace.errors import Damaged, HeadraceError, KeyNeeded, NotFound, StoreLocked
from headrace.layouts.base import Damage
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import BlockScan, Disk
from headrace.layouts.jetstream.meta import META_FILE, SUM_FILE, read_meta
from headrace.layouts.jetstream.paths import (
    MSGS,
    MSGS_NEW,
    MSGS_OLD,
    SIDE,
    block_numbers,
    files_with,
    misplaced,
)
from headrace.layouts.jetstream.recovery import foreign
from headrace.layouts.jetstream.recovery.recovery import messages_dir
from headrace.layouts.jetstream.recovery.spans import Range, without
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.jetstream.store.sidecar import GUARD_BYTES_MAX, Sidecar
from headrace.layouts.jetstream.volume import DEFAULT_ACCOUNT, LOCK, ROOT
from headrace.layouts.places import is_remote
from headrace.layouts.shortcuts import read_shortcut
from headrace.layouts.unknown import unknown

GAPS_LISTED_MAX = 1000
KEY_FILE_BYTES_MAX = 4096
_PACKING = ("an S2 chunk", "the compressed block")

Cipher = tuple[str, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Expected:
    """What an index says of a block: these sequences, but for the deleted ones, are live."""

    first: int
    last: int
    deleted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One block, with everything that is needed to check it elsewhere."""

    path: str
    stream: str
    number: int
    file_bytes: int
    newest: bool = False
    guard: str | None = None
    cipher: Cipher | None = field(default=None, repr=False)
    durable_bytes: int | None = None
    """Set when somebody is writing: an unsound tail from here on may be a write under way."""
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What is in a block. `messages` counts records, removed ones too; `gaps` lie between them."""

    number: int
    file: str
    file_bytes: int
    plain_bytes: int
    newest: bool
    packed: bool
    encrypted: bool
    guarded: bool
    messages: int = 0
    tombstones: int = 0
    placeholders: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    in_time_order: bool = True
    missing: int = 0
    gaps: tuple[Range, ...] = ()
    absent: tuple[Range, ...] = ()
    """Live by the index, but not in the block."""
    last_hash: str = ""
    last_known: int = 0
    """The highest sequence of a message, placeholder or tombstone."""
    guard_covers: int = 0
    """How many bytes its guard covers, whether or not they are there."""
    damage: tuple[Damage, ...] = ()
    problem: str | None = None
    """Why the block could not be read at all."""


@dataclass(slots=True)
class Survey:
    """One stream as its directory shows it."""

    name: str
    stream: str
    directory: str
    era: str
    ours: bool
    encrypted: bool
    msgs_dir: str
    config: StreamConfig | None
    created_ns: int | None
    blocks: list[BlockFile]
    secret: StoreKey | None = field(repr=False)
    writer: str | None = None
    sidecars: dict[str, int] = field(default_factory=lambda: {})
    side_names: frozenset[str] = frozenset()
    """What is in our folder, of any kind."""
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])


def find_streams(disk: Disk, path: str) -> dict[str, str]:
    """Name → directory of every stream at `path`. NotFound or UnknownFormat when it is no store."""
    base = path if is_remote(path) else os.path.normpath(Path.cwd() / path)
    entry = disk.entry(base)
    if entry is None:
        raise NotFound(f"{path}: no such directory")
    if not entry.is_dir:
        raise unknown(path, "a file")
    if disk.entry(f"{base}/{ROOT}") is not None:
        return _streams_below(disk, f"{base}/{ROOT}")
    if base.rsplit("/", 1)[-1] == ROOT:
        return _streams_below(disk, base)
    if disk.entry(f"{base}/{META_FILE}") is not None or block_numbers(disk, f"{base}/{MSGS}"):
        return {base.rsplit("/", 1)[-1]: base}
    raise unknown(
        path, "files of no product that Headrace knows" if disk.list(base) else "an empty directory"
    )


def _streams_below(disk: Disk, root: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for account, is_dir, _ in disk.list(root):
        streams = f"{root}/{account}/streams"
        if is_dir and disk.entry(streams) is not None:
            for stream, is_stream, _ in disk.list(streams):
                if is_stream and not stream.startswith("."):
                    found[stream if account == DEFAULT_ACCOUNT else f"{account}/{stream}"] = (
                        f"{streams}/{stream}"
                    )
    return dict(sorted(found.items()))


def store_key(name: str, key: str | None) -> StoreKey | None:
    """The key for a stream; its account is part of it."""
    account = name.rpartition("/")[0] or DEFAULT_ACCOUNT
    return None if key is None else StoreKey(key, account)


def survey(disk: Disk, name: str, directory: str, key: str | None = None, real: bool = True) -> Survey:
    """Look at one stream's files. KeyNeeded when it is encrypted and the key is missing or wrong."""
    stream, secret = directory.rsplit("/", 1)[-1], store_key(name, key)
    msgs_dir = messages_dir(disk, directory)
    found = Survey(
        name,
        stream,
        directory,
        era=foreign.era_of(disk, directory),
        ours=foreign.is_ours(disk, directory),
        encrypted=is_sealed(disk, directory) or bool(files_with(disk, msgs_dir, ".key")),
        msgs_dir=msgs_dir,
        config=None,
        created_ns=None,
        blocks=[],
        secret=secret,
        writer=_writer(disk, directory, real),
    )
    if disk.entry(f"{directory}/{SIDE}") is not None:
        there = disk.list(f"{directory}/{SIDE}")
        found.sidecars = {each: size for each, is_dir, size in there if not is_dir}
        found.side_names = frozenset(each for each, _, _ in there)
    for half in (MSGS_OLD, MSGS_NEW):
        if disk.entry(f"{directory}/{half}") is not None:
            found.notes.append(f"{half}/ is there: a purge was interrupted; the next start finishes it")
    _read_metadata(disk, found)
    found.blocks = _block_files(disk, found)
    found.damage += misplaced(disk, found.msgs_dir)
    return found


def _writer(disk: Disk, directory: str, real: bool) -> str | None:
    """Who has the store open for writing now, in words."""
    root, marker, _ = directory.partition(f"/{ROOT}/")
    if not marker:
        return None
    try:
        holder = disk.lock_holder(f"{root}/{LOCK}")
        if holder is not None:
            return f"{holder.note} (process {holder.pid})"
    except HeadraceError:
        pass
    if real:
        try:
            foreign.refuse_if_served(f"{root}/{ROOT}")
        except StoreLocked as served:
            return str(served).partition(": a ")[2].partition(" has this")[0] or "nats-server"
    return None


def _read_metadata(disk: Disk, found: Survey) -> None:
    place = f"{found.directory}/{META_FILE}"
    try:
        meta = read_meta(disk, found.directory, found.stream, found.secret)
        if meta.problem is not None:
            found.damage.append(meta.problem)
        if meta.ok:
            found.config, found.created_ns = decode_stream_meta(meta.data, place)
    except KeyNeeded:
        raise
    except Damaged as problem:
        found.damage.append(Damage(problem.file, problem.offset, 0, "metadata", f"found {problem.seen}"))
    if found.config is not None and found.config.name != found.stream:
        detail = f"names stream {found.config.name!r}, but its directory is {found.stream!r}"
        found.damage.append(Damage(place, 0, 0, "metadata", detail))
        found.config = None
    leftovers = files_with(disk, found.directory, f"{META_FILE}.tmp", f"{SUM_FILE}.tmp")
    if leftovers:
        found.notes.append(f"{', '.join(leftovers)}: a change of metadata was interrupted")


def _block_files(disk: Disk, found: Survey) -> list[BlockFile]:
    sizes = block_numbers(disk, found.msgs_dir)
    side = Sidecar(disk, found.directory)
    mark = side.read_mark() if found.writer is not None else None
    files: list[BlockFile] = []
    for number, size in sizes.items():
        newest = number == max(sizes)
        durable = None
        if found.writer is not None:
            durable = 0 if newest and mark is None else None
            if mark is not None and number >= mark[0]:
                durable = mark[1] if number == mark[0] else 0
        files.append(
            BlockFile(
                f"{found.msgs_dir}/{number}.blk",
                found.stream,
                number,
                size,
                newest,
                side.guard_path(number) if f"{number}.guard" in found.side_names else None,
                _cipher(disk, found, number),
                durable,
            )
        )
    return files


def _cipher(disk: Disk, found: Survey, number: int) -> Cipher | None:
    path = f"{found.msgs_dir}/{number}.key"
    if disk.entry(path) is None:
        return None
    if found.secret is None:
        raise KeyNeeded(
            path, 0, "an encrypted block", "a server key", "give the key of the server that wrote it"
        )
    sealed, secret = disk.read(path, KEY_FILE_BYTES_MAX), found.secret
    return _kernels.crypt_open_seed(
        sealed, secret.key.encode(), secret.account, f"{found.stream}:{number}", file=path
    )


def scan_file(disk: Disk, block: BlockFile, found: list[Damage] | None = None) -> BlockScan:
    """The block's sound messages and findings, straight from the core; a guard that cannot be read goes into `found`."""
    found = [] if found is None else found
    guard = None if block.guard is None else read_shortcut(disk, block.guard, GUARD_BYTES_MAX, found)
    return _kernels.js_scan_block(disk, block.path, block.stream, block.number, guard, block.cipher)


def check_block(disk: Disk, block: BlockFile) -> BlockFacts:
    """Every hash and boundary of one block. A file that cannot be read becomes a `problem`, not an exception."""
    found: list[Damage] = []
    try:
        scan = scan_file(disk, block, found)
    except HeadraceError as error:
        return replace(_unread(block), problem=str(error))
    batch = scan.batch
    runs = batch.position_runs()
    holes = without(((batch.first_position, batch.last_position + 1),), runs) if runs else ()
    packed = scan.plain_bytes != scan.file_bytes
    return replace(
        _unread(block),
        file_bytes=scan.file_bytes,
        plain_bytes=scan.plain_bytes,
        packed=packed,
        messages=len(batch),
        tombstones=len(scan.tombstones),
        placeholders=len(scan.placeholders),
        first_seq=batch.first_position if runs else None,
        last_seq=batch.last_position if runs else None,
        first_time_ns=batch[0].time_ns if runs else None,
        last_time_ns=batch[len(batch) - 1].time_ns if runs else None,
        in_time_order=batch.in_time_order(),
        missing=sum(after - first for first, after in holes),
        gaps=holes[:GAPS_LISTED_MAX],
        absent=_absent(block.expected, runs, scan),
        last_hash=scan.last_hash.hex(),
        last_known=max(
            [batch.last_position if runs else 0, *scan.placeholders, *(seq for seq, _ in scan.tombstones)]
        ),
        guard_covers=scan.guard_covers,
        damage=(*found, *_damage(block, scan, packed)),
    )


def _unread(block: BlockFile) -> BlockFacts:
    """What is known of a block before it is read."""
    sealed, guarded = block.cipher is not None, block.guard is not None
    return BlockFacts(block.number, block.path, block.file_bytes, 0, block.newest, False, sealed, guarded)


def _damage(block: BlockFile, scan: BlockScan, packed: bool) -> list[Damage]:
    found: list[Damage] = []
    for kind, offset, length, first, after, detail in scan.findings:
        under_way = block.durable_bytes is not None and offset >= block.durable_bytes
        if kind == "unsound-tail" and under_way:
            continue
        if packed and not detail.startswith(_PACKING):
            detail += " (the offset counts unpacked bytes)"
        found.append(Damage(block.path, offset, length, kind, detail, first, after))
    return found


def _absent(expected: Expected | None, runs: list[Range], scan: BlockScan) -> tuple[Range, ...]:
    """Live by the index, not among the records, and not part of a record that was found unsound."""
    if expected is None or expected.last < expected.first:
        return ()
    holes = without(((expected.first, expected.last + 1),), runs)
    if not holes:
        return ()
    gone = [*expected.deleted, *scan.placeholders, *(seq for seq, _ in scan.tombstones)]
    lost = [
        (first, after) for *_, first, after, _ in scan.findings if first is not None and after is not None
    ]
    return without(holes, [*((seq, seq + 1) for seq in gone), *lost])
