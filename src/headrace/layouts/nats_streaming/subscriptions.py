"""`subs.dat`: who reads a channel, how far it was sent, what is not acknowledged.

    subscription   one record of subs.dat: a client's, or a queue group's member
    reader         what survives it: a durable of a client, a durable queue group with all its members

Deliveries and acks wait in memory (`file_buffer_size`) and are written with the next batch of messages, as the real
server does; `commit` writes and syncs them. A lost ack is a message delivered again, never one that is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.errors import BadInput, NotFound, StoreFull
from headrace.layouts.base import ConsumerState, Cursors, Pending, SequencePair
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.nats_streaming import advice
from headrace.layouts.nats_streaming._kernels import Disk, StanSubs, stan_frame
from headrace.layouts.nats_streaming.names import HEAD, SUBS
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.protos import Deletion, SubState
from headrace.layouts.nats_streaming.recovery import ChannelRecovery

NEW, UPDATE, DELETE = 1, 2, 3
TYPES = 5
TOO_MANY = "too many subscriptions per channel"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription with its place: `last_sent`, and the sequences that wait for an ack."""

    state: SubState
    last_sent: int
    pending: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """durable, durable queue, queue or plain."""
        if self.state.queue_group:
            return "durable queue" if self.state.is_durable else "queue"
        return "durable" if self.state.is_durable else "plain"

    @property
    def reader(self) -> str:
        """The name under which its place is known: `client/durable`, `durable:group`, `group`, or `client/inbox`."""
        state = self.state
        if state.queue_group:
            return state.queue_group
        return f"{state.client_id}/{state.durable_name or state.inbox}"


@dataclass(frozen=True, slots=True)
class Reader:
    """A durable, a queue group or a plain subscription, with everything a conversion needs to go on where it stood."""

    name: str
    kind: str
    client_id: str
    durable_name: str
    queue_group: str
    last_sent: int
    pending: tuple[int, ...]
    max_in_flight: int
    ack_wait_s: int
    is_closed: bool
    members: tuple[Subscription, ...] = field(repr=False, default=())

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its clients."""
        return self.kind in ("durable", "durable queue")

    @property
    def floor(self) -> int:
        """Everything up to here is acknowledged."""
        return min(self.pending) - 1 if self.pending else self.last_sent


class Subscriptions(Cursors):
    """The cursors of one channel. Thread-safe."""

    def __init__(
        self,
        directory: str,
        table: StanSubs,
        size: int,
        *,
        disk: Disk,
        files: Descriptors | None = None,
        options: StreamingOptions | None = None,
        max_subs: int = 0,
        begin: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = f"{directory}/{SUBS}"
        self._root = directory.rsplit("/", 1)[0]
        self._table, self._size, self._disk, self._files = table, size, disk, files
        self._options, self.max_subs = options or StreamingOptions(), max_subs
        self._begin, self._now_s = begin, now_s
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._compacted_at: float | None = None
        self._mutex = threading.RLock()

    @staticmethod
    def load(how: ChannelRecovery, path: str, data: bytes) -> StanSubs:
        """The table that a file's content says. Records that are sound and yet not what their type says are reported:
        the type stands outside the CRC."""
        table, problems, _ = StanSubs.load(data, how.poly, how.strict, True)
        known = {(found.file, found.offset) for found in how.damage}
        for offset, end, detail, _ in problems:
            if (path, offset) not in known:
                how.note(path, offset, end - offset, "bad-record", f"{detail}: {advice.may_be_lost(path)}")
        return table

    # Reading

    def __len__(self) -> int:
        return len(self._table.ids())

    def get(self, id: int) -> Subscription:
        """One subscription; NotFound if there is none of that number."""
        found = self._table.get(id)
        if found is None:
            raise NotFound(f"{self.path}: no subscription {id}")
        state = SubState.decode(found.state)
        return Subscription(state, found.last_sent, tuple(self._table.pending(id)))

    def subscriptions(self) -> list[Subscription]:
        """Every subscription that is not deleted, by number."""
        return [self.get(id) for id in self._table.ids()]

    def readers(self) -> list[Reader]:
        """Durables, groups and plain subscriptions; the members of a group are one reader with one place."""
        groups: dict[str, list[Subscription]] = {}
        for one in self.subscriptions():
            groups.setdefault(one.reader, []).append(one)
        return [_reader(name, members) for name, members in groups.items()]

    def names(self) -> list[str]:
        """Every reader that is known."""
        return [reader.name for reader in self.readers()]

    def reader(self, name: str) -> Reader:
        """One reader; NotFound names the others."""
        for found in self.readers():
            if found.name == name:
                return found
        raise NotFound(f"{self.path}: no reader {name!r}; there are: {', '.join(self.names()) or 'none'}")

    def state_of(self, name: str) -> ConsumerState:
        """Where a reader stands. Consumer sequences are the channel's: the store keeps no others."""
        found = self.reader(name)
        return ConsumerState(
            delivered=SequencePair(found.last_sent, found.last_sent),
            ack_floor=SequencePair(found.floor, found.floor),
            pending={sequence: Pending(sequence, 0) for sequence in found.pending},
        )

    @property
    def active(self) -> int:
        """Subscriptions that are not offline durables or the shadow of a group."""
        return sum(1 for one in self.subscriptions() if one.state.client_id and not one.state.is_closed)

    @property
    def highest(self) -> int:
        """The highest sequence that any record names."""
        return self._table.highest_seq

    # Writing

    def create(self, state: SubState) -> int:
        """A new subscription; returns its number. StoreFull (`too many subscriptions per channel`) at the limit."""
        with self._mutex:
            if self.max_subs and len(self) >= self.max_subs:
                # The real server leaves such a record behind; its readers expect it, ours need it not.
                raise StoreFull(TOO_MANY)
            id = self._table.highest_id + 1
            made = state.with_(id=id)
            self._write(self._table.put(NEW, id, made.encode(), made.last_sent))
            self.flush()
            return id

    def update(self, state: SubState) -> None:
        """Another state for a subscription that is there: closed, resumed, or the shadow of a group."""
        with self._mutex:
            self.get(state.id)
            self._write(self._table.put(UPDATE, state.id, state.encode(), state.last_sent))
            self.flush()

    def delete(self, id: int) -> None:
        """Unsubscribed, or the end of a subscription that was not durable."""
        with self._mutex:
            self.get(id)
            self._table.delete(id)
            self._write(self._frame(DELETE, Deletion(id=id).encode()))
            self.flush()
            self._maybe_compact()

    def sent(self, id: int, sequences: Sequence[int]) -> None:
        """Messages were delivered for the first time."""
        with self._mutex:
            self._write(self._table.sent(id, sequences))

    def acked(self, id: int, sequences: Sequence[int]) -> None:
        """Messages were acknowledged; those that were not pending are passed over."""
        with self._mutex:
            self._write(self._table.acked(id, sequences))
            self._maybe_compact()

    def take_from(self, other: Subscriptions) -> int:
        """Every subscription of another channel with its number, its place and what is pending: for copies of a
        store. Only into a channel without any; returns how many came."""
        with self._mutex:
            if len(self):
                raise BadInput(f"{self.path} has subscriptions already")
            for one in other.subscriptions():
                state = one.state.with_(last_sent=one.last_sent)
                self._write(self._table.put(NEW, state.id, state.encode(), one.last_sent))
                self._write(self._table.sent(state.id, one.pending))
            self.flush()
            return len(self)

    def flush(self) -> None:
        """Hand what waits in memory to the operating system."""
        with self._mutex:
            if not self._buffer or self._files is None:
                return
            data = b"".join(self._buffer)
            self._begin()
            with self._files.use(self.path, "write") as file:
                file.write_at(self._size, data)
            self._files.wrote(self.path)
            self._size += len(data)
            self._buffer, self._buffered = [], 0

    def commit(self) -> None:
        """Everything said so far is on disk when this returns."""
        self.flush()
        if self._files is not None:
            self._files.sync(self.path)

    def _frame(self, kind: int, payload: bytes) -> bytes:
        return stan_frame(kind, payload, self._options.file_crc_poly)

    def _write(self, records: bytes) -> None:
        if self._files is None:
            raise BadInput(f"{self.path} was opened for reading; open the store with mode='rw'")
        if records:
            self._buffer.append(records)
            self._buffered += len(records)
            if self._buffered > self._options.file_buffer_size:
                self.flush()

    def _maybe_compact(self) -> None:
        options, table = self._options, self._table
        size = self._size - len(HEAD) + self._buffered
        worn = table.void_records * 100 // table.records if table.records else 100
        soon = (
            self._compacted_at is not None
            and self._now_s() - self._compacted_at < options.file_compact_interval
        )
        large = size >= options.file_compact_min_size
        if options.file_compact_enabled and not soon and large and worn >= options.file_compact_frag:
            self.compact()

    def compact(self) -> None:
        """Write the file anew with what still counts, and put it in the old one's place."""
        with self._mutex:
            if self._files is None:
                raise BadInput(f"{self.path} was opened for reading")
            states = {
                one.state.id: one.state.with_(last_sent=one.last_sent).encode()
                for one in self.subscriptions()
            }
            content = HEAD + self._table.compacted(states)
            self._files.forget(self.path)
            self._disk.replace_file(self.path, content)
            self._size, self._buffer, self._buffered = len(content), [], 0
            self._compacted_at = self._now_s()


def _reader(name: str, members: list[Subscription]) -> Reader:
    newest = max(members, key=lambda one: one.last_sent)
    state = members[-1].state
    durable, _, group = state.queue_group.partition(":")
    is_queue = bool(state.queue_group)
    return Reader(
        name=name,
        kind=newest.kind,
        client_id="" if is_queue else state.client_id,
        durable_name=(durable if state.is_durable else "") if is_queue else state.durable_name,
        queue_group=(group if state.is_durable else state.queue_group) if is_queue else "",
        last_sent=newest.last_sent,
        pending=tuple(sorted({sequence for one in members for sequence in one.pending})),
        max_in_flight=state.max_in_flight,
        ack_wait_s=state.ack_wait_s,
        is_closed=all(one.state.is_closed or not one.state.client_id for one in members),
        members=tuple(members),
    )
