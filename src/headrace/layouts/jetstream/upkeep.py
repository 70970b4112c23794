"""What keeps a store in shape between the calls: rolling, expiry, unlinking, checkpoints, compaction.

A file goes only after what made it unnecessary is on disk:
1. the tombstones (or the limit, which is applied again at every start) that emptied it;
2. copies of its own tombstones, for messages of older blocks that stay;
3. something in a later block that pins the last sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DiskFault, DiskFull, StorePoisoned
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream.paths import INDEX

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store import FileStreamStore

INDEX_EVERY_NS = 120 * 1_000_000_000
COMPACT_BYTES_MIN = 2 << 20
INDEX_SUBJECTS_MAX = 1_000_000
DEAD_BLOCKS_MAX = 8


class DeadBlock(NamedTuple):
    """A file that goes once everything up to the mark is on disk."""

    mark: int
    number: int
    carries_tombstones: bool


def roll(store: FileStreamStore) -> None:
    """Seal the newest block and start the next. In mode `sync` it is synced before its successor exists."""
    if store.durability == "sync":
        store.commit()
    number = store.log.newest()[0]
    store.log.start_writer(number + 1)
    seal(store, number)


def seal(store: FileStreamStore, number: int) -> None:
    """Guard, and compression where the stream asks for it. Failing costs nothing but the comfort."""
    if store.type() == "memory":
        return
    write_guard(store, number)
    if store.config.compression != "s2":
        return
    try:
        store.log.commit(store.log.totals()[3])
        packed = _kernels.js_compress_block(store.log.plain_bytes(number))
        path = f"{store.msgs_dir}/{number}.blk"
        store.disk.replace_file(path, packed)
        store.log.replaced(number, len(packed))
    except DiskFault:
        store.sidecar.release_reserve()


def write_guard(store: FileStreamStore, number: int) -> None:
    """The boundaries of the block's records, in our side directory."""
    store.sidecar.write_guard(number, store.log.guard_of(number))


def bury_dead(store: FileStreamStore) -> None:
    """Blocks without live messages: save what they pin, then queue their files.

    When the disk has no room for that, they stay until the next time.
    """
    dead = store.unburied = [*store.unburied, *store.log.take_dead()]
    if not dead:
        return
    copies: list[tuple[int, int]] = []
    carries: dict[int, bool] = {}
    unsound = {number for number, *_ in store.log.findings()}
    for number in dead:
        needed, carries[number] = store.log.tombstones_of(number)
        copies += needed
    _, _, last, _, last_time = store.log.totals()
    if not store.log.has(last):
        copies.append((last, last_time))
    try:
        for number in unsound.intersection(dead):
            store.sidecar.keep_original(f"{store.msgs_dir}/{number}.blk")
        mark = store.with_reserve(lambda: store.log.write_tombstones(copies))
    except DiskFull:
        return
    store.unburied = []
    store.dead.extend(DeadBlock(mark, number, carries[number]) for number in dead)
    if store.type() == "memory":
        unlink_dead(store)
    elif store.durability == "interval" and len(store.dead) >= DEAD_BLOCKS_MAX:
        store.commit()  # their space is wanted before the next sync is due


def unlink_dead(store: FileStreamStore) -> None:
    """Remove the files whose time has come."""
    durable = store.log.durable()[0]
    free = store.type() == "memory"
    ready = [dead for dead in store.dead if free or dead.mark <= durable]
    if ready:
        try:
            store.save_beside()
        except (DiskFault, StorePoisoned):
            return  # they stay until what is needed of them can be saved
    store.dead = [dead for dead in store.dead if dead not in ready]
    if ready and not free:
        store.consumers.commit()  # the acks that let the messages go
    unlink(store, sorted(ready, key=lambda dead: dead.number))


def unlink(store: FileStreamStore, blocks: list[DeadBlock]) -> None:
    """Remove files, oldest first; the last ones may come back after a crash unless the caller syncs.

    A block that holds tombstones outlives the files of the messages they are for: were only its name gone
    after a crash, those messages would come back.
    """
    unsynced = False
    for block in blocks:
        if block.carries_tombstones and unsynced:
            store.disk.sync_dir(store.msgs_dir)
            unsynced = False
        store.disk.remove_file(f"{store.msgs_dir}/{block.number}.blk")
        store.sidecar.forget_guard(block.number)
        unsynced = True


def apply_limits(store: FileStreamStore) -> None:
    """All limits on all messages, in the server's order: at start, and when they change."""
    before = store.log.totals()
    store.apply_front_limits()
    if store.config.max_msgs_per_subject > 0:
        store.log.trim_all_subjects(store.config.max_msgs_per_subject)
    after = store.log.totals()
    store.tell(after[0] - before[0], after[1] - before[1])
    expire(store, store.clock())
    bury_dead(store)


def settle_evictions(store: FileStreamStore) -> None:
    """Before a removal: limits evict without a trace in the blocks and are applied again at every start, but
    with fewer messages they would then evict less. Tombstones, or the checkpoint, say how far they had come.

    They are on disk before the removal is written: a torn write may keep its second half alone."""
    gone, many = store.log.evicted()
    if store.type() == "memory" or not (gone or many):
        return
    try:
        if many:
            store.with_reserve(store.write_index)
        else:
            store.with_reserve(lambda: store.log.write_tombstones([(seq, 0) for seq in gone]))
            store.log.settled()
            if store.durability == "sync":
                store.commit()
    except DiskFull:
        pass  # on a full disk people must be able to delete; that comes first


def expire(store: FileStreamStore, now_ns: int) -> int:
    """Messages older than max_age go."""
    if store.config.max_age <= 0 or store.log.totals()[0] == 0:
        return 0
    gone, size = store.log.evict_front(None, None, now_ns - store.config.max_age, None)
    if gone:
        store.dirty = True
        store.tell(-gone, -size)
    return gone


def tick(store: FileStreamStore, now_ns: int) -> None:
    """One turn of upkeep."""
    if expire(store, now_ns):
        bury_dead(store)
    if store.type() == "memory":
        return
    store.sidecar.keep_reserve()
    totals = store.log.totals()
    unsynced = store.durability == "interval" and store.log.durable()[0] < totals[3]
    if unsynced and now_ns - store.last_sync_ns >= store.sync_every_ns:
        store.last_sync_ns = now_ns
        store.commit()
    store.scrubber.step(now_ns)
    few = store.log.state()[6] <= INDEX_SUBJECTS_MAX
    if store.dirty and few and now_ns - store.last_index_ns >= INDEX_EVERY_NS:
        store.last_index_ns = now_ns
        if store.on_checkpoint is not None:
            store.on_checkpoint(totals[2])
        compact_blocks(store)
        store.write_index()


def compact_blocks(store: FileStreamStore) -> int:
    """Rewrite sealed blocks of which less than half is live; returns how many."""
    done = 0
    newest = store.log.newest()[0]
    for number, _, _, msgs, size, file_len, *_ in store.log.blocks():
        if number == newest or not msgs or file_len < COMPACT_BYTES_MIN or size * 2 >= file_len:
            continue
        rewrite(store, number, store.log.compacted(number))
        done += 1
    return done


def rewrite(store: FileStreamStore, number: int, data: bytes) -> None:
    """Replace a sealed block; indexes and guard that describe the old one go first."""
    renew_index(store)
    store.sidecar.remove_guard(number)
    store.disk.replace_file(f"{store.msgs_dir}/{number}.blk", data)
    store.log.replaced(number, len(data))
    write_guard(store, number)


def renew_index(store: FileStreamStore) -> None:
    """index.db must not describe more than the blocks that are about to change will hold. It is replaced, not
    dropped: what limits have evicted is known to it alone once they were relaxed."""
    if store.disk.entry(f"{store.msgs_dir}/{INDEX}") is not None:
        store.with_reserve(store.write_index)
