"""The storage interface of JetStream's model: a stream with its consumers, and the directory that holds many.

    StreamVolume    an opened directory of streams
    StreamStore     one stream: a Log with the whole interface of the JetStream store, and what serving it needs
    ConsumerStores  the consumers of a stream: they share one journal
    ConsumerStore   where one consumer stands

Whoever serves streams knows these types, never a class or a file of one layout. Ranges are half-open.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace._core import Batch
from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.layouts._kernels import BlockLog, CommitHandle, HeldBlock, Ledger
from headrace.layouts.base import (
    ConsumerState,
    Cursors,
    Durability,
    Log,
    LogState,
    SimpleState,
    Storage,
    Volume,
)
from headrace.record import Record

StorageUpdate = Callable[[int, int, int, str], None]
"""Called with (messages +/-, bytes +/-, sequence or 0, subject or "") after each change."""
StreamKernel = BlockLog
"""What kernels of the core (`admit`, `admit_and_append`) take of a store. It is passed on, nothing else."""


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A snapshot stream: read `chunks` to its end; `state` is what it contains."""

    chunks: Iterator[bytes]
    state: LogState


class SubjectsPage(NamedTuple):
    """How many subjects there are, and the messages of each on one page of them, as JSON."""

    total: int
    counts: bytes


class BlockPlace(NamedTuple):
    """A block, and the sequences that it covers."""

    number: int
    first: int
    last: int


class Committable(ABC):
    """Something with a write mark that a commit makes durable: the store of a stream, the journal of its consumers."""

    @property
    @abstractmethod
    def commit_handle(self) -> CommitHandle:
        """Makes a mark durable without the interpreter, for a `Committer`."""

    @property
    def has_dead_files(self) -> bool:
        """Files without messages wait to go: after a commit `unlink_dead` is to follow."""
        return False

    def unlink_dead(self) -> None:
        """Remove the files that died before the last commit."""
        return

    @property
    def can_heal(self) -> bool:
        """Whether `heal` writes again what a failed sync left in doubt."""
        return False

    def heal(self) -> None:
        """After a failed sync: write what is in doubt again, and go on."""
        return


class StreamStore(Log, Committable):
    """The whole interface of nats-server's StreamStore. Batch forms stand beside, then what serving needs."""

    config: StreamConfig
    created_ns: int
    durability: Durability
    block_bytes: int
    """How large a block gets."""
    clock: Callable[[], int]
    """The wall clock in ns that messages are stamped with."""
    lock: threading.RLock
    """Held while messages are admitted and written: nobody else saves or removes something meanwhile."""
    trimmed: int
    """Messages that the limit per subject took, wherever they were, since the store was opened."""
    complete: int
    """The last sequence of a batch that was written whole. One that fails is taken back up to here."""
    expires_itself: bool
    """Messages older than max_age are evicted here. Not so where who serves the stream decides it for each."""
    before_unlink: Callable[[], None] | None
    """Called before files of messages go: what somebody needs of them must be saved first."""
    on_checkpoint: Callable[[int], None] | None
    """Called now and then, and before a message is overwritten: what records up to that sequence say is saved."""

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
    def load_msgs(self, seqs: Sequence[int], max_bytes: int | None = None) -> Batch:
        """Many at once, in the order asked; absent ones are left out. May return fewer than that if they are large."""

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
    def purge_ex(self, subject: str, seq: int, keep: int, below: int | None = None) -> int:
        """Purge by subject filter ("" = all), below `seq` (0 = no bound), keeping the newest `keep`; of what lies below
        `below`. With a filter in steps, between which others may use the store."""

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
        """The handler is called for every change (one call per batch; sequence 0 when more than one message)."""

    @abstractmethod
    def update_config(self, config: StreamConfig) -> None:
        """Take new limits; they are applied at once and saved."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the stream with all its files."""

    @abstractmethod
    def stop(self) -> None:
        """Clean stop: everything synced, index written."""

    @abstractmethod
    def consumer_store(self, name: str, config: ConsumerConfig) -> ConsumerStore:
        """Open or create the state of a consumer."""

    @abstractmethod
    def snapshot(
        self, deadline_s: float, include_consumers: bool, check_msgs: bool, form: str = "archive"
    ) -> SnapshotResult:
        """The stream as a byte stream: `form` is "archive" (NATSARC1) or "tar" (2.6 to 2.14)."""

    @abstractmethod
    def commit(self, mark: int | None = None) -> None:
        """Return once everything so far (or up to a ticket's mark) is on disk."""

    @abstractmethod
    def utilization(self) -> tuple[int, int]:
        """(bytes on disk, bytes of live messages)."""

    def close(self) -> None:
        self.stop()

    # Numbers, at this moment

    @property
    @abstractmethod
    def first_seq(self) -> int:
        """The first message's sequence; last + 1 if there is none."""

    @property
    @abstractmethod
    def last_seq(self) -> int:
        """The last sequence that was given out."""

    @property
    @abstractmethod
    def last_time_ns(self) -> int:
        """When the last message was stored."""

    @property
    @abstractmethod
    def messages(self) -> int:
        """How many messages there are."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of all messages, as they were a moment ago if somebody is at work: nobody waits for it."""

    @property
    @abstractmethod
    def mark(self) -> int:
        """Everything that was written so far, for `commit`."""

    @property
    @abstractmethod
    def durable_mark(self) -> int:
        """The mark up to which everything is on disk."""

    @property
    @abstractmethod
    def durable_next(self) -> int:
        """The first sequence that is not on disk yet."""

    @property
    @abstractmethod
    def consumers(self) -> ConsumerStores:
        """Who consumes it, and where they stand."""

    @property
    @abstractmethod
    def poisoned(self) -> bool:
        """Nothing is acknowledged until `heal`, or until it is opened again."""

    @property
    @abstractmethod
    def was_purged(self) -> bool:
        """Whether an empty stream once held messages, as far as its files show."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Another thread works on it: who calls it now would wait for that."""

    # Writing runs

    @property
    @abstractmethod
    def kernel(self) -> StreamKernel:
        """For kernels of the core that write to the store; not to be called."""

    @property
    @abstractmethod
    def takes_at_once(self) -> bool:
        """Whether a kernel may write messages straight into the newest block, where they fit; `written` follows."""

    @abstractmethod
    def written(self, count: int, first: int, next_seq: int, stored_bytes: int) -> None:
        """A kernel has written messages `[first, next_seq)`: what follows from that."""

    @abstractmethod
    def free_block_bytes(self) -> int | None:
        """What the newest block still takes before it must be synced and sealed; None where that does not matter."""

    @abstractmethod
    def roll_ahead(self) -> None:
        """Seal the newest block before messages come that would not fit."""

    @property
    @abstractmethod
    def removal_needs_sync(self) -> bool:
        """Whether a removal has to wait for the disk: `prepare_removal` does that off the loop."""

    @abstractmethod
    def prepare_removal(self) -> None:
        """Sync what the next removal would have to wait for."""

    @abstractmethod
    def sync(self) -> None:
        """`commit`, but files that nobody needs stay for now."""

    # Finding messages

    @abstractmethod
    def read_matching(
        self,
        first: int,
        max_msgs: int,
        max_bytes: int,
        filters: Sequence[str],
        below: int | None = None,
        max_loads: int = 1,
    ) -> tuple[Batch, int]:
        """(messages on any of the filters in `[first, below)`, where to go on); at most `max_loads` blocks are read."""

    @abstractmethod
    def load_warm(self, seqs: Sequence[int], max_bytes: int) -> tuple[Batch, int]:
        """(messages as far as they are in memory, how many of the sequences were looked at)"""

    @abstractmethod
    def block_of(self, seq: int) -> BlockPlace | None:
        """Where a sequence lies, or else the next one behind it; None behind the last."""

    @abstractmethod
    def hold(self, block: int, filters: Sequence[str] = ()) -> HeldBlock | None:
        """Read a block, on a thread that may wait; in memory (or what the filters select of it) while the result lives. None
        if there is nothing to be read."""

    @abstractmethod
    def cold_front(self, msgs: int, size: int) -> int | None:
        """A block that limits would have to read to make room for so many more messages and bytes."""

    @abstractmethod
    def count_matching(self, first: int, below: int | None, filters: Sequence[str]) -> int:
        """How many messages in `[first, below)` are on any of the filters."""

    @abstractmethod
    def live_among(self, seqs: Sequence[int]) -> list[int]:
        """Those that still have a message."""

    @abstractmethod
    def count_live(self, packed: bytes) -> int:
        """How many of such sequences (8 bytes each) still have a message."""

    @abstractmethod
    def time_of(self, seq: int) -> int | None:
        """When a message was stored, in ns; None if it is not there. Also while the store stops."""

    @abstractmethod
    def last_seq_of(self, filter: str) -> int:
        """The newest sequence on a filter, 0 if there is none."""

    @abstractmethod
    def last_before(self, subject: str, seq: int) -> int:
        """The newest sequence on a subject below another one, 0 if there is none."""

    @abstractmethod
    def last_per_subject(self, filters: Sequence[str]) -> bytes:
        """The newest sequence of each subject, in order; 8 bytes each, as `array("Q")` reads them."""

    @abstractmethod
    def newest_of_each(
        self, filters: Sequence[str], up_to: int, max_subjects: int
    ) -> tuple[list[int], list[bytes]] | None:
        """(the newest sequence at or below `up_to` of each subject, subjects for which `newest_below` has to look); None
        if there are more than `max_subjects`."""

    @abstractmethod
    def newest_below(
        self, subjects: Sequence[bytes], below: int, max_blocks: int
    ) -> tuple[list[tuple[int, int]], int]:
        """([(index of the subject, its newest sequence)] in some blocks going back, where to go on; 0 at the end)"""

    @abstractmethod
    def subjects_page(self, filter: str, offset: int, limit: int) -> SubjectsPage:
        """Messages per subject, a page at a time in byte order."""

    @abstractmethod
    def deleted_json(self, max_listed: int) -> bytes:
        """The sequences between first and last that have no message, as JSON."""

    @abstractmethod
    def history(self, above: int | None = None, since_ns: int | None = None) -> Iterator[Batch]:
        """Every sound record that is still in a file which reaches above a sequence and behind a time, newest file first:
        removed messages are among them."""

    # Small named state beside the messages. A store in memory keeps none.

    @abstractmethod
    def has_saved(self, name: str) -> bool:
        """Whether there is a state of that name."""

    @abstractmethod
    def load_saved(self, name: str) -> bytes | None:
        """What was saved; None if nothing was, or nothing is known of it (`save(name, b"")`). Damaged if it is not whole."""

    @abstractmethod
    def save(self, name: str, data: bytes) -> None:
        """Replace a state; on disk when this returns. Empty: it is there, but has to be found out again."""

    @abstractmethod
    def remove_saved(self, name: str) -> None:
        """Remove a state."""

    @abstractmethod
    def report_unusable(self, name: str, why: str) -> None:
        """A state cannot be used: it is logged, and `damage` has it."""


class ConsumerStore(ABC):
    """One JetStream consumer's durable state."""

    name: str
    config: ConsumerConfig
    created_ns: int

    @property
    @abstractmethod
    def journal(self) -> Committable:
        """What makes its marks durable: shared by all consumers of the stream."""

    @abstractmethod
    def ledger(self) -> Ledger:
        """The state as the core keeps it; from now on changes are made there. Always the same object."""

    @abstractmethod
    def state(self) -> ConsumerState:
        """A copy of the present state."""

    @abstractmethod
    def update_delivered(self, consumer_seq: int, stream_seq: int, count: int, time_ns: int) -> None:
        """A delivery; `count` is 1 for the first one."""

    @abstractmethod
    def update_acks(self, consumer_seq: int, stream_seq: int) -> None:
        """An ack; the floor moves over the acked ones."""

    @abstractmethod
    def update(self, state: ConsumerState) -> None:
        """Replace the whole state; refused when it goes backwards."""

    @abstractmethod
    def reset(self, stream_seq: int) -> None:
        """Begin anew behind `stream_seq`: nothing delivered, nothing pending."""

    @abstractmethod
    def update_config(self, config: ConsumerConfig) -> None:
        """Save another configuration, and follow it."""

    @abstractmethod
    def save_config(self, config: ConsumerConfig) -> None:
        """Another configuration goes to disk; on whatever thread. `apply_config` follows."""

    @abstractmethod
    def apply_config(self, config: ConsumerConfig) -> None:
        """Do as a saved configuration says, on the thread that has the ledger."""

    @abstractmethod
    def flush(self) -> None:
        """What the ledger noted into the journal, and that to the operating system; not yet on disk."""

    @abstractmethod
    def mark(self) -> int:
        """A mark of the journal: everything up to now."""

    @abstractmethod
    def commit(self, mark: int | None = None) -> None:
        """Return once everything up to the mark (default: all so far) is on disk: what a double ack waits for."""

    @abstractmethod
    def stop(self) -> None:
        """Checkpoint and give up the files."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the consumer with its files."""


class ConsumerStores(Cursors, Committable):
    """All consumers of a stream. Their changes go to one journal."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abstractmethod
    def get(self, name: str) -> ConsumerStore:
        """An existing consumer; NotFound otherwise."""

    @abstractmethod
    def create(
        self, name: str, config: ConsumerConfig, created_ns: int, *, start_after: int = 0
    ) -> ConsumerStore:
        """A new consumer, durable when this returns. Everything up to stream sequence `start_after` counts as acked."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a consumer; it does not come back after a crash."""

    @abstractmethod
    def flush(self) -> None:
        """`ConsumerStore.flush` of all."""


FirstLook = Callable[[StreamStore], None]
"""Gets a store before limits are applied to it: files that these empty are still there then."""


class Spool(ABC):
    """Bytes that arrive piece by piece and are read once, when they are complete."""

    size: int

    @abstractmethod
    def append(self, data: bytes) -> None:
        """Take the next piece."""

    @abstractmethod
    def chunks(self) -> Iterator[bytes]:
        """Everything, in order."""

    @abstractmethod
    def remove(self) -> None:
        """It is of no use any more."""


class StreamVolume(Volume):
    """An opened directory of streams, by accounts."""

    durability: Durability
    notices: list[str]
    """What whoever opened it for writing should know."""

    @abstractmethod
    def log_name(self, account: str, stream: str) -> str:
        """What this volume calls a stream of an account."""

    @abstractmethod
    def account_of(self, log: str) -> str:
        """Whose stream a log is."""

    @abstractmethod
    def open(self, name: str, first_look: FirstLook | None = None) -> StreamStore:
        """One stream; opened once, shared afterwards."""

    @abstractmethod
    def open_ahead(self, names: Sequence[str], first_look: FirstLook | None = None) -> None:
        """Open many side by side. One that fails is left out: `open` says why."""

    @abstractmethod
    def create(self, name: str, **options: Any) -> StreamStore:
        """A new stream with the options of StreamConfig, or the existing one if its configuration is equal."""

    @abstractmethod
    def is_unfinished(self, name: str) -> bool:
        """Whether a crash came while the stream was made: `create` makes it anew."""

    @abstractmethod
    def delete_unopened(self, name: str) -> None:
        """Remove a stream that cannot be opened: asked for by name, never done by itself."""

    @abstractmethod
    def restore(
        self,
        name: str,
        chunks: Iterable[bytes],
        config: StreamConfig | None = None,
        *,
        first_look: FirstLook | None = None,
    ) -> StreamStore:
        """A new stream from a snapshot of either form."""

    @abstractmethod
    def new_spool(self, id: str) -> Spool:
        """A place for a snapshot that arrives."""

    @abstractmethod
    def clear_spools(self) -> None:
        """Remove what was received before a crash."""
