"""What refuses a message: subjects of other streams, and limits that do not evict (`discard: new`, a sealed stream);
and what the others evict.

As nats-server 2.15 was seen to do it: a subject that is at its own limit replaces its oldest message, so the
number of messages does not count then, and bytes only if the new message is larger than the one it replaces.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.errors import BadInput, ReadOnly, StoreFull
from headrace.layouts.jetstream._kernels import Batch, js_record_bytes, subject_matches
from headrace.record import Record

if TYPE_CHECKING:
    from headrace.config.model import StreamConfig
    from headrace.layouts.jetstream.store.store import FileStreamStore

_TOO_MANY = "maximum messages exceeded"
_TOO_LARGE = "maximum bytes exceeded"
_TOO_MANY_ON_SUBJECT = "maximum messages per subject exceeded"


def limits_meet(store: FileStreamStore, batch: Batch) -> bool:
    """Whether a batch may push the oldest messages out while it also replaces some by their subjects. Then the order
    counts: what a later message replaces is still there when an earlier one needs room."""
    config = store.config
    if config.max_msgs_per_subject <= 0 or (config.max_msgs <= 0 and config.max_bytes <= 0):
        return False
    msgs, size = store.log.messages, store.log.live_bytes
    return 0 < config.max_msgs < msgs + len(batch) or 0 < config.max_bytes < size + js_record_bytes(
        batch, store.type() == "memory"
    )


def refuse_other_subjects(config: StreamConfig, batch: Batch) -> None:
    """BadInput for a subject that a server would not bring to this stream. Mirrors have none of their own."""
    if not config.subjects or len(batch.filter(None, None, None, None, list(config.subjects))) == len(batch):
        return
    others = (each.decode("utf-8", "replace") for each in batch.subjects())
    wrong = next(each for each in others if not any(subject_matches(mine, each) for mine in config.subjects))
    raise BadInput(
        f"stream {config.name} does not take messages on {wrong!r}: its subjects are {', '.join(config.subjects)}"
    )


def refuse_what_does_not_fit(store: FileStreamStore, batch: Batch) -> None:
    """Raise StoreFull (with the server's words) or ReadOnly; nothing of the batch is stored then."""
    config = store.config
    if config.sealed:
        raise ReadOnly("invalid operation on sealed stream")
    if config.discard != "new":
        return
    msgs, size = store.log.messages, store.log.live_bytes
    if config.max_msgs_per_subject > 0:
        _Subjects(store, len(batch)).refuse(batch, msgs, size)
    elif 0 < config.max_msgs < msgs + len(batch):
        raise StoreFull(_TOO_MANY)
    elif 0 < config.max_bytes < size + js_record_bytes(batch, store.type() == "memory"):
        raise StoreFull(_TOO_LARGE)


def evict_front(store: FileStreamStore) -> tuple[int, int]:
    """Evict the oldest until max_msgs and max_bytes hold: (messages, bytes). Age is `upkeep`'s; `discard: new` evicts
    nothing."""
    config = store.config
    if config.discard == "new" or (config.max_msgs <= 0 and config.max_bytes <= 0):
        return 0, 0
    msgs, size = store.log.messages, store.log.live_bytes
    over = 0 < config.max_msgs < msgs or 0 < config.max_bytes < size
    if not over:
        return 0, 0
    limit = config.max_msgs if config.max_msgs > 0 else None
    return store.log.evict_front(limit, config.max_bytes if config.max_bytes > 0 else None, None, None)


class _Subjects:
    """The sizes of the oldest messages on each subject of a batch, as the batch would change them."""

    def __init__(self, store: FileStreamStore, depth: int) -> None:
        self._store, self._depth = store, depth
        self._counts: dict[str, int] = {}
        self._oldest: dict[str, deque[int]] = {}

    def refuse(self, batch: Batch, msgs: int, size: int) -> None:
        config = self._store.config
        for record in batch:
            self._look_up(record.subject)
            at_limit = self._counts[record.subject] >= config.max_msgs_per_subject
            if at_limit and config.discard_new_per_subject:
                raise StoreFull(_TOO_MANY_ON_SUBJECT)
            if not at_limit and 0 < config.max_msgs <= msgs:
                raise StoreFull(_TOO_MANY)
            added, replaced = self._size(record), self._oldest[record.subject].popleft() if at_limit else 0
            if _over(config, size + added) and added > replaced:
                raise StoreFull(_TOO_LARGE)
            self._oldest[record.subject].append(added)
            self._counts[record.subject] += not at_limit
            msgs, size = msgs + (not at_limit), size + added - replaced

    def _look_up(self, subject: str) -> None:
        if subject not in self._counts:
            known = self._store.filtered_state(0, subject)
            self._counts[subject] = known.msgs
            oldest, position = deque[int](), known.first
            while known.msgs and len(oldest) < min(self._depth, known.msgs):
                found = self._store.log.read(position, self._depth, 8 << 20, subject, None)
                if not len(found):
                    break
                oldest.extend(self._size(record) for record in found)
                position = found.last_position + 1
            self._oldest[subject] = oldest

    def _size(self, record: Record) -> int:
        in_memory = self._store.type() == "memory"
        size = len(record.subject.encode()) + len(record.headers or b"") + len(record.data or b"")
        in_file = 14 + (4 if record.headers is not None else 0)
        return size + 16 + (0 if in_memory else in_file)


def _over(config: StreamConfig, size: int) -> bool:
    return 0 < config.max_bytes < size
