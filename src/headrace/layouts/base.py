"""The waist. Everything above storage sees these types and no file.

    Volume  an opened directory: the logs in it, the lock, durability (`commit`)
    Log     one stream, channel, partition or queue: append, read, scan, remove, damage
    StreamStore   a Log with the whole interface of the JetStream store
    Cursors       consumption state beside a log
    Frames        a run of messages in a layout's own encoding, passed through undecoded
    Ticket        what an append or removal hands out: give it to `commit` to have it on disk

All ranges at the waist are half-open, `[first, next)`. Gaps are legal. The origin is the layout's
(JetStream and NATS Streaming count from 1, the others from 0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from headrace._core import Batch
from headrace.errors import BadInput
from headrace.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

Durability = Literal["sync", "interval"]
Storage = Literal["file", "memory"]


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
    only decoding would tell. `max_time_ns` is None where there are no times.
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
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches."""
        from headrace.arrow import to_record_batch

        for batch in self.batches(predicate, damage):
            yield to_record_batch(batch, self.log, columns)


class Log(ABC):
    """One ordered log of messages."""

    name: str

    @property
    def incarnation(self) -> str:
        """Another one when the log was deleted and made again; empty where the layout does not tell."""
        return ""

    @abstractmethod
    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Write all messages of the batch; positions and times are given to those without.

        With `keep_positions` the batch's own positions are taken; they must grow, gaps stay gaps.
        """

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

    @abstractmethod
    def close(self) -> None:
        """Give up the files. Reading and writing afterwards raises StoreClosed."""

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
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches with the asked columns only (see `headrace.arrow.SCHEMA`)."""
        from headrace.arrow import to_record_batch

        for batch in self.batches(predicate):
            yield to_record_batch(batch, self.name, columns)

    def to_arrow(self, columns: Sequence[str] | None = None, predicate: Predicate | None = None) -> pa.Table:
        """All messages as one Arrow table."""
        import pyarrow as pa

        from headrace.arrow import schema

        return pa.Table.from_batches(self.scan(columns, predicate), schema(columns))

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            yield from batch


StorageUpdate = Callable[[int, int, int, str], None]
"""Called with (messages +/-, bytes +/-, sequence or 0, subject or "") after each change."""


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A snapshot stream: read `chunks` to its end; `state` is what it contains."""

    chunks: Iterator[bytes]
    state: LogState


class StreamStore(Log):
    """The JetStream store, as the source document lists it. Batch forms stand beside."""

    @abstractmethod
    def store_msg(self, subject: str, hdr: bytes | None, msg: bytes) -> tuple[int, int]:
        """Store one message; returns (sequence, time in ns). Durable after `commit`."""

    @abstractmethod
    def store_raw_msg(self, subject: str, hdr: bytes | None, msg: bytes, seq: int, ts: int) -> None:
        """Store with a given sequence and time (mirrors, restore). Holes become deleted messages."""

    @abstractmethod
    def skip_msg(self, seq: int | None = None) -> int:
        """Use up the next sequence without a message; returns it."""

    @abstractmethod
    def load_msg(self, seq: int) -> Record:
        """One message. MessageNotFound if removed, EndOfStream beyond the last."""

    @abstractmethod
    def load_msgs(self, seqs: Sequence[int]) -> Batch:
        """Many at once, in the order asked; absent ones are left out."""

    @abstractmethod
    def load_last_msg(self, subject: str) -> Record:
        """The newest message on a subject (wildcards allowed)."""

    @abstractmethod
    def load_next_msg(self, filter: str, start: int) -> Record:
        """The first message at or after `start` that matches."""

    @abstractmethod
    def remove_msg(self, seq: int) -> bool:
        """Remove; the bytes stay in the file. False if there was nothing."""

    @abstractmethod
    def erase_msg(self, seq: int) -> bool:
        """Remove and overwrite the bytes with random ones."""

    @abstractmethod
    def purge(self) -> int:
        """Remove all messages; first becomes last + 1. Returns how many went."""

    @abstractmethod
    def purge_ex(self, subject: str, seq: int, keep: int) -> int:
        """Purge by subject filter ("" = all), below `seq` (0 = no bound), keeping the newest `keep`."""

    @abstractmethod
    def compact(self, seq: int) -> int:
        """Remove everything below `seq`; past the end it moves the next sequence to `seq`."""

    @abstractmethod
    def truncate(self, seq: int) -> None:
        """Remove everything above `seq`; the next sequence is seq + 1."""

    @abstractmethod
    def filtered_state(self, seq: int, subject: str) -> SimpleState:
        """Messages from `seq` on that match the filter."""

    @abstractmethod
    def subjects_state(self, filter_subject: str) -> Mapping[str, SimpleState]:
        """Per subject that matches the filter: messages, first, last."""

    @abstractmethod
    def fast_state(self) -> LogState:
        """`state` without the list of deleted sequences."""

    @abstractmethod
    def type(self) -> Storage:
        """`file` or `memory`."""

    @abstractmethod
    def register_storage_updates(self, handler: StorageUpdate | None) -> None:
        """Be told of every change (one call per batch; sequence 0 when more than one message)."""

    @abstractmethod
    def update_config(self, config: Any) -> None:
        """Take new limits; they are applied at once and saved."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the stream with all its files."""

    @abstractmethod
    def stop(self) -> None:
        """Clean stop: everything synced, index written."""

    @abstractmethod
    def consumer_store(self, name: str, config: Any) -> ConsumerStore:
        """Open or create the state of a consumer."""

    @abstractmethod
    def snapshot(
        self, deadline_s: float, include_consumers: bool, check_msgs: bool, form: str = "archive"
    ) -> SnapshotResult:
        """The stream as a byte stream: `form` is "archive" (NATSARC1) or "tar" (2.6 to 2.14)."""

    @abstractmethod
    def utilization(self) -> tuple[int, int]:
        """(bytes on disk, bytes of live messages)."""

    def close(self) -> None:
        self.stop()


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


class ConsumerStore(ABC):
    """One JetStream consumer's durable state."""

    name: str

    @abstractmethod
    def state(self) -> ConsumerState:
        """A copy of the present state."""

    @abstractmethod
    def update_delivered(self, consumer_seq: int, stream_seq: int, count: int, time_ns: int) -> None:
        """A delivery; `count` is 1 for the first one."""

    @abstractmethod
    def update_acks(self, consumer_seq: int, stream_seq: int) -> None:
        """An ack; the floor moves over the settled ones."""

    @abstractmethod
    def update(self, state: ConsumerState) -> None:
        """Replace the whole state; refused when it goes backwards."""

    @abstractmethod
    def update_config(self, config: Any) -> None:
        """Save another configuration."""

    @abstractmethod
    def commit(self) -> None:
        """Return once everything said so far is on disk (what a double ack waits for)."""

    @abstractmethod
    def stop(self) -> None:
        """Checkpoint and give up the files."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the consumer with its files."""


class Volume(ABC):
    """An opened directory of one product."""

    path: str
    layout: str

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
