"""Messages that die of themselves: which one is due when, by wall time. Rebuilt from the messages' headers at start."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from headrace.streams.errors import ApiError
from headrace.streams.headers import header_value, parse_ttl_ns

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store import FileStreamStore

_READ_MSGS = 4096


class Ttls:
    """(due, sequence) in a heap; removed messages are found gone when they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: int, due_ns: int) -> None:
        """This message dies at that wall time."""
        heapq.heappush(self._heap, (due_ns, sequence))

    def next_ns(self) -> int | None:
        """When the next one dies."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int) -> list[int]:
        """Sequences whose time has come."""
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[1])
        return due

    def load(self, store: FileStreamStore) -> None:
        """Find what the headers of stored messages say."""
        position = 1
        while len(batch := store.read(position, _READ_MSGS)):
            for record in batch:
                if record.headers is None or b"Nats-TTL" not in record.headers:
                    continue
                try:
                    ttl = parse_ttl_ns(header_value(record.headers, b"Nats-TTL"))
                except ApiError:  # stored by somebody who did not look
                    continue
                if ttl:
                    self.add(record.seq, record.time_ns + ttl)
            position = batch.last_position + 1
