"""Snapshots of a store, in both forms that servers exchange. `restore.py` goes the other way.

    archive   NATSARC1 of 2.15: state, consumers, then live messages only
    tar       2.6 to 2.14: the files themselves, deciphered
Both are one S2 stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.errors import BadInput, Damaged
from headrace.layouts.jetstream._kernels import Batch
from headrace.layouts.jetstream.snapshots import archive
from headrace.layouts.jetstream.snapshots.portable import portable_files
from headrace.layouts.jetstream.snapshots.snapshot_json import encode_log_state, encode_snapshot_consumer
from headrace.layouts.stream_store import SnapshotResult

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore

_AT_ONCE = 8192


def take(
    store: FileStreamStore, deadline_s: float, include_consumers: bool, check_msgs: bool, form: str
) -> SnapshotResult:
    """Begin a snapshot. Chunks are made as they are asked for; past the deadline that raises TimeoutError."""
    if form not in ("archive", "tar"):
        raise BadInput(f"snapshot form {form!r}; known are 'archive' and 'tar'")
    if check_msgs:
        bad = [damage for damage in store.damage() if damage.kind in ("bad-record", "unsound-tail")]
        if bad:
            raise Damaged(
                bad[0].file,
                bad[0].offset,
                bad[0].detail,
                "sound messages",
                "salvage the store, or do not ask to check",
            )
    store.commit()
    state = store.state()
    pieces = _archive(store, include_consumers) if form == "archive" else _tar(store, include_consumers)
    end = time.monotonic() + deadline_s
    return SnapshotResult(_until(archive.compress(pieces), end), state)


def _until(pieces: Iterator[bytes], end: float) -> Iterator[bytes]:
    for piece in pieces:
        if time.monotonic() > end:
            raise TimeoutError("the snapshot passed its deadline")
        yield piece


def _messages(store: FileStreamStore) -> Iterator[Batch]:
    position, last = 0, store.log.last_seq
    while position <= last:
        batch = store.log.read(position, _AT_ONCE, 8 << 20, None, last + 1)
        if not len(batch):
            return
        yield batch
        position = batch.last_position + 1


def _archive(store: FileStreamStore, include_consumers: bool) -> Iterator[bytes]:
    state = store.state()
    consumers: list[tuple[str, bytes]] = []
    if include_consumers:
        for name in store.consumers.names():
            each = store.consumers.get(name)
            consumers.append((name, encode_snapshot_consumer(each.config, each.state(), state.last_seq)))
    return archive.write_archive(encode_log_state(state), consumers, _messages(store), store.clock())


def _tar(store: FileStreamStore, include_consumers: bool) -> Iterator[bytes]:
    """The portable form: whatever server takes the tar can read it."""
    return archive.write_tar(portable_files(store, "2.9", include_consumers), store.clock())
