"""From a stream's directory to everything a store needs, for reading or for writing.

For writing, beyond what `recovery` does: metadata completed, consumers folded in, damaged blocks replaced by
sound ones (the originals kept in headrace/damaged/), removals that only an old index knows written as
tombstones, limits applied, and a block open that ends in a sound record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.config.meta_json import decode_stream_meta
from headrace.config.model import StreamConfig, block_size
from headrace.errors import Damaged, DiskFault, NotFound, ReadOnly, UnknownFormat
from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.jetstream._kernels import BlockLog, Disk
from headrace.layouts.jetstream.checks.findings import damage_of
from headrace.layouts.jetstream.consumers.consumers import Consumers
from headrace.layouts.jetstream.meta import finish_meta, read_meta
from headrace.layouts.jetstream.paths import BLOCK_MAX, INDEX, MSGS, block_numbers, files_with
from headrace.layouts.jetstream.recovery import recovery
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.jetstream.store.sidecar import Sidecar
from headrace.layouts.jetstream.store.visible import hide_what_is_gone

CACHE_BYTES = 12 << 20
READ_ATTEMPTS_MAX = 50


@dataclass
class OpenedStream:
    """A stream ready for use."""

    config: StreamConfig
    created_ns: int
    log: BlockLog
    consumers: Consumers
    msgs_dir: str
    clean: bool
    damage: list[Damage]
    era: str


def read_config(
    disk: Disk, stream_dir: str, secret: StoreKey | None
) -> tuple[StreamConfig, int, list[Damage]]:
    """The stream's configuration, checked against its sum."""
    name = stream_dir.rsplit("/", 1)[-1]
    meta = read_meta(disk, stream_dir, name, secret)
    if not meta.ok:
        problem = meta.problem
        detail = problem.detail if problem else "unreadable"
        raise Damaged(
            f"{stream_dir}/meta.inf",
            0,
            detail,
            "metadata whose hash is in meta.sum",
            "the messages are still there: `headrace salvage` copies them without it",
        )
    config, created_ns = decode_stream_meta(meta.data, f"{stream_dir}/meta.inf")
    if config.name != name:
        raise UnknownFormat(
            f"{stream_dir}/meta.inf",
            0,
            f"stream {config.name!r}",
            f"{name!r}",
            "a stream's directory has its name",
        )
    return config, created_ns, [meta.problem] if meta.problem else []


def open_for_reading(
    disk: Disk,
    stream_dir: str,
    secret: StoreKey | None = None,
    cache_bytes: int = CACHE_BYTES,
    clock: Callable[[], int] = time.time_ns,
) -> OpenedStream:
    """Nothing on disk changes. A writer may be at work: what changed under the scan is read again."""
    for attempt in range(READ_ATTEMPTS_MAX):
        try:
            return _open_for_reading(disk, stream_dir, secret, cache_bytes, clock)
        except (NotFound, Damaged, DiskFault) as problem:
            if not isinstance(problem, NotFound) and not recovery.disk_is_live(disk, stream_dir):
                raise
            time.sleep(attempt / 1000)
    return _open_for_reading(disk, stream_dir, secret, cache_bytes, clock)


def _open_for_reading(
    disk: Disk, stream_dir: str, secret: StoreKey | None, cache_bytes: int, clock: Callable[[], int]
) -> OpenedStream:
    config, created_ns, damage = read_config(disk, stream_dir, secret)
    consumers = Consumers(disk, stream_dir, config.name, writable=False, secret=secret)
    found = recovery.recover(
        disk,
        stream_dir,
        config.name,
        cache_bytes=cache_bytes,
        secret=secret,
        consumer_seq=consumers.max_stream_seq(),
    )
    damage += found.damage
    hide_what_is_gone(found.log, config, consumers, clock() if found.live else None, clean=found.clean)
    return OpenedStream(
        config, created_ns, found.log, consumers, found.msgs_dir, found.clean, damage, found.era
    )


def open_for_writing(
    disk: Disk,
    stream_dir: str,
    cache_bytes: int = CACHE_BYTES,
    block_bytes: int | None = None,
    *,
    reserve: bool = True,
) -> OpenedStream:
    """The caller holds the volume's lock."""
    name = stream_dir.rsplit("/", 1)[-1]
    if is_sealed(disk, stream_dir):
        raise ReadOnly(f"{stream_dir} is encrypted: encrypted stores are read, not written")
    finish_meta(disk, stream_dir, name)
    config, created_ns, damage = read_config(disk, stream_dir, None)
    recovery.finish_purge(disk, stream_dir)
    make_dirs(disk, f"{stream_dir}/{MSGS}")
    sidecar = Sidecar(disk, stream_dir)
    damage += sidecar.make_way(f"{stream_dir}/{MSGS}/{INDEX}")
    sidecar.prepare(reserve=reserve)
    consumers = Consumers(disk, stream_dir, name)
    found = take_messages(disk, stream_dir, config, consumers.max_stream_seq(), cache_bytes, block_bytes)
    damage += found.damage
    return OpenedStream(
        config, created_ns, found.log, consumers, found.msgs_dir, found.clean, damage, found.era
    )


def open_new(
    disk: Disk,
    stream_dir: str,
    config: StreamConfig,
    created_ns: int,
    cache_bytes: int = CACHE_BYTES,
    block_bytes: int | None = None,
) -> OpenedStream:
    """A stream whose directory was made a moment ago, by the caller: there is nothing to read. Upkeep makes its reserve."""
    msgs_dir, side = f"{stream_dir}/{MSGS}", Sidecar(disk, stream_dir).path
    log = BlockLog(disk, msgs_dir, side, config.name, cache_bytes)
    log.open_by_scan([], {}, 1)
    _start_writing(disk, recovery.RecoveredStream(log, msgs_dir), config, block_bytes)
    consumers = Consumers(disk, stream_dir, config.name, is_new=True)
    return OpenedStream(config, created_ns, log, consumers, msgs_dir, False, [], "2.15")


def take_messages(
    disk: Disk,
    stream_dir: str,
    config: StreamConfig,
    consumer_seq: int,
    cache_bytes: int = CACHE_BYTES,
    block_bytes: int | None = None,
) -> recovery.RecoveredStream:
    """The messages of a stream, recovered, mended and ready to be appended to."""
    sidecar = Sidecar(disk, stream_dir)

    def recovered(trust_stamp: bool) -> recovery.RecoveredStream:
        return recovery.recover(
            disk,
            stream_dir,
            config.name,
            cache_bytes=cache_bytes,
            consumer_seq=consumer_seq,
            read_only=False,
            trust_stamp=trust_stamp,
        )

    found = recovered(trust_stamp=True)
    if found.clean and _newest_is_damaged(found.log):
        found = recovered(trust_stamp=False)
    sidecar.remove_stamp()
    found.damage += _note_findings(found)
    if not found.clean:
        _sync_blocks(disk, found.msgs_dir)
    # The next sequence is pinned before the bytes that speak for it are replaced.
    _start_writing(disk, found, config, block_bytes)
    if not found.clean:
        # Blocks that these speak of are reported as lost by now.
        sidecar.remove_guards(set(sidecar.guards()) - {block.number for block in found.log.blocks()})
    _replace_damaged(disk, sidecar, found)
    found.log.drop_dead_blocks()
    _retire_old_indexes(disk, found)
    return found


def _newest_is_damaged(log: BlockLog) -> bool:
    """A clean stop is believed without a scan, but the block that is written to is read anyway."""
    for block in log.blocks()[-1:]:
        log.plain_bytes(block.number)
    return bool(log.findings())


def _note_findings(found: recovery.RecoveredStream) -> list[Damage]:
    """Findings are kept here because the blocks that hold them are about to be replaced."""
    return [damage_of(found.msgs_dir, finding) for finding in found.log.findings()]


def _sync_blocks(disk: Disk, msgs_dir: str) -> None:
    """After a kill, what is in the page cache is not yet on disk; nothing is shown that can still vanish."""
    numbers = block_numbers(disk, msgs_dir)
    for number in numbers:
        disk.open(f"{msgs_dir}/{number}.blk", "write").sync_data()
    if numbers:
        disk.sync_dir(msgs_dir)


def _replace_damaged(disk: Disk, sidecar: Sidecar, found: recovery.RecoveredStream) -> None:
    """A server that opens the directory next would cut a block at its first bad record: give it sound ones."""
    log = found.log
    bad = {
        finding.block
        for finding in log.findings()
        if finding.kind in ("bad-record", "repaired", "forged-inside")
    }
    if not bad:
        return
    if disk.entry(f"{found.msgs_dir}/{INDEX}") is not None:
        # Replaced, not dropped: what limits have evicted is known to it alone once they were relaxed.
        disk.replace_file(f"{found.msgs_dir}/{INDEX}", log.encode_index())
    for number in sorted(bad):
        path = f"{found.msgs_dir}/{number}.blk"
        data = log.sound_copy(number)
        sidecar.keep_original(path)
        sidecar.remove_guard(number)
        disk.replace_file(path, data)
        log.replaced(number, len(data))


def _start_writing(
    disk: Disk, found: recovery.RecoveredStream, config: StreamConfig, block_bytes: int | None
) -> None:
    """Append to the newest block if it is whole and has room, else to a new one."""
    log = found.log
    blocks = log.blocks()
    newest, size = log.newest_block, log.newest_block_bytes
    fits = size < (block_bytes or block_size(config)) and newest not in found.unsound
    if blocks and fits and not found.raised_to and newest >= found.newest_block and log.is_plain(newest):
        log.start_writer(newest)
    else:
        number = max(newest, found.newest_block) + 1
        if number > BLOCK_MAX:
            path = f"{found.msgs_dir}/{newest}.blk"
            raise Damaged(path, 0, f"block {newest}", f"at most {BLOCK_MAX - 1}", "move it out of the store")
        log.start_writer(number)
    last, last_time = log.last_seq, log.last_time_ns
    pins: list[tuple[int, int]] = list(found.forgotten)
    if found.raised_to:
        pins.append((found.raised_to, last_time))
    elif log.newest_block_bytes == 0 and last > 0 and not log.has(last):
        pins.append((last, last_time))
    log.write_tombstones(pins)
    log.commit(log.mark)
    log.assume_durable()


def _retire_old_indexes(disk: Disk, found: recovery.RecoveredStream) -> None:
    """Per-block indexes of 2.6 and 2.9 are spent: what they knew is in tombstones now."""
    for name in files_with(disk, found.msgs_dir, ".idx", ".fss"):
        disk.remove_file(f"{found.msgs_dir}/{name}")
    if found.era != "2.15":
        disk.sync_dir(found.msgs_dir)
