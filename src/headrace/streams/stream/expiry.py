"""Messages that go by themselves in streams that allow TTLs: each at its own time, all at `max_age`.

    Nats-TTL: 30s      gone 30 s after it was stored, or at max_age, whichever comes first
    Nats-TTL: never    stays, whatever max_age says
    no header          gone at max_age

Where the stream keeps delete markers, the last message of a subject is followed by one. The marker is written before the
messages go: a crash between the two leaves old messages under a marker, and the next start removes them. Streams without
TTLs are not here: their store takes whole blocks off the front by itself.

Times are wall times. Everything is done in slices: the stream calls `run` again while there is more.
"""

from __future__ import annotations

import heapq
from array import array
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from headrace.errors import StoreFull
from headrace.streams._kernels import Batch
from headrace.streams.errors import ApiError
from headrace.streams.headers import NEVER, TTL, header_value, parse_ttl_ns
from headrace.streams.limits import go_duration

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream

READ_MSGS = 1024
SLICE_MSGS = 64
SLICE_BYTES = 1 << 20
MARKER = b"Nats-Marker-Reason"
KV_OPERATION = b"KV-Operation"
SECOND_NS = 1_000_000_000

_ttl_of = lru_cache(maxsize=1024)(parse_ttl_ns)


class Expiry:
    """What of one stream goes when."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._store = stream, stream.store
        self._heap: list[tuple[int, int]] = []
        self._never: set[int] = set()
        self._age_from = 1
        """Everything below was looked at for its age: it is gone, or stays for ever."""
        self._age_due: int | None = None
        """No message from `_age_from` on is too old before this; None while nothing is known of them."""
        self._unread: range = range(0)
        """Sequences whose headers were not looked at yet."""

    def __len__(self) -> int:
        return len(self._heap)

    # What is known

    def add(self, sequence: int, ttl_ns: int, stored_ns: int) -> None:
        """A message with a TTL of its own was stored."""
        if ttl_ns == NEVER:
            self._never.add(sequence)
        elif ttl_ns:
            heapq.heappush(self._heap, (stored_ns + ttl_ns, sequence))

    def stored(self, now_ns: int) -> None:
        """Messages were stored: if none was there before, one of them is the next to be too old. A mirror's carry the
        times of their origin."""
        config = self._stream.config
        if config.max_age > 0 and self._age_due is None:
            self._age_due = now_ns + config.max_age if config.mirror is None else 0

    def begin(self) -> None:
        """TTLs are allowed from now on: what is stored already has to be looked at, from the first message on."""
        self._heap, self._never = [], set()
        first, last = self._store.first_seq, self._store.last_seq
        self._unread = range(first, last + 1)
        self.reconfigured()

    def reconfigured(self) -> None:
        """Another `max_age`: every message may be too old, or young again."""
        self._age_from, self._age_due = 1, 0 if self._stream.config.max_age > 0 else None

    def read_all(self) -> None:
        """Look at everything that `begin` found, before anything is served."""
        while self._unread:
            self._read_some()

    def _read_some(self) -> None:
        batch = self._store.read(self._unread.start, READ_MSGS)
        for sequence, stored_ns, value in batch.with_header(TTL):
            if sequence in self._unread:
                self.add(sequence, _known_ttl(value), stored_ns)
        end = batch.last_position + 1 if len(batch) else self._unread.stop
        self._unread = range(min(end, self._unread.stop), self._unread.stop)

    # What is due

    def next_ns(self) -> int | None:
        """When there is something to do."""
        if self._unread:
            return 0
        due = self._heap[0][0] if self._heap else None
        if self._age_due is None:
            return due
        return self._age_due if due is None else min(due, self._age_due)

    def run(self, now_ns: int) -> None:
        """Remove what is due, at most a slice of it. If the disk refuses, nothing is forgotten: call it again."""
        if self._unread:
            self._read_some()
            return
        due = self._take_due(now_ns)
        age_from, age_due = self._age_from, self._age_due
        aged = self._take_aged(now_ns, SLICE_MSGS - len(due))
        going = sorted({*(sequence for _, sequence in due), *aged})
        try:
            if going:
                self._remove(going, now_ns)
        except BaseException:
            for each in due:
                heapq.heappush(self._heap, each)
            self._age_from, self._age_due = age_from, age_due
            raise

    def _take_due(self, now_ns: int) -> list[tuple[int, int]]:
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ns and len(due) < SLICE_MSGS:
            due.append(heapq.heappop(self._heap))
        return due

    def _take_aged(self, now_ns: int, msgs_max: int) -> list[int]:
        max_age = self._stream.config.max_age
        if max_age <= 0 or self._age_due is None or self._age_due > now_ns or msgs_max <= 0:
            return []
        aged: list[int] = []
        batch = self._store.read(self._age_from, msgs_max, SLICE_BYTES)
        times, positions = batch.times(), batch.positions()
        old = next((at for at, time_ns in enumerate(times) if time_ns + max_age > now_ns), len(times))
        if old:
            self._age_from = positions[old - 1] + 1
            aged = [sequence for sequence in positions[:old] if sequence not in self._never]
        # Without a younger one in sight the next slice goes on at once; at the end of the stream nothing is known.
        self._age_due = times[old] + max_age if old < len(times) else 0 if len(times) else None
        return aged

    # Removing

    def _remove(self, going: list[int], now_ns: int) -> None:
        stream, store = self._stream, self._store
        batch = store.load_msgs(going)
        live = batch.positions()
        self._never.difference_update(going)
        if not live:
            return
        marked = self._subjects_to_mark(batch)
        if marked and store.config.discard == "new":
            store.remove(live)  # a full stream takes no marker before there is room
        if marked:
            self._store_markers(marked, now_ns)
        rest = store.live_among(live)
        if rest:
            store.remove(rest)
        stream.removed(live)

    def _subjects_to_mark(self, batch: Batch) -> list[str]:
        """Subjects whose newest message goes, in the order of these, unless it says itself that the subject is deleted."""
        config = self._store.config
        if not config.subject_delete_marker_ttl or self._stream.nobody_interested:
            return []
        newest = {record.subject: record for record in batch}
        last = set(array("Q", self._store.last_per_subject(list(newest))))
        going = sorted(newest.values(), key=lambda record: record.seq)
        return [each.subject for each in going if each.seq in last and not _is_marker(each.headers)]

    def _store_markers(self, subjects: list[str], now_ns: int) -> None:
        stream = self._stream
        ttl_ns = stream.config.subject_delete_marker_ttl // SECOND_NS * SECOND_NS
        text = (
            "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n"
            f"Nats-TTL: {go_duration(ttl_ns)}\r\nNats-Rollup: sub\r\n\r\n"
        ).encode()
        batch = Batch.build(subjects, [b""] * len(subjects), [text] * len(subjects))
        try:
            ticket = stream.write(batch)
        except StoreFull:
            return  # as a publish would be refused; what is due goes all the same
        for sequence in range(ticket.first, ticket.next):
            self.add(sequence, ttl_ns, now_ns)
        stream.appended(ticket, batch)
        stream.engine.after(stream.store, ticket.mark, partial(stream.stored, None), now=stream.in_memory)


def _known_ttl(value: bytes) -> int:
    try:
        return _ttl_of(value)
    except ApiError:  # stored by somebody who did not look
        return 0


def _is_marker(headers: bytes | None) -> bool:
    if headers is None:
        return False
    return bool(header_value(headers, MARKER)) or header_value(headers, KV_OPERATION) == b"PURGE"
