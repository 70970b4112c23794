"""Which messages a consumer gets next: the one place where that is decided.

In the order of nats-server 2.15.2 (its `getNextMsg`, one message at a time; here as many as are wanted):

    1  redeliveries          in the order they became due; those delivered often enough are given up instead
    2  max_ack_pending       too many unacked: nothing new until some are
    3  skip list             last_per_subject: the newest of each subject, as it was when the consumer was made
    4  new messages          from the position on, what the filters take; removed and expired ones are passed over
    5  end of the stream     as far as it is durable: nothing leaves before that

`Position.choose` changes nothing but what the ledger gives up; `Position.passed` notes what was sent.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum

from headrace.layouts.stream_store import StreamStore
from headrace.streams._kernels import Batch, Ledger

MSGS_MAX = 4096
BYTES_MAX = 4 << 20
# The loop waits for a choice: it reads no block from disk.
LOADS_MAX = 0
NOTHING = Batch.build("", [])


class Why(Enum):
    """Where the messages come from, or why there are none."""

    AGAIN = "redelivery"
    SKIP_LIST = "skip list"
    NEW = "new"
    STALLED = "max_ack_pending is reached"
    COLD = "what comes next is not in memory"
    END = "end of the stream"


class SkipList:
    """Sequences in order, of which the first ones go; a million of them is not unusual."""

    __slots__ = ("_all", "_at")

    def __init__(self, packed: bytes = b"") -> None:
        """`packed` has 8 bytes for each."""
        self._all, self._at = array("Q", packed), 0

    def __len__(self) -> int:
        return len(self._all) - self._at

    def first(self, count: int) -> list[int]:
        """The next ones."""
        return self._all[self._at : self._at + count].tolist()

    def drop_through(self, sequence: int) -> None:
        """Those up to a sequence go."""
        self._at = bisect_right(self._all, sequence, self._at)

    def packed(self) -> bytes:
        """What is left, 8 bytes for each."""
        return self._all[self._at :].tobytes()


class Position:
    """Where a consumer stands in its stream, beside its ledger, and the messages that were chosen from there."""

    __slots__ = (
        "ahead",
        "batch",
        "cold",
        "filters",
        "gone",
        "look_on",
        "max_ack_pending",
        "next_seq",
        "resume",
        "skip_list",
        "why",
    )

    def __init__(
        self,
        next_seq: int,
        filters: Sequence[str] = (),
        max_ack_pending: int = -1,
        skip_list: bytes = b"",
        resume: int = 0,
    ) -> None:
        self.next_seq = next_seq
        """The first sequence that was not looked at."""
        self.filters = list(filters)
        self.max_ack_pending = max_ack_pending
        self.skip_list = SkipList(skip_list)
        """Sequences to deliver before everything from `resume` on."""
        self.resume = resume
        self.why, self.batch = Why.END, NOTHING
        """What was chosen last."""
        self.look_on = 0
        """Where to look on once all of it was sent; 0 where that stays."""
        self.gone: Sequence[int] = ()
        """To be delivered again, but not in the stream any more."""
        self.cold = 0
        """The sequence from which on it has to be read from disk."""
        self.ahead = 0
        """From this sequence on the next block is to be read ahead; 0 where that is not worth it."""

    def choose(self, ledger: Ledger, store: StreamStore, msgs: int, size: int, below: int | None) -> Batch:
        """The next messages, at most so many and (but for the first) so many bytes; `why` says where they come from, or
        why there are none. `below`: nothing at or above this sequence is durable yet."""
        msgs_max = msgs if msgs < MSGS_MAX else MSGS_MAX
        self.gone = ()
        if ledger.num_due and (due := ledger.due(msgs_max)):
            return self._again(store, due, size)
        if self.max_ack_pending > 0:
            msgs_max = min(msgs_max, self.max_ack_pending - ledger.num_pending)
            if msgs_max <= 0:
                return self._chosen(Why.STALLED, NOTHING, 0)
        if self.skip_list:
            return self._skip_list(store, msgs_max, size, below)
        batch, look_on = store.read_matching(self.next_seq, msgs_max, size, self.filters, below, LOADS_MAX)
        why = Why.NEW
        if not len(batch):
            end = store.last_seq + 1 if below is None else below
            why = Why.END if look_on >= end else Why.COLD
            self.cold = look_on
        self.why, self.batch, self.look_on = why, batch, look_on
        return batch

    def _chosen(self, why: Why, batch: Batch, look_on: int) -> Batch:
        self.why, self.batch, self.look_on = why, batch, look_on
        return batch

    def _again(self, store: StreamStore, due: list[int], size: int) -> Batch:
        """Messages that are due again; those no longer in the stream are named."""
        batch, looked_at = store.load_warm(due, size)
        if not looked_at:
            return self._not_in_memory(due[0])
        if looked_at > len(batch):
            self.gone = sorted(set(due[:looked_at]).difference(batch.positions()))
        return self._chosen(Why.AGAIN, batch, 0)

    def _not_in_memory(self, sequence: int) -> Batch:
        self.cold = sequence
        return self._chosen(Why.COLD, NOTHING, 0)

    def _skip_list(self, store: StreamStore, msgs_max: int, size: int, below: int | None) -> Batch:
        """The next of the snapshot, as far as it is durable. What was removed since is passed over."""
        next_ones = [seq for seq in self.skip_list.first(msgs_max) if below is None or seq < below]
        if not next_ones:
            return self._chosen(Why.END, NOTHING, 0)
        batch, looked_at = store.load_warm(next_ones, size)
        if not looked_at:
            return self._not_in_memory(next_ones[0])
        whole = not len(batch) or len(batch) == looked_at
        last = next_ones[looked_at - 1] if whole else batch.last_position
        return self._chosen(Why.SKIP_LIST, batch, last + 1)

    def shorten(self, count: int) -> Batch:
        """Only the first so many of what was chosen."""
        batch = self.batch.slice(0, count)
        return self._chosen(self.why, batch, batch.last_position + 1 if count else 0)

    def passed(self, taken: int) -> None:
        """The first `taken` messages of what was chosen were sent (none where there are none)."""
        whole = taken == len(self.batch)
        if self.why is Why.SKIP_LIST:
            last = self.batch[taken - 1].position if taken else 0
            self.skip_list.drop_through(self.look_on - 1 if whole else last)
            if not self.skip_list:
                self.next_seq = max(self.next_seq, self.resume)
        elif self.why is not Why.AGAIN and self.look_on:
            self.next_seq = self.look_on if whole else self.batch[taken].position
        self.batch = NOTHING  # it holds the block that it was read from
