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
from headrace.layouts.jetstream.store.admission import evict_front

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore

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
    number = store.log.newest_block
    store.log.start_writer(number + 1)
    seal(store, number)


def index_evictions(store: FileStreamStore) -> None:
    """Before limits change: the checkpoint says what the present ones have evicted, if they have. Age leaves no trace, so
    where messages age it may always have."""
    if store.config.max_age > 0 or store.log.has_evicted:
        store.write_index()
    else:
        store.commit()


def free_bytes(store: FileStreamStore) -> int | None:
    """What the newest block still takes before it has to be synced and sealed. None where that does not matter: in memory,
    in mode `interval`, and while it is nearly empty, as it is not given up for a large run."""
    size = store.log.newest_block_bytes
    if size < store.block_bytes // 4 or store.durability != "sync" or store.type() != "file":
        return None
    return store.block_bytes - size


def roll_ahead(store: FileStreamStore) -> None:
    """Roll before the messages come that would not fit: they need not wait for the disk then."""
    with store.lock:
        store.check_writable()
        roll(store)


def seal(store: FileStreamStore, number: int) -> None:
    """Guard, and compression where the stream asks for it. Failing costs nothing but the comfort."""
    if store.type() == "memory":
        return
    write_guard(store, number)
    if store.config.compression != "s2":
        return
    try:
        store.log.commit(store.log.mark)
        packed = _kernels.js_compress_block(store.log.plain_bytes(number))
        path = f"{store.msgs_dir}/{number}.blk"
        store.disk.replace_file(path, packed)
        store.log.replaced(number, len(packed))
    except DiskFault:
        store.sidecar.release_reserve()


def write_guard(store: FileStreamStore, number: int) -> None:
    """The boundaries of the block's records, in our side directory."""
    store.sidecar.write_guard(number, store.log.guard_of(number))


def schedule_unlink(store: FileStreamStore) -> None:
    """Blocks without live messages: save what they pin, then queue their files.

    When the disk has no room for that, they stay until the next time.
    """
    dead = store.pending_unlink = [*store.pending_unlink, *store.log.take_dead()]
    if not dead:
        return
    copies: list[tuple[int, int]] = []
    carries: dict[int, bool] = {}
    unsound = {finding.block for finding in store.log.findings()}
    for number in dead:
        tombstones = store.log.tombstones_of(number)
        carries[number] = tombstones.any
        copies += tombstones.needed
    last = store.log.last_seq
    if not store.log.has(last):
        copies.append((last, store.log.last_time_ns))
    try:
        for number in unsound.intersection(dead):
            store.sidecar.keep_original(f"{store.msgs_dir}/{number}.blk")
        mark = store.with_reserve(lambda: store.log.write_tombstones(copies))
    except DiskFull:
        return
    store.pending_unlink = []
    store.dead.extend(DeadBlock(mark, number, carries[number]) for number in dead)
    if store.type() == "memory":
        unlink_dead(store)
    elif store.durability == "interval" and len(store.dead) >= DEAD_BLOCKS_MAX:
        store.commit()  # their space is wanted before the next sync is due


def unlink_dead(store: FileStreamStore) -> None:
    """Remove the files whose time has come."""
    durable = store.log.durable_mark
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
    if blocks and store.type() != "memory":
        store.sidecar.remove_guards(block.number for block in blocks)
    for block in blocks:
        if block.carries_tombstones and unsynced:
            store.disk.sync_dir(store.msgs_dir)
            unsynced = False
        store.disk.remove_file(f"{store.msgs_dir}/{block.number}.blk")
        unsynced = True


def apply_limits(store: FileStreamStore) -> None:
    """All limits on all messages, in the server's order: at start, and when they change."""
    messages, size = store.log.messages, store.log.live_bytes
    evict_front(store)
    if store.config.max_msgs_per_subject > 0:
        store.log.trim_all_subjects(store.config.max_msgs_per_subject)
    store.notify(store.log.messages - messages, store.log.live_bytes - size)
    expire(store, store.clock())
    schedule_unlink(store)


def persist_evictions(store: FileStreamStore) -> None:
    """Before a removal: limits evict without a trace in the blocks and are applied again at every start, but
    with fewer messages they would then evict less. Tombstones, or the checkpoint, say how far they had come.

    They are on disk before the removal is written: a torn write may keep its second half alone."""
    if store.type() == "memory" or not store.log.has_evicted:
        return
    gone = store.log.evicted()
    try:
        if gone is None:
            store.with_reserve(store.write_index)
        else:
            store.with_reserve(lambda: store.log.write_tombstones([(seq, 0) for seq in gone]))
            store.log.evictions_saved()
            if store.durability == "sync":
                store.commit()
    except DiskFull:
        pass  # on a full disk people must be able to delete; that comes first


def removal_needs_sync(store: FileStreamStore) -> bool:
    """Whether a removal has to wait for a sync: limits have evicted something that only memory knows of."""
    return store.durability == "sync" and store.type() == "file" and store.log.has_evicted


def prepare_removal(store: FileStreamStore) -> None:
    """Do that before the removal: on whatever thread."""
    with store.lock:
        store.check_writable()
        persist_evictions(store)


def expire(store: FileStreamStore, now_ns: int) -> int:
    """Messages older than max_age go."""
    if store.config.max_age <= 0 or not store.expires_itself or store.log.messages == 0:
        return 0
    gone, size = store.log.evict_front(None, None, now_ns - store.config.max_age, None)
    if gone:
        store.dirty = True
        store.notify(-gone, -size)
    return gone


def tick_unlocked(store: FileStreamStore, now_ns: int) -> None:
    """What reads and writes files by itself: nobody who appends should wait for that."""
    store.consumers.tick(now_ns)
    if store.type() == "file":
        store.scrubber.step(now_ns)


def tick(store: FileStreamStore, now_ns: int) -> None:
    """One turn of upkeep."""
    if expire(store, now_ns):
        schedule_unlink(store)
    if store.type() == "memory":
        return
    store.sidecar.keep_reserve()
    unsynced = store.durability == "interval" and store.log.durable_mark < store.log.mark
    if unsynced and now_ns - store.last_sync_ns >= store.sync_every_ns:
        store.last_sync_ns = now_ns
        store.commit()
    few = store.log.state().subjects <= INDEX_SUBJECTS_MAX
    if store.dirty and few and now_ns - store.last_index_ns >= INDEX_EVERY_NS:
        store.last_index_ns = now_ns
        if store.on_checkpoint is not None:
            store.on_checkpoint(store.log.last_seq)
        compact_blocks(store)
        store.write_index()


def compact_blocks(store: FileStreamStore) -> int:
    """Rewrite sealed blocks of which less than half is live; returns how many."""
    done = 0
    newest = store.log.newest_block
    for block in store.log.blocks():
        small = block.file_bytes < COMPACT_BYTES_MIN
        if block.number == newest or not block.messages or small or block.bytes * 2 >= block.file_bytes:
            continue
        rewrite(store, block.number, store.log.compacted(block.number))
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
