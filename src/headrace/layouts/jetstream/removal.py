"""Taking messages out of a store: single ones, by purge, from the front, behind a sequence.

Single removals write tombstones into the newest block; whole blocks at the front simply go. A full purge
swaps the directory of the messages, so that a crash leaves all of them or none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import BadInput, DiskFault, EndOfStream, MessageNotFound
from headrace.layouts.base import Ticket
from headrace.layouts.jetstream import _kernels, upkeep
from headrace.layouts.jetstream.paths import MSGS_NEW, MSGS_OLD, make_dirs

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store import FileStreamStore

_COMPRESSED = b"cmp\x01"
_AT_ONCE = 65_536
_MSG_ID = b"Nats-Msg-Id"


def remove(store: FileStreamStore, positions: Sequence[int]) -> Ticket:
    """Tombstones for all live ones, in one write."""
    with store.lock:
        store.check_writable()
        upkeep.settle_evictions(store)
        removed, mark = store.with_reserve(lambda: store.log.remove(list(positions)))
        store.dirty = store.dirty or bool(removed)
        upkeep.bury_dead(store)
        seq = removed[0][0] if len(removed) == 1 else 0
        store.tell(-len(removed), -sum(size for _, _, size in removed), seq)
        first = min(positions, default=0)
        return Ticket(
            store.name, first, max(positions, default=-1) + 1, store.log.totals()[3] if removed else mark
        )


def erase(store: FileStreamStore, seq: int) -> bool:
    """The tombstone is durable before a byte is overwritten: a crash between leaves a removed message."""
    with store.lock:
        store.check_writable()
        size = store.log.record_bytes_of(seq)
        if size is None:
            last = store.log.totals()[2]
            if seq > last:
                raise EndOfStream(f"stream {store.name}: {seq} is beyond the last sequence")
            raise MessageNotFound(f"stream {store.name}: no message {seq}")
        _save_what_headers_say(store, seq)
        found = store.log.erasure(seq, os.urandom(size))
        remove(store, [seq])
        store.commit()
        if found is None or store.type() == "memory":
            return True
        number, offset, data = found
        path = f"{store.msgs_dir}/{number}.blk"
        if store.disk.entry(path) is None:
            return True  # it was the last message of its block, which is gone with all its bytes
        if number != store.log.newest()[0]:
            upkeep.renew_index(store)
        store.sidecar.remove_guard(number)
        file = store.disk.open(path, "write")
        if file.read_at(0, len(_COMPRESSED)) == _COMPRESSED:
            plain = bytearray(store.log.plain_bytes(number))
            plain[offset : offset + len(data)] = data
            upkeep.rewrite(store, number, _kernels.js_compress_block(bytes(plain)))
            return True
        file.write_at(offset, data)
        file.sync_data()
        store.log.patched(number, offset, data)
        if number != store.log.newest()[0]:
            upkeep.write_guard(store, number)
        return True


def _save_what_headers_say(store: FileStreamStore, seq: int) -> None:
    """With the bytes of a message go its headers: somebody may have to remember its id, or its producer's number."""
    found = store.log.load(seq) if store.type() != "memory" else None
    if found is None or not found[3]:
        return
    if _MSG_ID in found[3]:
        store.save_beside()
    elif store.on_checkpoint is not None:
        store.on_checkpoint(seq)


def purge(store: FileStreamStore, first_seq: int = 0) -> int:
    """Remove everything. The next message is last + 1, or `first_seq` if that is further on."""
    with store.lock:
        store.check_writable()
        _, _, last, _, last_time = store.log.totals()
        last = max(last, first_seq - 1)
        number = store.log.newest()[0] + 1
        if store.type() != "memory":
            store.commit()
            store.save_beside()
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
            store.dead, store.unburied = [], []
            store.log.open_by_scan([number], {}, 1)
            store.log.raise_last(last, last_time)
            store.log.start_writer(number)
            store.log.assume_durable()
            store.publish()
        disk.remove_dir_all(old)
        store.sidecar.remove_guards_but({number})
        store.dirty = True
        store.tell(-gone, -size)
        return gone


def purge_ex(store: FileStreamStore, subject: str, seq: int, keep: int) -> int:
    """Purge by filter ("" or ">" = all), below `seq` (0 = no bound), keeping the newest `keep`."""
    if seq > 0 and keep > 0:
        raise BadInput("give a sequence or a number to keep, not both")
    everything = subject in ("", ">")
    with store.lock:
        store.check_writable()
        if everything and keep == 0:
            return purge(store) if seq <= 1 and seq == 0 else compact(store, seq)
        matching = store.filtered_state(0, subject)
        if keep >= matching.msgs > 0 or matching.msgs == 0:
            return 0
        doomed: list[int] = []
        start, wanted = matching.first, matching.msgs - keep
        while len(doomed) < wanted:
            batch = store.log.read(
                start, min(_AT_ONCE, wanted - len(doomed)), 1 << 30, subject or None, seq or None
            )
            if not len(batch):
                break
            doomed.extend(batch.positions())
            start = batch.last_position + 1
        if everything:
            return compact(store, doomed[-1] + 1) if doomed else 0
        before = store.log.totals()[0]
        for start in range(0, len(doomed), _AT_ONCE):
            remove(store, doomed[start : start + _AT_ONCE])
        store.commit()
        return before - store.log.totals()[0]


def compact(store: FileStreamStore, seq: int) -> int:
    """Everything below `seq` goes: whole blocks as files, the rest of the cut block by tombstones."""
    with store.lock:
        store.check_writable()
        if seq == 0:
            return purge(store)
        before, _, last, *_ = store.log.totals()
        if seq > last:
            purge(store, seq)
            return before
        upkeep.settle_evictions(store)
        cut = next((block for block in store.log.blocks() if block[2] >= seq), None)
        size_before = store.log.totals()[1]
        if cut is not None:
            gone = range(cut[1], min(seq, cut[2] + 1))
            if gone:
                store.with_reserve(lambda: store.log.remove(list(gone)))
            store.log.evict_front(None, None, None, cut[1])
        store.log.evict_front(None, None, None, seq)
        store.dirty = True
        upkeep.bury_dead(store)
        store.commit()
        if store.type() != "memory":
            # Whole blocks went without tombstones: only their absence tells.
            store.disk.sync_dir(store.msgs_dir)
        after, size, *_ = store.log.totals()
        store.tell(after - before, size - size_before)
        return before - after


def truncate(store: FileStreamStore, seq: int) -> None:
    """Everything above `seq` goes. The one operation that gives sequences out again: it is asked for."""
    with store.lock:
        store.check_writable()
        if seq == 0:
            raise BadInput("truncate needs a sequence that stays; use purge to empty a stream")
        before, size_before, last, *_ = store.log.totals()
        if seq > last:
            raise BadInput(f"stream {store.name} ends at {last}; cannot truncate to {seq}")
        if store.type() != "memory":
            store.commit()
        highest = store.log.newest()[0]
        with store.whole_or_poisoned():
            _, cut, tombstones = store.log.truncate_after(seq)
            # First what must outlive the files: a block is never empty, what the cut part knew to be gone stays
            # gone, and so does what limits have evicted.
            store.log.start_writer(highest + 1)
            pins = tombstones if store.log.has(seq) else [*tombstones, (seq, store.log.totals()[4])]
            store.log.write_tombstones(pins)
            store.write_index()
            if cut is not None:
                number, data = cut
                store.sidecar.remove_guard(number)
                store.disk.replace_file(f"{store.msgs_dir}/{number}.blk", data)
                store.log.replaced(number, len(data))
            dead = [(number, store.log.tombstones_of(number)[1]) for number in sorted(store.log.take_dead())]
            upkeep.unlink(store, [upkeep.DeadBlock(0, number, carries) for number, carries in dead])
            store.disk.sync_dir(store.msgs_dir)
            store.publish()
        after, size, *_ = store.log.totals()
        store.tell(after - before, size - size_before)
