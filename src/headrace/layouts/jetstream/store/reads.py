"""What a store says of its messages at this moment: numbers and lookups, each one call of the core.

Nothing here takes the store's lock or changes anything; the core's own lock makes each answer consistent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from headrace.layouts.base import SimpleState
from headrace.layouts.jetstream._kernels import Batch, BlockLog, HeldBlock
from headrace.layouts.jetstream.store.history import read_history
from headrace.layouts.stream_store import BlockPlace, StreamKernel, StreamStore, SubjectsPage

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore


class StoreReads(StreamStore, ABC):
    """The part of a store that only looks at the blocks."""

    log: BlockLog

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreClosed after the end."""

    # States

    def filtered_state(self, seq: int, subject: str) -> SimpleState:
        """Messages from `seq` on that match the filter ("" = all)."""
        self._check_open()
        return SimpleState(*self.log.filtered_state(seq, subject))

    def subjects_state(self, filter_subject: str) -> Mapping[str, SimpleState]:
        """Per subject that matches the filter: messages, first, last."""
        self._check_open()
        found = self.log.subjects_state(filter_subject)
        return {subject: SimpleState(*counts) for subject, counts in found.items()}

    def utilization(self) -> tuple[int, int]:
        """(bytes on disk, bytes of live messages)."""
        self._check_open()
        state = self.log.state()
        return state.file_bytes, state.bytes

    # Numbers

    @property
    def first_seq(self) -> int:
        """The first message's sequence; last + 1 if there is none."""
        return self.log.first_seq

    @property
    def last_seq(self) -> int:
        """The last sequence that was given out."""
        return self.log.last_seq

    @property
    def last_time_ns(self) -> int:
        """When the last message was stored."""
        return self.log.last_time_ns

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return self.log.messages

    @property
    def held_bytes(self) -> int:
        """Bytes of all messages, as they were a moment ago if somebody is at work."""
        return self.log.held_bytes

    @property
    def mark(self) -> int:
        """Everything that was written so far, for `commit`."""
        return self.log.mark

    @property
    def durable_mark(self) -> int:
        """The mark up to which everything is on disk."""
        return self.log.durable_mark

    @property
    def durable_next(self) -> int:
        """The first sequence that is not on disk yet."""
        return self.log.durable_seq + 1

    @property
    def was_purged(self) -> bool:
        """A purge begins another block; the first one of a stream is number 1."""
        return self.log.newest_block > 1

    @property
    def is_busy(self) -> bool:
        """Another thread works on it: a change, or a look at many messages."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return self.log.is_busy(not free)

    @property
    def kernel(self) -> StreamKernel:
        """For kernels of the core that write to the store."""
        return self.log

    # Finding messages

    def read_matching(
        self,
        first: int,
        max_msgs: int,
        max_bytes: int,
        filters: Sequence[str],
        below: int | None = None,
        max_loads: int = 1,
    ) -> tuple[Batch, int]:
        """(messages on any of the filters in `[first, below)`, where to go on)"""
        return self.log.read_matching(first, max_msgs, max_bytes, filters, below, max_loads)

    def load_warm(self, seqs: Sequence[int], max_bytes: int) -> tuple[Batch, int]:
        """(messages as far as they are in memory, how many of the sequences were looked at)"""
        return self.log.load_warm(seqs, max_bytes)

    def block_of(self, seq: int) -> BlockPlace | None:
        """Where a sequence lies, or else the next one behind it; None behind the last."""
        found = self.log.block_of(seq)
        return BlockPlace(*found) if found is not None else None

    def hold(self, block: int, filters: Sequence[str] = ()) -> HeldBlock | None:
        """Read a block: in memory (or what the filters select of it) while the result lives."""
        return self.log.hold(block, filters)

    def cold_front(self, msgs: int, size: int) -> int | None:
        """A block that limits would have to read to make room for so many more messages and bytes."""
        config = self.config
        limits = (max(config.max_msgs, 0) or None, max(config.max_bytes, 0) or None)
        return self.log.cold_front(limits, msgs, size)

    def count_matching(self, first: int, below: int | None, filters: Sequence[str]) -> int:
        """How many messages in `[first, below)` are on any of the filters."""
        return self.log.count_matching(first, below, filters)

    def live_among(self, seqs: Sequence[int]) -> list[int]:
        """Those that still have a message."""
        return self.log.live_among(seqs)

    def count_live(self, packed: bytes) -> int:
        """How many of such sequences (8 bytes each) still have a message."""
        return self.log.count_live(packed)

    def time_of(self, seq: int) -> int | None:
        """When a message was stored, in ns; None if it is not there."""
        found = self.log.load(seq)
        return found.time_ns if found is not None else None

    def last_seq_of(self, filter: str) -> int:
        """The newest sequence on a filter, 0 if there is none."""
        return self.log.last_seq_of(filter)

    def last_before(self, subject: str, seq: int) -> int:
        """The newest sequence on a subject below another one, 0 if there is none."""
        return self.log.last_before(subject, seq)

    def last_per_subject(self, filters: Sequence[str]) -> bytes:
        """The newest sequence of each subject, in order; 8 bytes each."""
        return self.log.last_per_subject(filters)

    def newest_of_each(
        self, filters: Sequence[str], up_to: int, max_subjects: int
    ) -> tuple[list[int], list[bytes]] | None:
        """(the newest sequence at or below `up_to` of each subject, subjects that `newest_below` has to look for)"""
        return self.log.newest_of_each(filters, up_to, max_subjects)

    def newest_below(
        self, subjects: Sequence[bytes], below: int, max_blocks: int
    ) -> tuple[list[tuple[int, int]], int]:
        """([(index of the subject, its newest sequence)] in some blocks going back, where to go on; 0 at the end)"""
        return self.log.newest_below(subjects, below, max_blocks)

    def subjects_page(self, filter: str, offset: int, limit: int) -> SubjectsPage:
        """Messages per subject, a page at a time in byte order."""
        return SubjectsPage(*self.log.subjects_page(filter, offset, limit))

    def deleted_json(self, max_listed: int) -> bytes:
        """The sequences between first and last that have no message, as JSON."""
        return self.log.deleted_json(max_listed)

    def history(self, above: int | None = None, since_ns: int | None = None) -> Iterator[Batch]:
        """Every sound record of the blocks that end above a sequence and behind a time, removed messages among them; see
        `history.read_history`."""
        return read_history(cast("FileStreamStore", self), above, since_ns)
