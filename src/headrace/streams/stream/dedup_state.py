"""What a stream must remember of messages that may be gone: ids in the duplicate window, numbers of its producers.

It is read back before limits are applied to an opened store, and saved before files of messages go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.streams.stream import dedupe
from headrace.streams.stream.producers import ProducerMarks

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.layouts.stream_store import StreamStore


class DedupState:
    """What one stream remembers, bound to its store."""

    def __init__(self, store: StreamStore, clock: Callable[[], int]) -> None:
        self._store, self._clock = store, clock
        self.window = dedupe.restore_window(store, store.config.duplicate_window, clock())
        self.marks = ProducerMarks(store)
        store.before_unlink = self.save
        store.on_checkpoint = self.marks.checkpoint

    def save(self) -> None:
        """Save what files that go would take along."""
        dedupe.save_window(self._store, self.window, self._clock())
        self.marks.save_changes()

    def save_all(self) -> None:
        """Save everything, so that the next start reads no records for it."""
        dedupe.save_window(self._store, self.window, self._clock())
        self.marks.stop()
