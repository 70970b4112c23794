"""The Rust core as Python sees it. `make check` compares this file with the built module."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, final

from headrace.record import Record

@final
class Buffer:
    """Bytes made by the core, without a copy: give it to `memoryview` or `pyarrow.py_buffer`."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...  # from Python 3.12 on

@final
class Batch:
    """n messages over one buffer, immutable."""

    @staticmethod
    def build(
        subjects: str | bytes | Sequence[str | bytes],
        data: Sequence[bytes | None],
        headers: Sequence[bytes | None] | None = None,
        times: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        flags: Sequence[int] | None = None,
        header_codec: str = "nats",
    ) -> Batch: ...
    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Record]: ...
    def __getitem__(self, index: int, /) -> Record: ...
    def with_header(self, name: bytes) -> list[tuple[int, int, bytes]]:
        """(position, time, value) of the messages that have a header of that name."""
    def slice(self, start: int, stop: int) -> Batch: ...
    def select(self, mask: bytes) -> Batch: ...
    def filter(
        self,
        first: int | None,
        next: int | None,
        since_ns: int | None,
        until_ns: int | None,
        subjects: Sequence[str],
    ) -> Batch: ...
    def without(self, positions: Sequence[int]) -> Batch:
        """The messages whose position is not in the list, which must be sorted."""
    def renumbered(self, positions: bytes) -> Batch:
        """The same messages with these positions: u64, little-endian, one for each."""
    def subjects(self) -> list[bytes]:
        """Every subject once, in the order in which they come."""
    def content_hashes(self) -> bytes:
        """A u64 (little-endian) for each message, made of its subject, headers and data."""
    def positions(self) -> list[int]: ...
    def position_runs(self) -> list[tuple[int, int]]:
        """Positions without a gap between them, as half-open ranges."""
    def in_time_order(self) -> bool: ...
    def times(self) -> list[int]: ...
    def arrow_columns(self, names: Sequence[str]) -> dict[str, tuple[Buffer, ...]]: ...
    @property
    def first_position(self) -> int: ...
    @property
    def last_position(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def header_codec(self) -> str: ...

# `Disk.list` hides the type of that name inside its class.
_Made = list[str]

@final
class DiskFile:
    def __len__(self) -> int: ...
    def read_at(self, offset: int, length: int) -> bytes: ...
    def write_at(self, offset: int, data: bytes) -> None: ...
    def set_len(self, length: int) -> None: ...
    def sync_data(self) -> None: ...

@final
class DiskLock:
    """An exclusive lock; `release` (or garbage collection) gives it up."""

    def release(self) -> None: ...

@final
class FaultPlan:
    """Which operations of a faulty disk fail, and how; may be changed while the disk is in use.
    Counters start at 0 and count the calls on paths that contain `path_contains`. Writes are
    `write_at`, `set_len` and the making of a file; errors are ENOSPC, EDQUOT, EIO, EROFS."""

    fail_sync_at: int | None
    fail_write_at: int | None
    write_error: str
    sync_error: str
    short_write_bytes: int
    sticky: bool
    path_contains: str

    def __new__(
        cls,
        *,
        fail_sync_at: int | None = None,
        fail_write_at: int | None = None,
        write_error: str = "ENOSPC",
        sync_error: str = "EIO",
        short_write_bytes: int = 0,
        sticky: bool = False,
        path_contains: str = ...,
    ) -> Self: ...
    def clear(self) -> None:
        """Nothing fails any more, and all counters are 0 again."""
    @property
    def writes(self) -> int: ...
    @property
    def syncs(self) -> int: ...
    @property
    def read_bytes(self) -> int:
        """How many bytes were read from matching paths."""

class _Place(Protocol):
    def entry(self, path: str) -> tuple[bool, int, int] | None: ...
    def list(self, path: str) -> list[tuple[str, bool, int]]: ...
    def open(self, path: str) -> tuple[Any, int]: ...

@final
class DiskEntry:
    """A file or directory."""

    @property
    def is_dir(self) -> bool: ...
    @property
    def size(self) -> int: ...

@final
class LockHolder:
    """Who has a lock."""

    @property
    def pid(self) -> int: ...
    @property
    def note(self) -> str: ...

@final
class Disk:
    """Where files live. Paths are UTF-8, `/`-separated."""

    @staticmethod
    def real(root: str | None = None) -> Disk:
        """This machine's. Below `root` no symbolic link is followed, wherever it stands in a path."""
    @staticmethod
    def memory() -> Disk: ...
    @staticmethod
    def foreign(place: _Place) -> Disk:
        """Read-only, over a Python object: an object store, say. Small pieces are cut out of blocks of 4 MiB, of which
        the last 16 are kept; nothing that was read is asked for again as long as it is among them."""
    @staticmethod
    def faulty(inner: Disk, plan: FaultPlan) -> Disk: ...
    def open(self, path: str, mode: str = "read") -> DiskFile:
        """`mode`: "read", "write" (made when absent) or "create_new" (must be absent)."""
    def read(self, path: str, max_bytes: int = 1073741824) -> bytes: ...
    def list(self, path: str) -> list[tuple[str, bool, int]]: ...
    def entry(self, path: str) -> DiskEntry | None: ...
    def stamp(self, path: str) -> int:
        """Another number once the file was changed or replaced."""
    def create_dir_all(self, path: str) -> _Made: ...
    def rename(self, source: str, target: str) -> None: ...
    def remove_file(self, path: str) -> None: ...
    def remove_dir_all(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    def replace_file(self, path: str, data: bytes) -> None: ...
    def write_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """A directory (made if need be) with these files; nothing is synced."""
    def create_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """New files in a directory, each whole under its name or not there; the directory is synced, its own name is not."""
    def sync_files(self, directory: str, names: Sequence[str]) -> None:
        """Files and their names in the directory on disk; the directory's own name is the caller's to sync."""
    def lock(self, path: str, note: str) -> DiskLock: ...
    def lock_holder(self, path: str) -> LockHolder | None: ...
    def sync_points(self) -> int: ...
    def power_cut_at(self, k: int) -> None:
        """Memory disks: exactly `k` syncs since the disk was made succeed; the next one fails, and
        from then on every operation does. Then `crash` and open the store on what it returns."""
    def crash(self, seed: int, keep: str = "random") -> Disk:
        """Memory disks: the disk as found after a power cut now. `keep` says what survives of that
        which was not synced: "none", "all", or "random" by `seed` (512-byte pages, lengths, names)."""
    def flip_bit(self, path: str, offset: int, bit: int) -> None: ...
    def copy_tree_in(self, source: str, target: str) -> None:
        """From `source` on the real disk to `target` on this one, synced."""
    def copy_tree_out(self, source: str, target: str) -> None:
        """From `source` on this disk to `target` on the real one, synced."""

def crypt_open_seed(
    key_file: bytes, server_key: bytes, account: str, context: str, *, file: str = "key file"
) -> tuple[str, bytes, bytes]:
    """The cipher ("chachapoly" or "aes"), seed and nonce of a `meta.key` or `N.key`. `file` names it in errors."""

def crypt_open(
    cipher: str, seed: bytes, data: bytes, nonce: bytes | None = None, *, file: str = "sealed data"
) -> bytes:
    """Opens sealed content: `nonce | sealed`, or with `nonce` given apart (`N.idx`)."""

def crypt_block(cipher: str, seed: bytes, nonce: bytes, data: bytes, offset: int = 0) -> bytes:
    """Decrypts (or encrypts) bytes that lie at `offset` of a block file."""

__version__: str

def highway_hash(key: bytes, data: bytes) -> bytes: ...
def s2_compress(data: bytes) -> bytes: ...
def s2_decompress(data: bytes, max_output: int) -> bytes: ...

@final
class PatternSet:
    """Subjects with wildcards, each with a label: which of them have a subject in common with others."""

    def __new__(cls) -> Self: ...
    def __len__(self) -> int: ...
    def add(self, patterns: Sequence[str], label: int) -> None: ...
    def remove(self, patterns: Sequence[str], label: int) -> None: ...
    def first_overlap(self, patterns: Sequence[str], without: int | None = None) -> int | None:
        """The lowest label (but for one) that the first of the patterns touches that touches any."""
    def labels(self, pattern: str) -> list[int]: ...

def first_overlapping_pair(patterns: Sequence[str]) -> tuple[int, int] | None:
    """The first pattern that overlaps an earlier one, and that one: (earlier, later)."""

def subject_matches(filter: str, subject: str) -> bool: ...
def subject_valid(subject: str) -> bool: ...
def subject_filter_valid(filter: str) -> bool: ...
def js_compress_block(plain: bytes) -> bytes: ...
def js_tombstone_block(stream: str, number: int, sequence: int, time_ns: int) -> bytes: ...
def js_encode_records(stream: str, number: int, batch: Batch) -> bytes: ...
def js_record_bytes(batch: Batch, as_memory: bool) -> int: ...
def js_encode_filled(
    stream: str,
    number: int,
    batch: Batch,
    start: int,
    next: int,
    time_ns: int,
    bytes_max: int,
    hole_max: int,
) -> tuple[bytes, int]:
    """(records with a placeholder for each sequence from `next` on that has no message, messages taken)"""

def js_decode_idx(
    file: str, data: bytes, block_tail: bytes
) -> tuple[int, int, int, int, int, int, list[int], bool]:
    """(msgs, bytes, first, first time, last, last time, deleted, belongs to the block)"""

def js_encode_idx(
    msgs: int,
    bytes: int,
    first: int,
    first_time: int,
    last: int,
    last_time: int,
    deleted: Sequence[int],
    last_hash: bytes,
) -> bytes: ...
def js_decode_index(file: str, data: bytes, stream: str) -> dict[str, Any]: ...

@final
class BlockScan:
    """One block file, scanned: its sound messages and what is not sound."""

    @property
    def batch(self) -> Batch: ...
    @property
    def tombstones(self) -> list[tuple[int, int]]: ...
    @property
    def placeholders(self) -> list[int]: ...
    @property
    def findings(self) -> list[tuple[str, int, int, int | None, int | None, str]]: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def plain_bytes(self) -> int: ...
    @property
    def highest_plausible(self) -> int: ...
    @property
    def guard_covers(self) -> int:
        """How many bytes its guard covers, whether or not they are there; 0 without a whole guard."""
    @property
    def last_hash(self) -> bytes: ...

def js_guard_extent(data: bytes) -> tuple[int, int] | None:
    """(bytes, records) that a guard covers, whatever has become of its block; None unless it is whole."""

def js_check_block(
    disk: Disk, path: str, stream: str, number: int, guard: bytes | None
) -> list[tuple[str, int, int, int | None, int | None, str]]:
    """Every hash and boundary of a block file; [(kind, offset, length, first, next, detail)] of what is wrong."""

def js_block_columns(
    disk: Disk,
    path: str,
    stream: str,
    number: int,
    guard: bytes | None,
    cipher: tuple[str, bytes, bytes] | None,
    first: int,
    next: int,
    dead: Sequence[int],
    names: Sequence[str],
) -> tuple[
    int, dict[str, tuple[Buffer, ...]], list[tuple[str, int, int, int | None, int | None, str]], int, int
]:
    """(rows, columns, findings, file bytes, plain bytes)"""

def js_scan_block(
    disk: Disk,
    path: str,
    stream: str,
    number: int,
    guard: bytes | None = None,
    cipher: tuple[str, bytes, bytes] | None = None,
) -> BlockScan: ...

@final
class OpenedBlock:
    """A block as `open_by_scan` found it."""

    @property
    def number(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def plain_bytes(self) -> int: ...
    @property
    def unsound_tail(self) -> int:
        """Bytes behind its last sound record."""
    @property
    def last_hash(self) -> bytes: ...
    @property
    def guard_covers(self) -> int:
        """How many bytes its guard covers, whether or not they are there; 0 without a whole guard."""

@final
class Appended:
    """What one `append` wrote, and what the limit per subject took for it."""

    @property
    def stored(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def mark(self) -> int: ...
    @property
    def trimmed(self) -> int: ...
    @property
    def trimmed_bytes(self) -> int: ...

@final
class Removed:
    """What one `remove` took out. `first` is its first sequence, 0 if there was none."""

    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def mark(self) -> int: ...

@final
class Tombstones:
    """The tombstones in a block: those (sequence, time) for messages of blocks that stay, and whether there are any at all."""

    @property
    def needed(self) -> list[tuple[int, int]]: ...
    @property
    def any(self) -> bool: ...

@final
class BlockLogState:
    """What a log holds."""

    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def first_time_ns(self) -> int | None: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def last_time_ns(self) -> int: ...
    @property
    def subjects(self) -> int: ...
    @property
    def deleted(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...

@final
class BlockSummary:
    """One block of a log."""

    @property
    def number(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def first_time_ns(self) -> int: ...
    @property
    def last_time_ns(self) -> int: ...
    @property
    def deleted(self) -> int: ...

@final
class BlockFinding:
    """Bytes of a block that are not sound."""

    @property
    def block(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def first_seq(self) -> int | None: ...
    @property
    def next_seq(self) -> int | None: ...
    @property
    def detail(self) -> str: ...

def refuse_block_loads(refused: bool) -> bool:
    """Whether calls of this thread raise `NotInMemory` rather than read a block; returns what was so before."""

def release_large_buffers() -> None:
    """Gives the memory back that blocks were read into and that waits for the next ones."""

@final
class HeldBlock:
    """A block that stays in memory while this lives."""

    @property
    def size(self) -> int: ...

@final
class BlockLog:
    """The blocks of one JetStream stream in memory."""

    def __new__(
        cls, disk: Disk, directory: str, guard_directory: str, stream: str, cache_bytes: int
    ) -> Self: ...
    def open_by_scan(
        self, numbers: Sequence[int], ciphers: dict[int, tuple[str, bytes, bytes]], threads: int
    ) -> tuple[list[OpenedBlock], int, int]:
        """(blocks, last, highest plausible)"""
    def open_by_index(self, index: bytes, stream: str, sizes: dict[int, int]) -> None: ...
    def forget(self, sequences: Sequence[int]) -> int: ...
    def raise_last(self, sequence: int, time_ns: int) -> None: ...
    def lower_last(self, sequence: int, number: int, durable_bytes: int) -> None: ...
    def start_writer(self, number: int) -> None: ...
    def end_writer(self) -> int | None: ...
    def append(
        self,
        batch: Batch,
        start: int,
        now_ns: int,
        keep_positions: bool,
        block_bytes_max: int,
        per_subject_max: int,
    ) -> Appended: ...
    def skip(self, to: int, now_ns: int) -> int: ...
    def write_tombstones(self, entries: Sequence[tuple[int, int]]) -> int: ...
    def remove(self, sequences: Sequence[int]) -> Removed: ...
    def evict_front(
        self, max_msgs: int | None, max_bytes: int | None, before_ns: int | None, below: int | None
    ) -> tuple[int, int]: ...
    def trim_all_subjects(self, max: int) -> tuple[int, int]: ...
    def drop_dead_blocks(self) -> None: ...
    def erasure(self, sequence: int, random: bytes) -> tuple[int, int, bytes] | None: ...
    def record_bytes_of(self, sequence: int) -> int | None: ...
    def patched(self, number: int, offset: int, data: bytes) -> None: ...
    def truncate_after(
        self, sequence: int
    ) -> tuple[int, tuple[int, bytes] | None, list[tuple[int, int]]]: ...
    def compacted(self, number: int) -> bytes: ...
    def sound_copy(self, number: int) -> bytes: ...
    def plain_bytes(self, number: int) -> bytes: ...
    def guard_of(self, number: int) -> bytes: ...
    def replaced(self, number: int, file_len: int) -> None: ...
    def tombstones_of(self, number: int) -> Tombstones: ...
    def take_dead(self) -> list[int]: ...
    def clear(self) -> tuple[int, int]: ...
    def load(self, sequence: int) -> Record | None: ...
    def load_many(self, sequences: Sequence[int], max_bytes: int = ...) -> Batch: ...
    def load_warm(self, sequences: Sequence[int], max_bytes: int) -> tuple[Batch, int]:
        """(messages as far as their blocks are in memory, how many of the sequences were looked at)"""
    def block_of(self, sequence: int) -> tuple[int, int, int] | None:
        """The block that covers a sequence, or else the next one: (number, first, last); None behind the last."""
    def hold(self, number: int, filters: Sequence[str]) -> HeldBlock | None:
        """Keep a block (or what the filters select of it) in memory; None if there is none to be read."""
    def cold_front(self, limits: tuple[int | None, int | None], msgs: int, bytes: int) -> int | None:
        """A block that evictions would have to read, after so many more messages and bytes."""
    def patching(self, number: int) -> None:
        """The file of a block is about to be written to in place; `patched` follows."""
    def read(
        self, first: int, max_msgs: int, max_bytes: int, filter: str | None, below: int | None
    ) -> Batch: ...
    def read_matching(
        self,
        first: int,
        max_msgs: int,
        max_bytes: int,
        filters: Sequence[str],
        below: int | None,
        max_loads: int,
    ) -> tuple[Batch, int]:
        """(messages on any of the filters, where to go on); at most `max_loads` blocks are loaded for it."""
    def count_matching(self, start: int, below: int | None, filters: Sequence[str]) -> int: ...
    def live_among(self, sequences: Sequence[int]) -> list[int]: ...
    def last_per_subject(self, filters: Sequence[str]) -> bytes:
        """The newest sequence of each subject, in order; 8 bytes each, as `array("Q")` reads them."""
    def count_live(self, packed: bytes) -> int:
        """How many of such sequences still have a message."""
    def next_match(self, filter: str, start: int) -> Record | None: ...
    def last_match(self, filter: str) -> Record | None: ...
    def last_seq_of(self, filter: str) -> int:
        """The sequence of the newest message on a filter, 0 if there is none."""
    def seq_from_time(self, time_ns: int) -> int: ...
    def filtered_state(self, start: int, filter: str) -> tuple[int, int, int]: ...
    def subjects_state(self, filter: str) -> dict[str, tuple[int, int, int]]: ...
    def subjects_page(self, filter: str, offset: int, limit: int) -> tuple[int, bytes]:
        """(subjects on all pages, one page in byte order as JSON: `{"subject":messages,…}`)"""
    def newest_of_each(
        self, filters: Sequence[str], up_to: int, max: int
    ) -> tuple[list[int], list[bytes]] | None:
        """The newest sequence at or below `up_to` of each subject, and the subjects for which `newest_below` has to look;
        None if there are more than `max`."""
    def newest_below(
        self, subjects: Sequence[bytes], below: int, blocks_max: int
    ) -> tuple[list[tuple[int, int]], int]:
        """([(index of the subject, its newest sequence)] in some blocks going back, where to go on; 0 at the end)"""
    def state(self) -> BlockLogState: ...
    @property
    def newest_block(self) -> int:
        """The number of the newest block."""
    @property
    def newest_block_bytes(self) -> int:
        """The length of its plain bytes."""
    def has(self, sequence: int) -> bool: ...
    def is_plain(self, number: int) -> bool: ...
    @property
    def messages(self) -> int: ...
    @property
    def live_bytes(self) -> int:
        """The bytes of all messages that are there."""
    @property
    def last_seq(self) -> int: ...
    @property
    def last_time_ns(self) -> int: ...
    @property
    def mark(self) -> int:
        """Everything that was written so far, for `commit`."""
    def count_as_memory(self) -> None:
        """Sizes are those of a memory store from now on."""
    def yield_to_waiters(self) -> None:
        """Between two steps of long work, with no lock held: whoever found it busy has time to come."""
    def is_busy(self, store_locked: bool) -> bool:
        """Whether somebody is at work in it or in its store at this moment: another call would wait. Who works in steps
        yields then."""
    def poisoned(self) -> bool: ...
    @property
    def first_seq(self) -> int: ...
    def last_before(self, subject: str, sequence: int) -> int: ...
    @property
    def held_bytes(self) -> int:
        """`live_bytes` as they are, or as they were a moment ago if somebody is at work in it: nobody waits for it."""
    def deleted(self, max: int) -> list[int]: ...
    def deleted_json(self, max: int) -> bytes:
        """The same as JSON."""
    def deleted_of(self, number: int) -> list[int]: ...
    def cipher_of(self, number: int) -> tuple[str, bytes, bytes] | None: ...
    def blocks(self) -> list[BlockSummary]: ...
    def encode_index(self) -> bytes: ...
    def commit(self, mark: int) -> None: ...
    def commit_handle(self) -> CommitHandle: ...
    def set_mark_path(self, path: str | None) -> None:
        """Where the durable mark is published after each sync; None: nowhere, and the file is closed."""
    def publish_mark(self) -> None: ...
    def lower_mark(self, last: int) -> None:
        """Publish `last` as the last durable sequence; on disk when this returns."""
    @property
    def durable_mark(self) -> int:
        """The mark up to which everything is on disk."""
    @property
    def durable_seq(self) -> int:
        """The last sequence that is on disk."""
    def assume_durable(self) -> None: ...
    def rewrite_tail(self, number: int) -> None: ...
    def cached_bytes(self) -> int: ...
    @property
    def has_evicted(self) -> bool:
        """Whether limits have evicted something since `evictions_saved`."""
    def evicted(self) -> list[int] | None:
        """What they have evicted; None if there were too many to list."""
    def evictions_saved(self) -> None: ...
    def findings(self) -> list[BlockFinding]: ...

def natsarc_encode(batch: Batch) -> bytes: ...
def natsarc_decode(data: bytes, offset: int, max_msgs: int) -> tuple[Batch, int, bool, str | None]:
    """(batch, next offset, ended, problem)"""

@final
class AckRun:
    """Acks of one consumer in the order in which they came."""

    def __new__(cls, items: Sequence[_Ack]) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def has_replies(self) -> bool: ...
    def item(self, index: int) -> _Ack: ...

# (kind, deliveries, stream sequence, consumer sequence, body, reply)
_Ack = tuple[str, int, int, int, bytes, bytes | None]
_Pair = tuple[int, int]

@final
class LedgerPosition:
    """A consumer's own sequence and the stream's."""

    @property
    def consumer(self) -> int: ...
    @property
    def stream(self) -> int: ...

@final
class PendingDelivery:
    """A message that was delivered and is not acked."""

    @property
    def consumer_seq(self) -> int: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def deliveries(self) -> int: ...

@final
class Ledger:
    """What one consumer has sent, what is acknowledged, what is due again. Pairs are (consumer, stream)."""

    def __new__(
        cls,
        ack_policy: str,
        max_deliver: int = ...,
        ack_wait_ns: int = 30_000_000_000,
        backoff_ns: Sequence[int] = ...,
    ) -> Self: ...
    def configure(
        self, ack_policy: str, max_deliver: int, ack_wait_ns: int, backoff_ns: Sequence[int]
    ) -> None: ...
    @property
    def delivered(self) -> LedgerPosition: ...
    @property
    def floor(self) -> LedgerPosition: ...
    @property
    def num_pending(self) -> int: ...
    @property
    def num_redelivered(self) -> int: ...
    @property
    def num_due(self) -> int: ...
    @property
    def changes_len(self) -> int: ...
    def pending_of(self, stream_seq: int) -> PendingDelivery | None: ...
    def unacked(self) -> list[int]:
        """Everything that is pending or was given up, in order."""
    def acked_among(self, sequences: Sequence[int]) -> list[int]: ...
    def sent(self, stream_seq: int, now_ns: int) -> _Pair:
        """(consumer sequence, deliveries)"""
    def apply(
        self, run: AckRun, start: int, now_ns: int, want_acked: bool
    ) -> tuple[int, int, list[int] | None]:
        """(next, acked, the sequences if asked for); stops before what needs Python"""
    def ack(self, stream_seq: int, consumer_seq: int) -> list[int]: ...
    def nak(self, stream_seq: int, delay_ns: int, now_ns: int) -> bool: ...
    def progress(self, stream_seq: int, now_ns: int) -> bool: ...
    def removed(self, sequences: Sequence[int]) -> list[tuple[int, int, int]]: ...
    def removed_below(self, stream_seq: int, moves_on: bool) -> int: ...
    def expire(self, now_ns: int) -> int: ...
    def next_deadline(self) -> int | None: ...
    def due(self, max: int) -> list[int]: ...
    def queue_all(self) -> int: ...
    def take_exceeded(self) -> list[_Pair]: ...
    def reset(self, stream_seq: int) -> None: ...
    def state(self) -> tuple[_Pair, _Pair, list[tuple[int, int, int]], list[_Pair]]:
        """(delivered, floor, [(sequence, consumer sequence, time)], [(sequence, redeliveries)])"""
    def set_state(
        self,
        delivered: _Pair,
        floor: _Pair,
        pending: Sequence[tuple[int, int, int]],
        redelivered: Sequence[_Pair],
    ) -> None: ...
    def encode_state(self) -> bytes: ...
    def record(self) -> None: ...
    def take_changes(self) -> bytes | None: ...
    def checkpoint(self) -> tuple[bytes | None, bytes]: ...
    @staticmethod
    def highest_sent(record: bytes) -> int: ...
    def replay(self, record: bytes) -> None: ...

@final
class Plan:
    """The checks that a publish meets, in order: ("size_max", 1024, b"answer"), ("duplicate",), …"""

    def __new__(cls, checks: Sequence[tuple[Any, ...]]) -> Self: ...

@final
class Window:
    """Message ids of the last `span_ns` and the sequences they got."""

    def __new__(cls, span_ns: int) -> Self: ...
    def __len__(self) -> int: ...
    def set_span(self, span_ns: int) -> None: ...
    def find(self, id: bytes, now_ns: int) -> int | None: ...
    def accepted(self, id: bytes, sequence: int, time_ns: int) -> None: ...
    def prune(self, now_ns: int) -> None: ...
    def forget_from(self, sequence: int) -> None: ...
    @property
    def last_id(self) -> bytes: ...
    def set_last_id(self, id: bytes) -> None: ...
    def export(self) -> list[tuple[bytes, int, int]]:
        """[(id, sequence, time)], oldest first"""

@final
class Judged:
    """What becomes of a producer's numbers: "fresh" (`first` to `last`), "done", "malformed", "bytes" (too many), "producers" (too many)."""

    @property
    def verdict(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...

@final
class Producers:
    """The numbers that the producers of a stream have done: bitmaps above a floor."""

    def __new__(cls, producers_max: int, bytes_max: int) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    def open(self) -> None: ...
    @property
    def changes(self) -> int: ...
    def judge(self, name: bytes | None, numbers: bytes | None) -> Judged: ...
    def drop_closed(self, before_ns: int) -> int: ...
    def stored(self, sequence: int) -> None: ...
    @property
    def unsure_from(self) -> int | None: ...
    def forget(self) -> None: ...
    def raise_floor(self, name: bytes, below: int, now_ns: int) -> None: ...
    def put(self, name: bytes, ranges: Sequence[tuple[int, int]], used_ns: int) -> None: ...
    def remove(self, name: bytes) -> bool: ...
    def take(self, batch: Batch, above: int) -> None: ...
    def load(self, name: bytes, used_ns: int, floor: int, raw: bytes) -> None: ...
    @property
    def size_bytes(self) -> int:
        """What all numbers take in memory, about."""
    def names(self) -> list[str]: ...
    def shown(self, name: bytes, ranges_max: int) -> tuple[int, int, int, list[tuple[int, int]]] | None:
        """(last use, floor, how many above it, the first ranges of these) without what is unsure"""
    def saved(self, name: bytes) -> tuple[str, int, int, bytes] | None:
        """(name, last use, floor, bitmaps) without what is unsure"""
    def export(self) -> list[tuple[str, int, int, bytes]]:
        """The same of all producers, by name"""

@final
class PublishRun:
    """Messages for one stream in the order in which they came."""

    def __len__(self) -> int: ...
    @property
    def account(self) -> int: ...
    @property
    def batch(self) -> Batch: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def wants_answers(self) -> bool: ...
    def admit(
        self,
        plan: Plan,
        window: Window,
        producers: Producers,
        log: BlockLog,
        start: int,
        now_ns: int,
        alone: bool = False,
    ) -> tuple[int, int, str | None]:
        """(next, accepted, what the message at `next` needs). `alone`: the message at `start` only, whose caller stores it"""
    def admit_and_append(
        self,
        plan: Plan,
        window: Window,
        producers: Producers,
        log: BlockLog,
        now_ns: int,
        block_bytes_max: int,
    ) -> tuple[int, int, str | None, tuple[int, int, int] | None]:
        """`admit`, and if that says yes to all and the newest block has room: what was stored (first, next, bytes)"""
    def resubject(self, subjects: Sequence[str]) -> None: ...
    def accepted(self, start: int, stop: int) -> Batch: ...
    def assign_sequences(self, start: int, first: int) -> None: ...
    def decided(self, at: int, body: bytes | None = None) -> None: ...
    def refuse(self, start: int, stop: int, body: bytes) -> None: ...
    def is_judged(self, at: int) -> bool: ...
    def message(self, at: int) -> tuple[str, bytes | None, bytes, bytes | None]:
        """(subject, headers, data, reply)"""

@final
class PullRun:
    """Requests for messages of one consumer; equal ones behind each other are one group."""

    def groups(self) -> list[tuple[bytes, int]]: ...
    def replies(self, group: int) -> list[bytes]: ...

@final
class EndedPull:
    """A request for messages that has ended."""

    @property
    def reply(self) -> bytes: ...
    @property
    def msgs_left(self) -> int: ...
    @property
    def bytes_left(self) -> int: ...
    @property
    def no_wait(self) -> bool: ...
    @property
    def delivered(self) -> int: ...
    @property
    def tag(self) -> int: ...

@final
class Waiting:
    """The pull requests of one consumer that wait. Times are monotonic nanoseconds, 0 is "none"."""

    def __new__(cls) -> Self: ...
    def __len__(self) -> int: ...
    # fmt: off
    def add(
        self, reply: bytes, now: int, msgs: int, bytes: int = 0, expires: int = 0, heartbeat: int = 0,
        no_wait: bool = False, tag: int = 0,
    ) -> None: ...
    # fmt: on
    def wanted(self) -> int: ...
    def next_deadline(self) -> int | None: ...
    def expire(self, now: int) -> list[EndedPull]: ...
    def heartbeats(self, now: int) -> list[bytes]: ...
    def take_no_wait(self) -> list[EndedPull]: ...
    def take_all(self, tag: int | None = None) -> list[EndedPull]: ...
    def take_of(self, exchange: Exchange, account: int, conn: int) -> list[EndedPull]: ...
    def drop_deserted(self, exchange: Exchange, account: int) -> int: ...

CALL: int
INGEST: int
ACKS: int
PULLS: int
INTEREST: int

# (publish allow, publish deny, [(subscribe allow, queue)], [(subscribe deny, queue)], (responses, ttl in ns))
_PermissionLists = tuple[
    Sequence[str] | None,
    Sequence[str],
    Sequence[tuple[str, str | None]] | None,
    Sequence[tuple[str, str | None]],
    tuple[int, int] | None,
]

@final
class Traffic:
    """Messages and bytes in both directions."""

    @property
    def in_msgs(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_msgs(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...

@final
class AccountStatistics:
    """The subscriptions of an account's clients, and how its table of subjects is used."""

    @property
    def account(self) -> str: ...
    @property
    def subscriptions(self) -> int: ...
    @property
    def inserts(self) -> int: ...
    @property
    def removes(self) -> int: ...
    @property
    def matches(self) -> int: ...
    @property
    def hits(self) -> int: ...

@final
class Exchange:
    """All connections and subscriptions of a server, without I/O: bytes in by `feed`, out by `take_output`."""

    def __new__(
        cls,
        max_payload: int = 1048576,
        max_control_line: int = 4096,
        max_subscriptions: int = 0,
        seed: int = 1,
        max_pending: int = 0,
    ) -> Self: ...
    def set_limits(
        self, max_payload: int, max_control_line: int, max_subscriptions: int, max_pending: int = 0
    ) -> None: ...
    def account(self, name: str) -> int: ...
    def open(self, account: int, locked: bool) -> int: ...
    def close(self, conn: int) -> None: ...
    # fmt: off
    def accept(
        self, conn: int, account: int, verbose: bool, pedantic: bool, echo: bool, headers: bool,
        no_responders: bool, permissions: _PermissionLists | None = None,
    ) -> None: ...
    # fmt: on
    def permit(self, conn: int, permissions: _PermissionLists | None) -> list[str]:
        """New permissions; the subjects of subscriptions that ended by them."""
    def connect_text(self, conn: int) -> bytes: ...
    def refuse(self, conn: int, text: str) -> None: ...
    def error(self, conn: int, text: str) -> None: ...
    def write(self, conn: int, data: bytes) -> None: ...
    def set_congested(self, conn: int, congested: bool) -> None: ...
    def ping(self, conn: int) -> None: ...
    def rtt_ns(self, conn: int) -> int:
        """How long the last PING took to be answered; 0 if none was."""
    def set_tracer(self, id: int) -> None:
        """Whose calls report traced messages: the destination as reply subject; then the size of the message and its
        receivers, a line for each."""
    def pongs(self, conn: int) -> int: ...
    def traffic(self, conn: int) -> Traffic: ...
    def subscription_count(self, conn: int) -> int: ...
    def totals(self) -> Traffic: ...
    def subscriptions_of(
        self, conn: int, skip: int, count: int
    ) -> list[tuple[str, str | None, str, int, int]]:
        """[(subject, queue, sid, delivered, max)]"""
    def statistics(self) -> list[AccountStatistics]: ...
    def feed(self, conn: int, data: bytes) -> int:
        """0: fine, 1: a CONNECT waits (`connect_text`, `accept`), 2: send what is left and close."""
    def set_now(self, now_ns: int) -> None: ...
    def take_output(self) -> list[tuple[int, bytes]]:
        """[(connection, bytes to send)]; no bytes: more than `max_pending` waits for it, it must go."""
    # fmt: off
    def publish(
        self, account: int, subject: bytes, reply: bytes | None = None, headers: bytes | None = None,
        data: bytes | None = None,
    ) -> int:
        """How many got it."""
    # fmt: on
    def interest(self, account: int, subject: str, queue: str | None = None) -> int: ...
    def listen(self, account: int, filter: str, kind: int, id: int) -> int:
        """The token for `unlisten`."""
    def unlisten(self, token: int) -> None: ...
    def take_acks(self, account: int, stream: str, consumer: str, id: int) -> None: ...
    def leave_acks(self, account: int, stream: str, consumer: str) -> None: ...
    def watch(self, account: int, subject: str, queue: str | None, id: int) -> int: ...
    def unwatch(self, token: int) -> None: ...
    def drain(self) -> list[tuple[int, int, Any]]:
        """[(kind, id, payload)] since the last time; the payload is a PublishRun, AckRun, PullRun, a bool for
        INTEREST, and (connection, subject, reply, headers, data, account) for CALL."""
    def answer(self, run: PublishRun, head: bytes, tail: bytes) -> None: ...
    def confirm(self, account: int, run: AckRun, delivered: int) -> None: ...
    # fmt: off
    def add_pulls(
        self, waiting: Waiting, run: PullRun, group: int, now: int, msgs: int, bytes: int = 0,
        expires: int = 0, heartbeat: int = 0, no_wait: bool = False, tag: int = 0,
    ) -> None: ...
    # fmt: on
    # fmt: off
    def deliver_pull(
        self, account: int, ledger: Ledger, waiting: Waiting, batch: Batch, ack_prefix: bytes, pending: int,
        wall_ns: int, now: int, again: bool = False, headers_only: bool = False, tag: int | None = None,
    ) -> tuple[int, list[tuple[bytes, str, int, int]]]:
        """(messages sent, [(reply, why it ended, messages left, bytes left)])"""
    # fmt: on
    # fmt: off
    def deliver_push(
        self, account: int, ledger: Ledger, subject: bytes, group: bytes | None, batch: Batch,
        ack_prefix: bytes, pending: int, wall_ns: int, now: int, again: bool = False,
        headers_only: bool = False,
    ) -> tuple[int, int]:
        """(messages, bytes)"""
    # fmt: on
    def listeners_of(self, account: int, subject: bytes) -> list[int]: ...

SOCKETS: bool
"""Whether there are `Sockets` here (Linux)."""

@final
class Sockets:
    """The sockets of plain clients of all protocols, in one epoll set. A connection is (number of its front end, its
    number there); notices are (front end, connection, kind), see `server/sockets.py`."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def add_front_end(self, front_end: Exchange | Requests) -> int:
        """The number under which its connections are known here."""
    def add(self, front_end: int, slot: int, fd: int) -> None:
        """Take the descriptor over."""
    def set_reading(self, front_end: int, slot: int, reading: bool) -> None: ...
    def active_ns(self, front_end: int, slot: int) -> int: ...
    def waiting_bytes(self, front_end: int, slot: int) -> int: ...
    def end(self, front_end: int, slot: int) -> bool:
        """Nothing more from it or for it; True when nothing waits and it can be removed."""
    def remove(self, front_end: int, slot: int) -> None:
        """Close at once."""
    def write(
        self, front_end: int, slot: int, data: bytes, pending_max: int
    ) -> list[tuple[int, int, int]] | None: ...
    def pump(self, now_ns: int) -> tuple[bool, list[tuple[int, int, int]] | None]:
        """Take in what came, send what waits; (was there a `wake`, notices)."""
    def flush(self) -> tuple[bool, list[tuple[int, int, int]] | None]:
        """Send the output of the front ends to our clients; (is some left for other transports, notices)."""
    def seek(self, spin_ns: int) -> tuple[bool, list[tuple[int, int, int]] | None] | None:
        """`pump` as soon as something is there; busily, for so long. None: nothing came."""

@final
class Request:
    """A whole request of a connection."""

    @property
    def conn(self) -> int: ...
    @property
    def number(self) -> int:
        """Of this connection, from 0 on."""
    @property
    def body(self) -> bytes: ...

@final
class Requests:
    """Connections that send requests with a length in front and get the answers in the order of the requests."""

    def __new__(
        cls, stranger_bytes_max: int, request_bytes_max: int, in_flight_max: int, pending_max: int
    ) -> Self: ...
    def open(self, known: bool) -> int:
        """A new connection; `known` if it may send requests of full size at once."""
    def accept(self, conn: int) -> None: ...
    def close(self, conn: int) -> None: ...
    def feed(self, conn: int, data: bytes) -> int:
        """0: fine, 2: send what is left and close, 3: read nothing more for now."""
    def take(self, bytes_max: int) -> list[Request]:
        """Requests in order of arrival, until their bytes reach `bytes_max`."""
    @property
    def has_arrived(self) -> bool: ...
    def answer(self, conn: int, number: int, answer: bytes | None = None) -> int:
        """The answer to a request (None: none is wanted), sent after those before it; as `feed`."""

# Group commit

JOURNAL_RECORD_BYTES_MAX: int

@final
class CommitHandle:
    """The files of a log or journal, for a `Committer`."""

    def commit(self, mark: int) -> None:
        """On the caller's thread. A mark beyond the end means everything so far."""

@final
class GroupCommit:
    """The rule of group commit around a function that syncs; see rust/core commit/group.rs."""

    def __new__(cls) -> Self: ...
    def commit(self, mark: int, round: Callable[[], int]) -> None:
        """Return once `mark` is durable. `round` syncs everything and returns the mark that this covers."""
    @property
    def durable(self) -> int: ...
    @property
    def poison(self) -> str | None: ...
    def raise_durable(self, mark: int) -> None: ...
    def healed(self) -> None: ...

@final
class JournalWriter:
    """The open file of a journal; see layouts/journal.py."""

    def __new__(cls, name: str) -> Self: ...
    def start(self, file: DiskFile, offset: int, position: int) -> None: ...
    def append(self, kind: int, payload: bytes) -> int: ...
    def write(self) -> None: ...
    def commit(self, position: int) -> None: ...
    def commit_handle(self) -> CommitHandle: ...
    def hold(self) -> int:
        """Sync everything, and let nobody write until `release`; the position of the last record in the file."""
    def release(self, position: int, file: DiskFile | None = None, offset: int = 0) -> None:
        """Go on, in another file if one is given."""
    def close(self) -> None: ...
    def check(self) -> None: ...
    def poison(self, reason: str) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...

@final
class Committed:
    """A group that was committed. `errors`: (place among its targets, error)."""

    @property
    def number(self) -> int: ...
    @property
    def errors(self) -> list[tuple[int, Exception]]: ...

@final
class Committer:
    """A thread that commits groups without the interpreter."""

    def __new__(cls, sockets: Sockets | None = None) -> Self: ...
    def fileno(self) -> int | None:
        """Readable when `take` has something; None where the sockets are woken instead."""
    def submit(self, number: int, targets: Sequence[tuple[CommitHandle, int]]) -> bool:
        """False when it was closed."""
    def take(self) -> list[Committed]: ...
    def close(self) -> None:
        """Finish what was submitted and end the thread."""

# NATS Streaming

# (in the index, kind, offset, length, first lost sequence, next sequence, detail)
_StanFinding = tuple[bool, str, int, int, int | None, int | None, str]
# (offset, end, detail, whether the file ends inside the record)
_StanProblem = tuple[int, int, str, bool]

@final
class StanEntry:
    """An entry of an index, with the earliest or latest time of the slice."""

    @property
    def sequence(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def size(self) -> int: ...

@final
class StanIndexSummary:
    """What an index file says."""

    @property
    def count(self) -> int: ...
    @property
    def first(self) -> StanEntry: ...
    @property
    def last(self) -> StanEntry: ...
    @property
    def counted_bytes(self) -> int: ...
    @property
    def sound_bytes(self) -> int: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def padded(self) -> bool: ...

@final
class StanMended:
    """A slice whose index was made anew from its data: `index` is the whole file."""

    @property
    def index(self) -> bytes: ...
    @property
    def count(self) -> int: ...
    @property
    def counted_bytes(self) -> int: ...
    @property
    def taken_in(self) -> int: ...
    @property
    def highest_seq(self) -> int: ...
    @property
    def first(self) -> StanEntry | None: ...
    @property
    def last(self) -> StanEntry | None: ...
    @property
    def findings(self) -> list[_StanFinding]: ...
    @property
    def sound_end(self) -> int: ...
    @property
    def differs(self) -> bool: ...

def stan_crc(poly: int, data: bytes) -> int: ...

# fmt: off
def stan_encode(
    batch: Batch, start: int, channel: str, next: int, keep_positions: bool, now_ns: int, not_before_ns: int,
    offset: int, msgs_left: int, bytes_left: int, lossy: bool, poly: int, seal: tuple[bytes, int, bytes] | None,
) -> tuple[bytes, bytes, int, int, int, int, int, int, bytes | None]:
    """(records, index entries, taken, first, next, first time, last time, counted bytes, next nonce)"""
def stan_read(
    data: DiskFile, index: DiskFile, count: int, slice_first: int, first: int, below: int, max_msgs: int,
    max_bytes: int, poly: int, strict: bool, key: bytes | None,
) -> tuple[Batch, int, list[_StanFinding], int]:
    """(messages, everything below this was looked at, findings, messages that the key does not open)"""
def stan_front(
    index: DiskFile, count: int, slice_first: int, first: int, excess_msgs: int, excess_bytes: int,
    before_ns: int, below: int, keep_from: int, poly: int,
) -> tuple[int, int, int]:
    """(where the front is then, messages that went, their counted bytes)"""
def stan_mend(
    data: DiskFile, index: DiskFile | None, channel: str, poly: int, strict: bool, cut_at: int | None,
    below: int | None,
) -> StanMended: ...
# fmt: on
def stan_index(file: DiskFile, poly: int, strict: bool) -> StanIndexSummary: ...
def stan_seq_from_time(index: DiskFile, count: int, time_ns: int) -> int | None: ...
def stan_frame(kind: int, payload: bytes, poly: int) -> bytes: ...
def stan_frames(
    data: bytes, types: int, poly: int, strict: bool, tolerant: bool
) -> tuple[list[tuple[int, int, bytes]], list[_StanProblem], int]:
    """([(offset, type, payload)], problems, end of the last sound record)"""

@final
class StanSub:
    """A subscription: its SubState as written last."""

    @property
    def state(self) -> bytes: ...
    @property
    def last_sent(self) -> int: ...

@final
class StanSubs:
    """The subscriptions of one NATS Streaming channel: states, what was sent, what is pending."""

    def __new__(cls, poly: int) -> Self: ...
    @staticmethod
    def load(
        data: bytes, poly: int, strict: bool, tolerant: bool
    ) -> tuple[StanSubs, list[_StanProblem], int]:
        """(table, problems, end of the last sound record)"""
    def ids(self) -> list[int]: ...
    def get(self, id: int) -> StanSub | None: ...
    def pending(self, id: int) -> list[int]: ...
    @property
    def highest_id(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def void_records(self) -> int: ...
    @property
    def highest_seq(self) -> int: ...
    def put(self, kind: int, id: int, state: bytes, last_sent: int) -> bytes: ...
    def delete(self, id: int) -> None: ...
    def sent(self, id: int, sequences: Sequence[int]) -> bytes: ...
    def acked(self, id: int, sequences: Sequence[int]) -> bytes: ...
    def compacted(self, states: dict[int, bytes]) -> bytes: ...

# Kafka's segments

_Finding = tuple[str, int, int, int | None, int | None, str]
_Producer = tuple[int, int, int, int, int, int, int, int]

@final
class KafkaPiece:
    """One batch among those that were encoded."""

    @property
    def size(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...

@final
class KafkaEncoded:
    """Batches ready to be written."""

    def __len__(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def max_time_ms(self) -> int: ...
    def piece(self, at: int) -> KafkaPiece | None: ...
    def counts(self, start: int, count: int) -> tuple[int, int]:
        """(messages, control records) of a run of batches"""
    def data(self) -> bytes: ...

def kafka_encode(
    batch: Batch,
    first: int,
    keep_positions: bool,
    now_ms: int,
    magic: int,
    codec: str,
    level: int | None,
    batch_bytes: int,
    message_bytes_max: int,
    leader_epoch: int,
    append_time: bool,
) -> KafkaEncoded: ...
def kafka_frames(
    data: bytes, first: int, keep_offsets: bool, leader_epoch: int, inflated_max: int
) -> KafkaEncoded:
    """Whole batches, checked and given offsets; compressed ones are not opened."""

@final
class KafkaProducers:
    """(producer, epoch, last sequence, last offset, offset delta, time ms, coordinator epoch, open transaction)"""

    def __new__(cls, states: Sequence[_Producer]) -> Self: ...
    def states(self) -> list[_Producer]: ...
    def apply(self, encoded: KafkaEncoded, start: int, count: int) -> list[tuple[int, int, int, int]]:
        """[(producer, first, marker's offset, last stable offset)] of transactions that were aborted"""
    @property
    def first_open(self) -> int | None: ...

@final
class KafkaWriter:
    """The active segment."""

    def __new__(
        cls,
        disk: Disk,
        stem: str,
        base: int,
        interval: int,
        size: int,
        first_batch_time_ms: int,
        index: bytes,
        times: bytes,
    ) -> Self: ...
    def append(self, encoded: KafkaEncoded, start: int, bytes_max: int) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_batch_time_ms(self) -> int: ...
    @property
    def max_time_ms(self) -> int: ...
    def entries(self) -> tuple[int, int]: ...
    def index_data(self) -> tuple[bytes, bytes]: ...
    def sync(self) -> None: ...
    def release_files(self) -> None:
        """Close the descriptors of a log that is synced; the next append opens them again."""
    def close(self) -> None: ...

@final
class KafkaFound:
    """A batch in a segment, and how many were passed on the way to it."""

    @property
    def position(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def passed(self) -> int: ...

@final
class KafkaReader:
    """One segment for reading; the indexes come as files (mapped) or as bytes."""

    def __new__(
        cls,
        disk: Disk,
        path: str,
        base: int,
        ceiling: int | None,
        subject: str,
        inflated_max: int,
        index_path: str | None = None,
        times_path: str | None = None,
        index: bytes | None = None,
        times: bytes | None = None,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def locate(self, offset: int, writer: KafkaWriter | None = None) -> tuple[int, int, bool]:
        """(position, last offset before it, whether the index was believed)"""
    def find(self, offset: int, position: int, last: int) -> KafkaFound | None:
        """The batch that holds an offset."""
    def read(
        self,
        position: int,
        last: int,
        first: int,
        next: int,
        max_msgs: int,
        max_bytes: int,
        limit: int,
        control: bool,
        aborted: Sequence[tuple[int, int, int]],
    ) -> tuple[Batch, int, int, bool, list[_Finding]]:
        """(messages, position, last offset before it, whether the segment ended, findings)"""
    def read_frames(
        self, position: int, last: int, first: int, max_bytes: int, limit: int
    ) -> tuple[bytes, int, int, int, int, int, int]:
        """(batches, first, next, messages, largest time ms, position, last offset before it)"""
    def find_time(
        self, time_ms: int, first: int, limit: int, writer: KafkaWriter | None = None
    ) -> int | None: ...

@final
class KafkaSurvey:
    """A whole segment, every checksum."""

    @property
    def file_bytes(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def control_records(self) -> int: ...
    @property
    def sound_bytes(self) -> int: ...
    @property
    def first(self) -> int | None: ...
    @property
    def last(self) -> int: ...
    @property
    def first_time_ns(self) -> int | None: ...
    @property
    def max_time_ms(self) -> int: ...
    @property
    def first_batch_time_ms(self) -> int: ...
    def kinds(self) -> tuple[bytes, list[str]]:
        """Formats and codecs that occur."""
    def index_data(self) -> tuple[bytes, bytes]: ...
    def bad(self) -> list[tuple[int, int, str, int | None, int | None, bool, bool]]:
        """[(from, to, why, first claimed, next claimed, nothing sound follows, only zeros)]"""
    def repairs(self) -> list[tuple[int, bytes, str]]: ...
    def malformed(self) -> list[tuple[int, int, int, int, str]]:
        """[(position, size, first, next, why)] of batches whose messages do not decode"""
    def epochs(self) -> list[tuple[int, int]]: ...
    def aborted(self) -> list[tuple[int, int, int, int]]: ...

def kafka_survey(
    disk: Disk,
    path: str,
    base: int,
    ceiling: int | None,
    interval: int,
    producers: KafkaProducers,
    start: int = 0,
    last: int | None = None,
    deep: bool = False,
    inflated_max: int = 134217728,
    anchors: bytes | None = None,
    limit: int | None = None,
) -> KafkaSurvey: ...
def kafka_crc32c(data: bytes) -> int: ...

# RocketMQ's store

@final
class RocketEncoded:
    """Messages ready for the commit log."""

    def pieces(self) -> list[tuple[int, int]]:
        """[(address, bytes)] for each file that is written to"""
    def write(self, piece: int, file: DiskFile, position: int) -> None: ...
    def entries(self) -> bytes: ...
    @property
    def messages(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def next_address(self) -> int: ...
    @property
    def keys(self) -> int: ...

def rocketmq_encode(
    batch: Batch,
    topic: str,
    queue: int,
    first: int,
    keep_positions: bool,
    address: int,
    file_bytes: int,
    now_ms: int,
    body_max: int,
    store_host: bytes,
    property_crc: bool,
) -> RocketEncoded: ...

@final
class RocketScan:
    """One file of the commit log: what each queue gets from it, what is not sound."""

    @property
    def messages(self) -> int: ...
    @property
    def end(self) -> int:
        """Where the next message goes."""
    @property
    def first_store_ms(self) -> int | None: ...
    @property
    def last_store_ms(self) -> int: ...
    def bad(self) -> list[tuple[int, int, str, bool]]:
        """[(from, to, why, nothing sound follows)]"""
    def keys_upto(self, address: int) -> int:
        """How many keys belong to messages up to an address."""
    def queues(self) -> list[tuple[str, int, int, bytes]]:
        """[(topic, queue, first offset, entries)]"""

def rocketmq_scan(disk: Disk, path: str, start: int, position: int, keys: bool) -> RocketScan: ...

@final
class RocketPlace:
    """Whose message lies at an address."""

    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> int: ...
    @property
    def offset(self) -> int: ...

@final
class RocketReader:
    """Messages by the entries of their queue; `files` are (address of the first byte, path)."""

    def __new__(cls, disk: Disk, files: Sequence[tuple[int, str]]) -> Self: ...
    def read(
        self, topic: str, queue: int, first: int, entries: bytes, max_bytes: int, inflated_max: int
    ) -> tuple[Batch, int, list[tuple[int, int, int, str]]]:
        """(messages, entries used, [(queue offset, address, size, why)] of those that are not there)"""
    def store_time(self, address: int, size: int) -> int | None: ...
    def identify(self, address: int) -> RocketPlace | None: ...

@final
class RocketIndexHeader:
    """What a key file says of itself; `count` is one more than its entries."""

    @property
    def begin_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def begin_address(self) -> int: ...
    @property
    def end_address(self) -> int: ...
    @property
    def slots_used(self) -> int: ...
    @property
    def count(self) -> int: ...

@final
class RocketIndex:
    """A file that finds messages by key."""

    def __new__(cls, file: DiskFile, slots: int, entries: int, begin_ms: int = 0) -> Self: ...
    def put(self, encoded: RocketEncoded, start: int) -> int: ...
    def put_scanned(self, scan: RocketScan, start: int) -> int: ...
    def find(self, key: str, max: int) -> list[int]: ...
    def header(self) -> RocketIndexHeader: ...
    @property
    def full(self) -> bool: ...

def rocketmq_bytes_of(entries: bytes) -> int: ...
def rocketmq_crc(data: bytes) -> int: ...

# RabbitMQ

_RabbitFinding = tuple[str, int, int, int | None, int | None, str]
"""(kind, offset, length, first, next, detail)"""

@final
class RabbitWrite:
    """What is to be written before a staged change is applied."""

    @property
    def journal(self) -> tuple[int, int]:
        """Where the records lie in the journal's bytes in memory."""
    @property
    def chunks(self) -> int: ...
    def chunk(self, number: int) -> bytes:
        """Store records: the first chunk goes to the current file's end, each further one to a new file."""
    @property
    def ids(self) -> bytes: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def count(self) -> int: ...

@final
class RabbitFile:
    """A file of the message store."""

    @property
    def kind(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def referenced_bytes(self) -> int: ...
    @property
    def records(self) -> int: ...

@final
class RabbitTotals:
    """What a queue's index counts."""

    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def journal_records(self) -> int: ...
    @property
    def journal_bytes(self) -> int: ...

@final
class RabbitStore:
    """Where each message of a vhost's store lies, and how many queues hold it. Kinds: rdq, rdt, transient."""

    def __new__(cls, disk: Disk, directory: str, transient: str) -> Self: ...
    def scan(self, kind: str, number: int) -> list[_RabbitFinding]: ...
    def files(self) -> list[RabbitFile]: ...
    def add_file(self, number: int) -> None: ...
    def forget_file(self, kind: str, number: int) -> None: ...
    def forget_unreferenced(self) -> None: ...
    def hidden(self) -> tuple[bytes, bytes]:
        """(records, ids) of referenced messages that RabbitMQ's own scanner would not find."""
    def wrote(self, number: int, offset: int, write: RabbitWrite, chunk: int) -> None: ...
    def copied(self, number: int, offset: int, ids: bytes) -> None: ...
    def merged(self, files: Sequence[tuple[str, int]]) -> tuple[bytes, bytes]:
        """(records, ids): everything referenced in these files."""
    def took_over(self, target: int, data: bytes, ids: bytes) -> None: ...
    def dump(self) -> bytes | None:
        """Every referenced message's place; None when one is where only a full scan finds it."""
    def load_dump(self, data: bytes) -> None: ...
    def restore_file(self, number: int, bytes: int, valid: int, records: int) -> None: ...
    def close_files(self) -> None: ...
    def __len__(self) -> int: ...

@final
class RabbitQueue:
    """One queue's index: the segment map and the journal since the last flush."""

    def __new__(cls, count: int, seed: bytes) -> Self: ...
    def load_segment(self, number: int, data: bytes) -> list[_RabbitFinding]: ...
    def load_for_reading(
        self, disk: Disk, directory: str, number: int
    ) -> tuple[list[_RabbitFinding], list[int]]:
        """`load_segment` from its file, whose messages are read next. (findings, sequences that cannot be read)"""
    def load_journal(self, data: bytes) -> list[_RabbitFinding]: ...
    def rows(self) -> bytes:
        """The segments' numbers, after a flush: what `restore` takes."""
    def restore(self, rows: bytes) -> None:
        """Segments by their numbers; each must be loaded before something in it is touched."""
    def cold_of(self, positions: Sequence[int]) -> list[int]:
        """Segments to be loaded before these positions are moved."""
    def cold_below(self, sequence: int) -> list[int]: ...
    def cold_stored(self) -> list[int]: ...
    def cold_from(self, first: int) -> int | None:
        """The segment to be loaded before reading at `first`."""
    def reference_segment(self, number: int, store: RabbitStore) -> list[int]:
        """Sequences of a segment whose message is not in the store."""
    def totals(self) -> RabbitTotals: ...
    def segments(self) -> list[tuple[int, int, int, bool]]:
        """[(segment, unacked, bytes of its file, has journal entries)]"""
    def raise_next(self, next: int) -> None: ...
    def reference(self, store: RabbitStore, count: bool) -> list[int]:
        """Sequences whose message is not in the store; with `count` the others are counted there."""
    def stage_publish(
        self,
        batch: Batch,
        store: RabbitStore,
        vhost: bytes,
        queue: bytes,
        now_ns: int,
        keep_positions: bool,
        embed_below: int,
        deliver: bool,
        ids: bytes,
        store_bytes: int,
        store_limit: int,
    ) -> RabbitWrite: ...
    def stage_moves(self, positions: Sequence[int], ack: bool, record: bool) -> RabbitWrite: ...
    def apply(self, store: RabbitStore) -> None: ...
    def abandon(self) -> None: ...
    def write_journal(self, piece: tuple[int, int], file: DiskFile, offset: int) -> None: ...
    def plan_flush(self) -> list[tuple[int, bool]]:
        """[(segment, true: append to its file, false: delete it)]"""
    def flush_segment(self, number: int, file: DiskFile, offset: int) -> int:
        """How many bytes were written."""
    def flushed(self) -> None: ...
    def set_file_bytes(self, number: int, bytes: int) -> None: ...
    def read(
        self,
        disk: Disk,
        directory: str,
        store: RabbitStore,
        first: int,
        max_msgs: int,
        max_bytes: int,
        below: int,
    ) -> tuple[Batch, int, list[_RabbitFinding], list[int]]:
        """(messages of one segment, where to go on, findings, sequences that cannot be read)"""
    def unacked_below(self, sequence: int) -> list[int]: ...
    def pending(self, max: int) -> list[int]: ...
    def mark_sent(self, positions: Sequence[int]) -> None: ...
    def next_after_flush(self) -> int: ...
    def store_files(self, segment: int, store: RabbitStore) -> list[tuple[str, int]]: ...
    def unsend(self, positions: Sequence[int]) -> None: ...
    def first_live(self) -> int | None: ...
    def last_live(self) -> int | None: ...

def amqp_header_texts(block: bytes) -> list[tuple[str, str]]:
    """Properties, headers and envelope of an `amqp` block as texts."""

def rabbit_stamp(disk: Disk, path: str, but: str) -> int:
    """Changes when a file under `path` does; those called `headrace.*` do not count, except `but`."""

def rabbit_check_journal(data: bytes) -> tuple[list[_RabbitFinding], int, int, int]:
    """(findings, publishes, delivers, acks)"""

def rabbit_check_segment(data: bytes, entries: int) -> tuple[list[_RabbitFinding], int, int, int]:
    """(findings, publishes, delivers, acks)"""

def rabbit_check_store(data: bytes) -> tuple[list[_RabbitFinding], int]:
    """(findings, sound records)"""

def rabbit_rewritten_segment(data: bytes, number: int, entries: int, journal: bytes) -> tuple[bytes, bool]:
    """(the segment without what is unsound or contradicted by the journal, whether the journal contradicts)"""

# Conversion between layouts

def recast(
    batch: Batch,
    to: str,
    keys: bool,
    nulls: bool,
    subject: bytes | None,
    restore: bool,
    carry: str,
    usual: bytes,
    subject_max: int,
    shift: int,
    time: int,
) -> Batch:
    """The same messages with the headers of another broker; what has no place there travels in headers of ours."""

@final
class MergeRound:
    """What several logs give next: the log of each message in order (u32, little-endian), how many entries of each batch are
    used up, and the key (greatest time so far) that each log has reached."""

    @property
    def origins(self) -> bytes: ...
    @property
    def taken(self) -> list[int]: ...
    @property
    def keys(self) -> list[int]: ...

def merge_round(
    batches: Sequence[Batch], keys: Sequence[int], ended: Sequence[bool], by_time: bool
) -> MergeRound:
    """The next messages of logs that become one, by time or one log after the other; `ended` says whose batch is its last."""

def interleave(parts: Sequence[Batch], origins: bytes) -> Batch:
    """The messages of all parts in the order of a round."""

def deinterleave(batch: Batch, origins: bytes, logs: int) -> list[Batch]:
    """The messages of each log out of a batch that holds all of them."""

def unacked(origins: bytes, acked: Sequence[int | None]) -> tuple[list[int], int | None]:
    """Places in a round that a reader has not acked, and the last one that it has; it has acked so many of each log, and
    does not read those with None."""

@final
class Digest:
    """One hash over the plain forms of many messages, in their order."""

    def __new__(cls) -> Self: ...
    def add(self, batch: Batch, parts: int, shift: int, time: int, tick: int) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def value(self) -> int: ...

# --- client ------------------------------------------------------------------------------------------

_Event = tuple[str, int, bytes, bytes, bytes, bytes]

@final
class PublishAcks:
    """How far publishes are answered: all below `floor` are, `next` is the number of the next one."""

    @property
    def floor(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def last_seq(self) -> int: ...

@final
class Intake:
    """What a NATS server sends: a batch, acks of publishes, events."""

    def __new__(cls) -> Self: ...
    def feed(self, bytes: bytes) -> None: ...
    def receive(self, fd: int, messages: int, bytes: int, floor: int, timeout: float) -> bool:
        """Wait for an event, a batch of that size, or a floor of the acks; False when the time is over."""
    def ready(self, messages: int, bytes: int, floor: int) -> bool: ...
    def send(self, fd: int, bytes: bytes, timeout: float) -> None:
        """Send all of it, and take what comes meanwhile."""
    def events(self) -> list[_Event]:
        """(kind, sid, subject, reply, headers, payload); kinds are MSG INFO ERR PING PONG."""
    def batch(self) -> Batch: ...
    @property
    def messages(self) -> int: ...
    @property
    def pending(self) -> int:
        """What the last message of a pull said was still to come."""
    def expect_data(self, sid: int | None, keep_replies: bool = False) -> None:
        """Which subscription gives messages of the batch (with their replies as keys)."""
    def expect_acks(self, sid: int | None) -> int | None:
        """Which subscription gives answers to publishes; the one before."""
    def expect_stream(self, spellings: Sequence[bytes]) -> None:
        """The stream that answers must name, in every spelling that JSON has for it; none: any."""
    def open(self, count: int) -> int:
        """Numbers for that many publishes; the first one."""
    def acks(self) -> PublishAcks: ...
    def reset(self) -> None:
        """Forget the connection, not the open publishes."""

def encode_publishes(
    batch: Batch,
    inbox: bytes,
    id_prefix: bytes | None,
    producer: bytes | None,
    stream: bytes | None,
    without: Sequence[bytes],
    first: int,
    max_payload: int,
) -> bytes:
    """Publishes that are answered at `inbox.<number>`; ids are the key, or prefix and position. Another stream than `stream`
    refuses them; own headers of the names `without` are not sent."""

def encode_acks(batch: Batch, word: bytes, inbox: bytes, first: int) -> bytes:
    """Acks (or other words) to messages whose keys are their replies, answered at `inbox.<number>` when they are safe."""

_Parts = tuple[Any, Any, Any, int]

def batch_from_columns(
    rows: int,
    subject: bytes | _Parts,
    data: _Parts | None,
    key: _Parts | None,
    headers: tuple[_Parts, _Parts, _Parts, _Parts] | None,
    positions: Any,
    times: Any,
    blocks: tuple[_Parts, str] | None = None,
) -> Batch:
    """Arrow buffers (validity, offsets, bytes, first row) as a batch; `blocks` are headers as stored, and their codec."""
