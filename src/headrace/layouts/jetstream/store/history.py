"""What was ever written to a stream and is still in its files: for those who must remember more than is live.

Ids in the duplicate window, numbers of producers and positions in origins stand in headers of messages that may be
removed already.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from headrace.layouts.jetstream._kernels import Batch, js_scan_block
from headrace.layouts.jetstream.paths import block_numbers

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore

TAKEN_BACK_NS = 1
"""The time in a tombstone that says: this message was never stored, its batch failed. Others say when it was stored."""


def read_history(store: FileStreamStore, above: int | None, since_ns: int | None) -> Generator[Batch]:
    """Every sound record of the blocks whose last sequence is above the one and whose last time is after the other, the
    newest block first: removed messages are among them, those of a batch that failed are not. Files that only wait to
    go are always read."""
    listed = {block.number: block for block in store.log.blocks()}
    never_stored: set[int] = set()
    for number in reversed(block_numbers(store.disk, store.msgs_dir)):
        block = listed.get(number)
        if block is not None:
            known = above is not None and block.last_seq <= above
            old = since_ns is not None and block.last_time_ns <= since_ns
            if known or old:
                continue
        cipher = store.log.cipher_of(number) if block is not None else None
        path = f"{store.msgs_dir}/{number}.blk"
        scan = js_scan_block(store.disk, path, store.name, number, cipher=cipher)
        never_stored.update(seq for seq, time_ns in scan.tombstones if time_ns == TAKEN_BACK_NS)
        batch = scan.batch
        if never_stored:
            batch = batch.select(bytes(seq not in never_stored for seq in batch.positions()))
        yield batch
