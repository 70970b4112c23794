"""Taking messages out of a store: single ones, by purge, from the front, behind a sequence.

Single removals write tombstones into the newest block; whole blocks at the front simply go. A full purge
swaps the directory of the messages, so that a crash leaves all of them or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import BadInput, DiskFault, EndOfStream, MessageNotFound, StorePoisoned
from headrace.layouts.base import Ticket
from headrace.layouts.directories import make_dirs
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import Removed
from headrace.layouts.jetstream.paths import MSGS_NEW, MSGS_OLD
from headrace.layouts.jetstream.store import upkeep
from headrace.layouts.jetstream.store.history import TAKEN_BACK_NS
from headrace.randomness import random_bytes

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore

_COMPRESSED = b"cmp\x01"
_AT_ONCE = 4096
"""So many are removed in one step of a purge."""
_READ_AT_ONCE = 65_536
_MSG_ID = b"Nats-Msg-Id"


def remove(store: FileStreamStore, positions: Sequence[int]) -> Ticket:
    """Tombstones for all live ones, in one write."""
    with store.lock:
        removed = _remove(store, positions)
        first = min(positions, default=0)
        mark = store.log.mark if removed.messages else removed.mark
        return Ticket(store.name, first, max(positions, default=-1) + 1, mark)


def _remove(store: FileStreamStore, positions: Sequence[int]) -> Removed:
    with store.lock:
        store.check_writable()
        upkeep.persist_evictions(store)
        removed: Removed = store.with_reserve(lambda: store.log.remove(list(positions)))
        store.dirty = store.dirty or removed.messages > 0
        upkeep.schedule_unlink(store)
        store.notify(-removed.messages, -removed.bytes, removed.first if removed.messages == 1 else 0)
        return removed


def erase(store: FileStreamStore, seq: int) -> bool:
    """The tombstone is durable before a byte is overwritten: a crash between leaves a removed message."""
    with store.lock:
        store.check_writable()
        size = store.log.record_bytes_of(seq)
        if size is None:
            last = store.log.last_seq
            if seq > last:
                raise EndOfStream(f"stream {store.name}: {seq} is beyond the last sequence")
            raise MessageNotFound(f"stream {store.name}: no message {seq}")
        _save_what_headers_say(store, seq)
        found = store.log.erasure(seq, random_bytes(size))
        remove(store, [seq])
        store.commit()
        if found is None or store.type() == "memory":
            return True
        number, offset, data = found
        path = f"{store.msgs_dir}/{number}.blk"
        if store.disk.entry(path) is None:
            return True  # it was the last message of its block, which is gone with all its bytes
        if number != store.log.newest_block:
            upkeep.renew_index(store)
        store.sidecar.remove_guard(number)
        file = store.disk.open(path, "write")
        if file.read_at(0, len(_COMPRESSED)) == _COMPRESSED:
            plain = bytearray(store.log.plain_bytes(number))
            plain[offset : offset + len(data)] = data
            upkeep.rewrite(store, number, _kernels.js_compress_block(bytes(plain)))
            return True
        store.log.patching(number)
        file.write_at(offset, data)
        file.sync_data()
        store.log.patched(number, offset, data)
        if number != store.log.newest_block:
            upkeep.write_guard(store, number)
        return True


def _save_what_headers_say(store: FileStreamStore, seq: int) -> None:
    """With the bytes of a message go its headers: somebody may have to remember its id, or its producer's number."""
    found = store.log.load(seq) if store.type() != "memory" else None
    if found is None or not found.headers:
        return
    if _MSG_ID in found.headers:
        store.save_beside()
    elif store.on_checkpoint is not None:
        store.on_checkpoint(seq)


def purge(store: FileStreamStore, first_seq: int = 0) -> int:
    """Remove everything. The next message is last + 1, or `first_seq` if that is further on."""
    with store.lock:
        store.check_writable()
        last_time = store.log.last_time_ns
        last = max(store.log.last_seq, first_seq - 1)
        number = store.log.newest_block + 1
        if store.type() != "memory":
            store.commit()
            store.save_beside()
            # From here on a crash may complete the purge.
            store.sidecar.remove_guards(store.sidecar.guards())
        new, old = (f"{store.stream_dir}/{name}" for name in (MSGS_NEW, MSGS_OLD))
        disk = store.disk

        def build() -> None:
            if disk.entry(new) is not None:
                disk.remove_dir_all(new)
            make_dirs(disk, new)
            file = disk.open(f"{new}/{number}.blk", "write")
            if last > 0:
                file.write_at(0, _kernels.js_tombstone_block(store.name, number, last, last_time))
            file.sync_data()
            disk.sync_dir(new)

        try:
            store.with_reserve(build)
        except DiskFault:
            with store.whole_or_poisoned():
                if disk.entry(new) is not None:
                    disk.remove_dir_all(new)  # found later, it would end the purge that was just refused
                    disk.sync_dir(store.stream_dir)
            raise
        with store.whole_or_poisoned():
            disk.rename(store.msgs_dir, old)
            disk.rename(new, store.msgs_dir)
            disk.sync_dir(store.stream_dir)
            gone, size = store.log.clear()
            store.dead, store.pending_unlink = [], []
            store.log.open_by_scan([number], {}, 1)
            store.log.raise_last(last, last_time)
            store.log.start_writer(number)
            store.log.assume_durable()
            store.log.publish_mark()
        disk.remove_dir_all(old)
        store.dirty = True
        store.notify(-gone, -size)
        return gone


def purge_ex(store: FileStreamStore, subject: str, seq: int, keep: int, below: int | None = None) -> int:
    """Purge by filter ("" or ">" = all), below `seq` (0 = no bound), keeping the newest `keep`; of what lies below `below`
    where that is given. In steps: others may use the store between two of them."""
    if seq > 0 and keep > 0:
        raise BadInput("give a sequence or a number to keep, not both")
    store.check_writable()
    everything = subject in ("", ">")
    if everything and keep == 0:
        if seq == 1:
            return 0  # nothing lies below it
        return purge(store) if seq == 0 else compact(store, seq)
    end = below if below is not None else store.log.last_seq + 1
    filters = [] if everything else [subject]
    wanted = store.log.count_matching(1, end, filters) - keep
    if everything:
        return compact(store, _sequence_behind(store, wanted)) if wanted > 0 else 0
    removed, start = 0, 1
    end = min(end, seq) if seq else end
    while wanted > 0 and start < end:
        # What was just read is in memory: it is removed before the next block is read.
        batch, start = store.log.read_matching(start, min(_AT_ONCE, wanted), 1 << 30, filters, end, 1)
        if len(batch):
            gone = _remove(store, batch.positions())
            removed, wanted = removed + gone.messages, wanted - len(batch)
        store.log.yield_to_waiters()
    store.commit()
    return removed


def _sequence_behind(store: FileStreamStore, count: int) -> int:
    """The sequence behind the first `count` messages."""
    start, end = 1, store.log.last_seq + 1
    while count > 0 and start < end:
        batch, start = store.log.read_matching(start, min(_READ_AT_ONCE, count), 1 << 30, [], end, 1)
        count -= len(batch)
    return start


def compact(store: FileStreamStore, seq: int) -> int:
    """Everything below `seq` goes: whole blocks as files, the rest of the cut block by tombstones."""
    with store.lock:
        store.check_writable()
        if seq == 0:
            return purge(store)
        before = store.log.messages
        if seq > store.log.last_seq:
            purge(store, seq)
            return before
        upkeep.persist_evictions(store)
        cut = next((block for block in store.log.blocks() if block.last_seq >= seq), None)
        size_before = store.log.live_bytes
        if cut is not None:
            gone = range(cut.first_seq, min(seq, cut.last_seq + 1))
            if gone:
                store.with_reserve(lambda: store.log.remove(list(gone)))
            store.log.evict_front(None, None, None, cut.first_seq)
        store.log.evict_front(None, None, None, seq)
        store.dirty = True
        upkeep.schedule_unlink(store)
        store.commit()
        if store.type() != "memory":
            # Whole blocks went without tombstones: only their absence shows it.
            store.disk.sync_dir(store.msgs_dir)
        after = store.log.messages
        store.notify(after - before, store.log.live_bytes - size_before)
        return before - after


def truncate(store: FileStreamStore, seq: int) -> None:
    """Everything above `seq` goes. The one operation that gives sequences out again: it is asked for."""
    with store.lock:
        store.check_writable()
        if seq == 0:
            raise BadInput("truncate needs a sequence that stays; use purge to empty a stream")
        before, size_before, last = store.log.messages, store.log.live_bytes, store.log.last_seq
        if seq > last:
            raise BadInput(f"stream {store.name} ends at {last}; cannot truncate to {seq}")
        if store.type() != "memory":
            store.commit()
        highest = store.log.newest_block
        with store.whole_or_poisoned():
            if store.type() != "memory":
                store.log.lower_mark(seq)
            _, cut, tombstones = store.log.truncate_after(seq)
            # First what must outlive the files: a block is never empty, what the cut part knew to be gone stays
            # gone, and so does what limits have evicted.
            store.log.start_writer(highest + 1)
            pins = tombstones if store.log.has(seq) else [*tombstones, (seq, store.log.last_time_ns)]
            store.log.write_tombstones(pins)
            store.write_index()
            if cut is not None:
                number, data = cut
                store.sidecar.remove_guard(number)
                store.disk.replace_file(f"{store.msgs_dir}/{number}.blk", data)
                store.log.replaced(number, len(data))
            dead = [(number, store.log.tombstones_of(number).any) for number in sorted(store.log.take_dead())]
            upkeep.unlink(store, [upkeep.DeadBlock(0, number, carries) for number, carries in dead])
            store.disk.sync_dir(store.msgs_dir)
            store.log.assume_durable()  # or the last sequence would still be the one before
            store.log.publish_mark()
        after = store.log.messages
        store.notify(after - before, store.log.live_bytes - size_before)


def take_back(store: FileStreamStore, first: int, next_seq: int) -> None:
    """A batch is stored whole or not at all: what was written before the disk refused is removed again. Where not
    even that can be written it stays, as it would come back with the next start; nobody was answered."""
    if not first:
        return
    begun = range(first, next_seq)
    try:
        store.with_reserve(lambda: store.log.write_tombstones([(seq, TAKEN_BACK_NS) for seq in begun]))
    except (DiskFault, StorePoisoned):
        store.dirty, store.complete = True, next_seq - 1
    else:
        store.log.forget(begun)


def remove_directory(disk: _kernels.Disk, directory: str) -> None:
    """All files of a stream. Hidden first: half of a stream never shows up again."""
    parent, _, base = directory.rpartition("/")
    hidden = f"{parent}/.{base}"
    if disk.entry(hidden) is not None:
        disk.remove_dir_all(hidden)
    disk.rename(directory, hidden)
    disk.sync_dir(parent)
    disk.remove_dir_all(hidden)
