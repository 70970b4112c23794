"""Which messages a consumer gets next: the one place where that is decided.

In the order of nats-server 2.15.2 (its `getNextMsg`, one message at a time; here as many as are wanted):

    1  redeliveries          in the order they became due; those delivered often enough are given up instead
    2  max_ack_pending       too many unsettled: nothing new until some are
    3  skip list             last_per_subject: the newest of each subject, as it was when the consumer was made
    4  new messages          from the position on, what the filters take; removed and expired ones are passed over
    5  end of the stream     as far as it is durable: nothing leaves before that

`choose` changes nothing but what the ledger gives up; `Position.passed` notes what was sent.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from headrace.layouts.stream_store import StreamStore
from headrace.streams._kernels import Batch, Ledger

MSGS_MAX = 4096
BYTES_MAX = 4 << 20
# Blocks that one choice may read from disk: the loop waits for it.
LOADS_MAX = 1
NOTHING = Batch.build("", [])


class Why(Enum):
    """Where the messages come from, or why there are none."""

    AGAIN = "redelivery"
    SKIP_LIST = "skip list"
    NEW = "new"
    STALLED = "max_ack_pending is reached"
    MORE = "nothing in what was looked at; look again"
    END = "end of the stream"


class Choice(NamedTuple):
    """The next messages. `next_seq` is where to look on once all of them were sent."""

    why: Why
    batch: Batch = NOTHING
    next_seq: int = 0
    gone: Sequence[int] = ()
    """To be delivered again, but not in the stream any more."""


class Want(NamedTuple):
    """What may be sent now. `whole`: nobody asks for more than that."""

    msgs: int = MSGS_MAX
    bytes: int = BYTES_MAX
    whole: bool = False


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
    """Where a consumer stands in its stream, beside its ledger."""

    __slots__ = ("filters", "max_ack_pending", "next_seq", "resume", "skip_list")

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

    def passed(self, choice: Choice, taken: int) -> None:
        """The first `taken` messages of a choice were sent (none of an empty one)."""
        if choice.why is Why.SKIP_LIST:
            last = choice.batch[taken - 1].position if taken else 0
            if taken == len(choice.batch):
                last = choice.next_seq - 1
            self.skip_list.drop_through(last)
            if not self.skip_list:
                self.next_seq = max(self.next_seq, self.resume)
        elif choice.why is not Why.AGAIN and choice.next_seq:
            whole = taken == len(choice.batch)
            self.next_seq = choice.next_seq if whole else choice.batch[taken].position


def choose(ledger: Ledger, store: StreamStore, position: Position, want: Want, below: int | None) -> Choice:
    """The next messages for a consumer. `below`: nothing at or above this sequence is durable yet."""
    room = want.msgs if want.msgs < MSGS_MAX else MSGS_MAX
    if ledger.num_due and (due := ledger.due(room)):
        return _again(store, due, want)
    if position.max_ack_pending > 0:
        room = min(room, position.max_ack_pending - ledger.num_pending)
        if room <= 0:
            return Choice(Why.STALLED)
    if position.skip_list:
        return _skip_list(store, position, room, want, below)
    batch, next_seq = store.read_matching(
        position.next_seq, room, want.bytes, position.filters, below, LOADS_MAX
    )
    if len(batch):
        return Choice(Why.NEW, batch, next_seq)
    end = store.last_seq + 1 if below is None else below
    return Choice(Why.END if next_seq >= end else Why.MORE, batch, next_seq)


def _again(store: StreamStore, due: list[int], want: Want) -> Choice:
    """Messages that are due again; those no longer in the stream are named."""
    batch = store.load_msgs(due, want.bytes)
    there = batch.positions()
    if not there:
        return Choice(Why.AGAIN, gone=due)
    asked = due[: due.index(there[-1]) + 1]
    gone = [] if len(asked) == len(there) else sorted(set(asked).difference(there))
    return Choice(Why.AGAIN, batch, gone=gone)


def _skip_list(store: StreamStore, position: Position, room: int, want: Want, below: int | None) -> Choice:
    """The next of the snapshot, as far as it is durable. What was removed since is passed over."""
    asked = [seq for seq in position.skip_list.first(room) if below is None or seq < below]
    if not asked:
        return Choice(Why.END)
    batch = store.load_msgs(asked, want.bytes)
    whole = not len(batch) or len(batch) == len(asked)
    return Choice(Why.SKIP_LIST, batch, asked[-1] + 1 if whole else batch.last_position + 1)
