"""The storage interface. Everything above storage sees these types and no file.

    Volume  an opened directory: the logs in it, the lock, durability (`commit`)
    Log     one stream, channel, partition or queue: append, read, scan, remove, damage
    Cursors       consumption state beside a log
    Frames        a run of messages in a layout's own encoding, passed through undecoded
    Ticket        what an append or removal hands out: give it to `commit` to have it on disk

All ranges are half-open, `[first, next)`. Gaps are legal. The origin is the layout's
(JetStream and NATS Streaming count from 1, the others from 0). What JetStream's model needs beyond: stream_store.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from headrace._core import Batch
from headrace.errors import BadInput
from headrace.layouts.places import disk_at
from headrace.layouts.readers import Readers
from headrace.record import Record

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`. pyarrow ships no types; `Any` by name is what strict type checkers accept."""
ArrowBatch: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""
Durability = Literal["sync", "interval"]
Storage = Literal["file", "memory"]
NO_READERS = Readers()
# A record inside a damaged one belongs to its range.
_COSTS_MESSAGES = frozenset({"bad-record", "unsound-tail", "missing"})


class Ticket(NamedTuple):
    """Positions `[first, next)` were written; durable once the log's mark reaches `mark`."""

    log: str
    first: int
    next: int
    mark: int


@dataclass(frozen=True, slots=True)
class Damage:
    """One finding: bytes that are not what they should be, and what became of them.

    `kind` is one of: bad-record (lost, its bytes stay), repaired (a single bit was inverted back),
    unsound-tail (bytes after the last sound record), forged-inside (a record inside a damaged one:
    reported, never served), index (an index file disagrees and was not used), metadata, missing.
    """

    file: str
    offset: int
    length: int
    kind: str
    detail: str
    first_seq: int | None = None
    next_seq: int | None = None

    @property
    def costs_messages(self) -> bool:
        """Whether it may have cost a message."""
        return self.kind in _COSTS_MESSAGES


class KnownRange(NamedTuple):
    """Positions `[first, next)`, all of them live but for the removed ones."""

    first: int
    next: int
    removed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogState:
    """What a log holds. Times are ns since 1970, `None` for "none"."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    num_subjects: int = 0
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()
    consumers: int = 0
    lost_messages: int = 0
    lost_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SimpleState:
    """Messages on a subject (or a filter) and the first and last sequence among them."""

    msgs: int = 0
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Frames:
    """A run of messages in a layout's own encoding, not decoded: what one log stores another can pass on.

    `format` names the encoding ("kafka": whole record batches). Positions are half-open; `count` leaves out what
    only decoding would show it. `max_time_ns` is None where there are no times.
    """

    format: str
    data: bytes
    first: int
    next: int
    count: int
    max_time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Predicate:
    """What `scan` may leave out. Blocks that cannot match are not read."""

    first: int | None = None
    next: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    subjects: tuple[str, ...] = ()


class ScanTask(ABC):
    """A part of a log that can be read by itself, also in another process: picklable, no open files.

    Block by block for JetStream; every message of the log belongs to exactly one task.
    """

    log: str
    first: int
    next: int
    size_bytes: int

    @abstractmethod
    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The live messages of this part that match, in order. What is found unsound on the way is added to `damage`."""

    def known_range(self, predicate: Predicate) -> KnownRange | None:
        """The positions that match, where an index accounts for every one of them and nothing needs to be read."""
        return None

    def header_codec(self) -> str | None:
        """How the headers of all its messages are encoded, where that is certain without reading: then `scan` gives
        whole batches at once."""
        return None

    def own_column(self, name: str, batch: Batch) -> Any:
        """A column that only this layout has (`Layout.columns`), as an Arrow array; None for one that it has not."""
        return None

    def showing(self, columns: Sequence[str]) -> ScanTask:
        """The same part for somebody who looks at these columns only: others need not be fetched."""
        return self

    def joined(self, other: ScanTask) -> ScanTask | None:
        """One task for this part and the one behind it, where that is cheaper to read."""
        return None

    def scan(
        self,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        damage: list[Damage] | None = None,
    ) -> Iterator[ArrowBatch]:
        """The same as Arrow batches."""
        from headrace.arrow import to_record_batch

        for batch in self.batches(predicate, damage):
            yield to_record_batch(batch, self.log, columns)


class Log(ABC):
    """One ordered log of messages."""

    name: str

    @property
    def incarnation(self) -> str:
        """Another one when the log was deleted and made again; empty where the layout does not say."""
        return ""

    @property
    def readers(self) -> Readers:
        """Who consumes the log and where they stand."""
        return NO_READERS

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects that the log takes, by its configuration; none where only its messages know."""
        return ()

    @abstractmethod
    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Write all messages of the batch; positions and times are given to those without.

        With `keep_positions` the batch's own positions are taken; they must grow, gaps stay gaps.
        """

    def append_copy(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """The same for messages of another log (conversion, replay, sources): where the layout compares subjects with
        the log's own, these are taken as they are."""
        return self.append(batch, keep_positions=keep_positions)

    @abstractmethod
    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        """Messages from `first` on, in order. May return fewer than asked; empty only at the end.

        Go on at the last position + 1.
        """

    def append_frames(self, frames: Frames, *, keep_positions: bool = False) -> Ticket:
        """Store a run as it is, where the layout can; its positions are given anew unless they are kept."""
        raise BadInput(f"log {self.name}: this layout has no frames to append; decode them into a Batch")

    def read_frames(self, first: int, max_bytes: int = 8 << 20) -> Frames:
        """The run that holds `first`, and more up to `max_bytes`, undecoded, where the layout can."""
        raise BadInput(f"log {self.name}: this layout has no frames; use read")

    @abstractmethod
    def seq_from_time(self, time_ns: int) -> int:
        """The first position whose time is not before `time_ns`; last + 1 if there is none."""

    @abstractmethod
    def state(self) -> LogState:
        """The whole state, deleted positions included."""

    @abstractmethod
    def remove(self, positions: Sequence[int]) -> Ticket:
        """Remove single messages; positions that are gone already are passed over."""

    @abstractmethod
    def drop_front(self, seq: int) -> int:
        """Remove everything below `seq`; returns how many messages went."""

    @abstractmethod
    def damage(self) -> list[Damage]:
        """What was found unsound since the log was opened."""

    def unreachable_damage(self) -> list[Damage]:
        """Of it, what no scan task would meet: files that should be there and are not."""
        return [
            each
            for each in self.damage()
            if each.kind == "missing" and disk_at(each.file).entry(each.file) is None
        ]

    @abstractmethod
    def close(self) -> None:
        """Give up the files. Every call that needs them raises StoreClosed afterwards; the name stays, and what was found."""

    @abstractmethod
    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        """The log cut into parts for parallel reading; parts that cannot match are left out."""

    def batches(self, predicate: Predicate | None = None) -> Iterator[Batch]:
        """Every message that matches, batch by batch."""
        want = predicate or Predicate()
        position = want.first if want.first is not None else 0
        if want.since_ns is not None:
            position = max(position, self.seq_from_time(want.since_ns))
        only = want.subjects[0] if len(want.subjects) == 1 else None
        while want.next is None or position < want.next:
            batch = self.read(position, max_msgs=65_536, filter=only)
            if not len(batch):
                return
            position = batch.last_position + 1
            kept = batch.filter(want.first, want.next, want.since_ns, want.until_ns, list(want.subjects))
            if len(kept):
                yield kept

    def scan(
        self, columns: Sequence[str] | None = None, predicate: Predicate | None = None
    ) -> Iterator[ArrowBatch]:
        """Arrow batches with the asked columns only (see `headrace.arrow.SCHEMA`)."""
        from headrace.arrow import to_record_batch

        for batch in self.batches(predicate):
            yield to_record_batch(batch, self.name, columns)

    def to_arrow(
        self, columns: Sequence[str] | None = None, predicate: Predicate | None = None
    ) -> ArrowTable:
        """All messages as one `pyarrow.Table`."""
        import pyarrow as pa

        from headrace.arrow import schema

        return pa.Table.from_batches(self.scan(columns, predicate), schema(columns))

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            yield from batch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


@dataclass(frozen=True, slots=True)
class SequencePair:
    """A consumer's own sequence and the stream's."""

    consumer: int = 0
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """A delivered, unacknowledged message: its consumer sequence and when it was delivered."""

    sequence: int
    time_ns: int


@dataclass(slots=True)
class ConsumerState:
    """Where a consumer stands. `pending` and `redelivered` are keyed by stream sequence."""

    delivered: SequencePair = field(default_factory=SequencePair)
    ack_floor: SequencePair = field(default_factory=SequencePair)
    pending: dict[int, Pending] = field(default_factory=lambda: {})
    redelivered: dict[int, int] = field(default_factory=lambda: {})


class Cursors(ABC):
    """Consumption state beside a log: one entry per consumer, subscription or queue reader."""

    @abstractmethod
    def names(self) -> list[str]:
        """Every reader that is known."""

    @abstractmethod
    def state_of(self, name: str) -> ConsumerState:
        """A copy of the reader's state."""


class Volume(ABC):
    """An opened directory of one product."""

    path: str
    layout: str

    @property
    def origin(self) -> str:
        """The layout that the messages come from: another one only for archives."""
        return self.layout

    @abstractmethod
    def logs(self) -> list[str]:
        """The names of all logs."""

    @abstractmethod
    def open(self, name: str) -> Log:
        """One log; opened once, shared afterwards."""

    @abstractmethod
    def create(self, name: str, **options: Any) -> Log:
        """A new log (or the existing one, if its configuration is equal)."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a log with its files."""

    @abstractmethod
    def commit(self, tickets: Iterable[Ticket]) -> None:
        """Return when all tickets are on disk. Callers in other threads share one sync."""

    @abstractmethod
    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        """The same off the caller's thread."""

    @abstractmethod
    def damage(self) -> list[Damage]:
        """Findings of the volume and of every log that is open."""

    @abstractmethod
    def close(self) -> None:
        """Clean stop of every log, then the lock goes."""

    def __getitem__(self, name: str) -> Log:
        """`open(name)`; NotFound is a LookupError."""
        return self.open(name)

    def __iter__(self) -> Iterator[Log]:
        """Every log, opened."""
        for name in self.logs():
            yield self.open(name)

    def __len__(self) -> int:
        return len(self.logs())

    def __bool__(self) -> bool:
        """An opened directory, also without logs."""
        return True

    def __contains__(self, name: object) -> bool:
        """Whether there is a log of that name."""
        return name in self.logs()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
