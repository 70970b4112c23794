"""The dedupe window over restarts: ids of stored messages, removed ones too.

A message with a producer's number is remembered by that (`producers`), not by its id.

At start the window is read back from the blocks (a removed message's record is still there until its block goes) and
from a state beside the messages, which is saved before a block goes and at a clean stop.

    state `dedupe` of the store    JSON: [[id (base64), sequence, time ns], …]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError, NotFound
from headrace.streams._kernels import Batch, Window
from headrace.streams.headers import header_value

if TYPE_CHECKING:
    from headrace.layouts.stream_store import StreamStore

STATE = "dedupe"
MSG_ID = b"Nats-Msg-Id"
PRODUCER, SOURCE = b"\r\nHeadrace-Producer:", b"Nats-Stream-Source"
_Saved = list[tuple[bytes, int, int]]


def restore_window(store: StreamStore, span_ns: int, now_ns: int) -> Window:
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


def _recent(store: StreamStore, since: int) -> list[Batch]:
    """Every record of the blocks that reach into the window, removed ones included."""
    return list(store.history(since_ns=since))[::-1]


def _last_id(store: StreamStore) -> bytes:
    try:
        headers = store.load_msg(store.last_seq).headers
    except NotFound:  # removed, or there never was one
        return b""
    return header_value(headers, MSG_ID) or b"" if headers else b""


def _saved(store: StreamStore) -> _Saved:
    try:
        saved = store.load_saved(STATE)
        return msgspec.json.decode(saved, type=_Saved) if saved is not None else []
    except (HeadraceError, msgspec.DecodeError):
        return []


def save_window(store: StreamStore, window: Window, now_ns: int) -> None:
    """Save the ids that are still in the window; on disk when this returns."""
    window.prune(now_ns)
    if len(window) or store.has_saved(STATE):
        store.save(STATE, msgspec.json.encode(window.export()))
