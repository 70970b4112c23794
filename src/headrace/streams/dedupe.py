"""The dedupe window over restarts: ids of stored messages, removed ones too.

A message with a producer's number is remembered by that (`producers`), not by its id.

At start the window is read back from the blocks (a removed message's record is still there until its block goes) and
from a side file, which is written before a block goes and at a clean stop.

    <stream>/headrace/dedupe    JSON lines-free: [[id (base64), sequence, time ns], …] with a CRC in front
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError
from headrace.layouts.jetstream.paths import make_dirs
from headrace.streams._kernels import Batch, Window
from headrace.streams.headers import header_value

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store import FileStreamStore

FILE = "dedupe"
MSG_ID = b"Nats-Msg-Id"
PRODUCER, SOURCE = b"\r\nHeadrace-Producer:", b"Nats-Stream-Source"
_Saved = list[tuple[bytes, int, int]]


def restore_window(store: FileStreamStore, span_ns: int, now_ns: int) -> Window:
    """A window as it was when the store was written last."""
    window = Window(span_ns)
    found: dict[bytes, tuple[int, int]] = {}
    if span_ns > 0:
        since = now_ns - span_ns
        for message_id, sequence, time_ns in _saved(store):
            if time_ns > since:
                found[message_id] = (sequence, time_ns)
        for batch in _recent(store, since):
            _note(batch, since, found)
    for message_id, (sequence, time_ns) in sorted(found.items(), key=lambda item: item[1]):
        window.accepted(message_id, sequence, time_ns)
    window.set_last_id(_last_id(store))
    return window


def _note(batch: Batch, since: int, found: dict[bytes, tuple[int, int]]) -> None:
    for record in batch:
        if record.time_ns <= since or record.headers is None or MSG_ID not in record.headers:
            continue
        if PRODUCER in record.headers and header_value(record.headers, SOURCE) is None:
            # Remembered by its number, unless it came from another stream.
            continue
        message_id = header_value(record.headers, MSG_ID)
        if message_id and message_id not in found:
            found[message_id] = (record.seq, record.time_ns)


def _recent(store: FileStreamStore, since: int) -> list[Batch]:
    """Every record of the blocks that reach into the window, removed ones included."""
    return list(store.history(lambda block: block[7] > since))[::-1]


def _last_id(store: FileStreamStore) -> bytes:
    last = store.log.totals()[2]
    found = store.log.load(last) if last else None
    return (header_value(found[3], MSG_ID) or b"") if found is not None and found[3] else b""


def _saved(store: FileStreamStore) -> _Saved:
    try:
        raw = store.disk.read(f"{store.sidecar.path}/{FILE}", 1 << 30)
        crc, body = raw[:4], raw[4:]
        if zlib.crc32(body).to_bytes(4, "little") != crc:
            return []
        return msgspec.json.decode(body, type=_Saved)
    except (HeadraceError, msgspec.DecodeError):
        return []


def save_window(store: FileStreamStore, window: Window, now_ns: int) -> None:
    """Write the ids that are still in the window; synced when this returns."""
    window.prune(now_ns)
    if store.type() == "memory" or (
        not len(window) and store.disk.entry(f"{store.sidecar.path}/{FILE}") is None
    ):
        return
    body = msgspec.json.encode(window.export())
    make_dirs(store.disk, store.sidecar.path)
    store.disk.replace_file(f"{store.sidecar.path}/{FILE}", zlib.crc32(body).to_bytes(4, "little") + body)
