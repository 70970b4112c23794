"""Messages of an origin made ready for the stream that takes them.

    subject    moved by the origin's transforms, then by the stream's own
    headers    without `Nats-Expected-…`, which was asked of the origin; from a source with where it came from
    the rest   as it is

Messages are stored in batches: a message with consequences (a rollup) ends one. Most batches have none of the headers
that need thought; that is seen in one search over all header names of the batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.record import Record
from headrace.streams._kernels import Batch
from headrace.streams.errors import ApiError, api_error
from headrace.streams.headers import FIRST_LINE, header_value, parse_ttl_ns
from headrace.streams.sourcing.state import HEADER, Feed
from headrace.streams.subject_map import compile_map

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream

ROLLUP, TTL, MSG_ID, EXPECTED = b"Nats-Rollup", b"Nats-TTL", b"Nats-Msg-Id", b"Nats-Expected-"
_NAMES = 3  # the buffer of header names among those of the column
_EXPECTED_LINES = re.compile(rb"\nNats-Expected-[^\r\n]*\r(?=\n)")
_SOURCE_LINES = re.compile(rb"\nNats-Stream-Source:[^\r\n]*\r(?=\n)")

Headers = Callable[[Record], bytes | None]


@dataclass(slots=True)
class SourcedBatch:
    """Messages that are stored together, and what follows from them by index."""

    positions: list[int] = field(default_factory=list[int])
    subjects: list[str] = field(default_factory=list[str])
    data: list[bytes | None] = field(default_factory=list[bytes | None])
    headers: list[bytes | None] = field(default_factory=list[bytes | None])
    times: list[int] = field(default_factory=list[int])
    ids: dict[bytes, int] = field(default_factory=dict[bytes, int])
    ttls: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    rollup: str | None = None
    """The last message replaces what is older: on this subject, or everything ("")."""
    blocked: tuple[int, ApiError] | None = None
    """The message behind these cannot be taken: its position in the origin, and why."""

    def batch(self, *, mirror: bool) -> Batch:
        """As it is appended; a mirror keeps times and sequences."""
        if mirror:
            return Batch.build(self.subjects, self.data, self.headers, self.times, self.positions)
        return Batch.build(self.subjects, self.data, self.headers)


class SourcedBatchBuilder:
    """Makes batches for one stream."""

    def __init__(self, stream: Stream, *, mirror: bool) -> None:
        config = stream.config
        self._stream, self._mirror = stream, mirror
        moved = config.subject_transform
        self._transform = compile_map(moved.src, moved.dest) if moved is not None else None
        self._size_max = config.max_msg_size
        self._watched = [EXPECTED]
        if not mirror:
            self._watched.append(HEADER)
            if config.duplicate_window > 0:
                self._watched.append(MSG_ID)
        if config.allow_rollup_hdrs:
            self._watched.append(ROLLUP)
        if config.allow_msg_ttl:
            self._watched.append(TTL)

    def as_they_are(self, feed: Feed, batch: Batch) -> bool:
        """Whether a mirror may take the whole batch without a look at its messages."""
        changed = feed.maps or self._transform is not None or self._size_max > 0
        return self._mirror and not changed and not self._needs_thought(batch)

    def _needs_thought(self, batch: Batch) -> bool:
        try:
            names = bytes(batch.arrow_columns(["headers"])["headers"][_NAMES])
        except HeadraceError:  # headers that cannot be understood: looked at one by one
            return True
        return any(each in names for each in self._watched)

    def build(self, feed: Feed, batch: Batch) -> Iterator[SourcedBatch]:
        """The batches of a batch, in order. Each must be stored before the next is asked for."""
        thoughtful = self._needs_thought(batch)
        headers = self._headers_for(feed, thoughtful)
        if not thoughtful and self._size_max <= 0:
            yield self._build_plain(feed, batch, headers)
            return
        now, sourced = self._stream.engine.clock(), SourcedBatch()
        for record in batch:
            block, size = headers(record), len(record.data or b"")
            if 0 < self._size_max < len(block or b"") + size:
                sourced.blocked = (record.position, api_error("JSStreamMessageExceedsMaximumErr"))
                break
            if self._is_duplicate(sourced, block, now):
                continue
            self._note(sourced, record, block, now)
            self._add(sourced, feed, record, block)
            if sourced.rollup is not None:
                yield sourced
                sourced = SourcedBatch()
        yield sourced

    def _build_plain(self, feed: Feed, batch: Batch, headers: Headers) -> SourcedBatch:
        records = list(batch)
        subjects = [record.subject for record in records]
        if feed.maps or self._transform is not None:
            subjects = [self._move(feed, each) for each in subjects]
        times = batch.times() if self._mirror else []
        data = [record.data for record in records]
        return SourcedBatch(batch.positions(), subjects, data, [headers(record) for record in records], times)

    def _move(self, feed: Feed, subject: str) -> str:
        for each in feed.maps:
            moved = each.apply(subject)
            if moved is not None:
                subject = moved
                break
        return (self._transform.apply(subject) or subject) if self._transform is not None else subject

    def _headers_for(self, feed: Feed, thoughtful: bool) -> Headers:
        if self._mirror:
            return _without_expectations if thoughtful else lambda record: record.headers
        front = b"%s: %s " % (HEADER, feed.name.encode())
        shape, identity = f" {feed.shape} ".encode(), f" {feed.identity}\r\n\r\n".encode()

        def with_origin(record: Record) -> bytes:
            block = _without_origin(record) if thoughtful else record.headers
            head = block[:-2] if block else FIRST_LINE
            number, subject = b"%d" % record.position, record.subject.encode()
            return b"".join((head, front, number, shape, subject, identity))

        return with_origin

    def _is_duplicate(self, sourced: SourcedBatch, block: bytes | None, now: int) -> bool:
        if self._mirror or block is None or self._stream.config.duplicate_window <= 0:
            return False
        message_id = header_value(block, MSG_ID)
        if not message_id:
            return False
        if message_id in sourced.ids or self._stream.window.find(message_id, now) is not None:
            return True
        sourced.ids[message_id] = len(sourced.subjects)
        return False

    def _note(self, sourced: SourcedBatch, record: Record, block: bytes | None, now: int) -> None:
        """TTLs and rollups, where the stream allows them; elsewhere they are headers like others."""
        config = self._stream.config
        if block is None:
            return
        if config.allow_msg_ttl and TTL in block:
            try:
                ttl = parse_ttl_ns(header_value(block, TTL))
            except ApiError:  # the origin did not look at it
                ttl = 0
            if ttl:
                stored_ns = record.time_ns if self._mirror else now
                sourced.ttls.append((len(sourced.subjects), ttl, stored_ns))
        if config.allow_rollup_hdrs and ROLLUP in block:
            value = (header_value(block, ROLLUP) or b"").lower()
            if value in (b"sub", b"all"):
                sourced.rollup = "" if value == b"all" else record.subject

    def _add(self, sourced: SourcedBatch, feed: Feed, record: Record, block: bytes | None) -> None:
        subject = self._move(feed, record.subject)
        if sourced.rollup:
            sourced.rollup = subject
        sourced.positions.append(record.position)
        sourced.subjects.append(subject)
        sourced.data.append(record.data)
        sourced.headers.append(block)
        sourced.times.append(record.time_ns)


def _without_expectations(record: Record) -> bytes | None:
    block = record.headers
    if block is None or EXPECTED not in block:
        return block
    block = _EXPECTED_LINES.sub(b"", block)
    return None if block == FIRST_LINE + b"\r\n" else block


def _without_origin(record: Record) -> bytes | None:
    block = _without_expectations(record)
    return block if block is None or HEADER not in block else _SOURCE_LINES.sub(b"", block)
