"""The portable form of a stream: files that nats-server 2.6.5, 2.9.10 and 2.15.2 all open.

    meta.inf meta.sum            in the keys of the asked era
    msgs/N.blk                   plain records without holes: a placeholder for each sequence that has no message
    msgs/N.idx                   only where records cannot say it: a stream that ends in nothing but gone sequences
    obs/<CONSUMER>/…             meta.inf, meta.sum, o.dat version 2 without our trailer

Servers before 2.9.22 find a record by `sequence - first of the block` and take a tombstone for a message, so
there are no holes inside a block, no tombstones and no compression. A wide hole lies between two blocks. The
store is read, never changed; what it gets while it is read does not appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.config.meta_json import Era, encode_consumer_meta, encode_stream_meta, lost_in
from headrace.config.model import ConsumerConfig, block_size
from headrace.errors import AlreadyExists, BadInput
from headrace.layouts.directories import make_dirs
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import Batch, Disk
from headrace.layouts.jetstream.consumers.recovery import CONSUMERS_DIR
from headrace.layouts.jetstream.consumers.state import STATE_FILE, TRAILER_BYTES, encode_state
from headrace.layouts.jetstream.meta import META_FILE, SUM_FILE, meta_sum
from headrace.layouts.jetstream.paths import MSGS
from headrace.record import FLAG_PLACEHOLDER

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore
    from headrace.layouts.jetstream.volume import JetStreamVolume

ERAS: tuple[Era, ...] = ("2.6", "2.9", "2.15")
HOLE_IN_BLOCK_MAX = 16_384
_AT_ONCE = 8192
_READ_BYTES = 8 << 20
_NO_HASH = bytes(8)

Files = Iterator[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class PortableReport:
    """What became of one stream. `lost` are settings that servers of the era do not know."""

    stream: str
    messages: int
    blocks: int
    lost: list[str] = field(default_factory=lambda: [])
    lost_by_consumer: dict[str, list[str]] = field(default_factory=lambda: {})


def portable_files(store: FileStreamStore, era: Era = "2.9", include_consumers: bool = True) -> Files:
    """(name below the stream's directory, content) of every file, metadata first; one block at a time."""
    _check_era(era)
    with store.lock:
        # Consumers and the end of the stream are taken at one moment: none may be ahead of the messages.
        consumers = list(_consumer_files(store, era)) if include_consumers else []
        msgs, last, last_time = store.log.messages, store.log.last_seq, store.log.last_time_ns
    meta = encode_stream_meta(store.config, store.created_ns, era)
    yield META_FILE, meta
    yield SUM_FILE, meta_sum(store.name, meta)
    yield from _Blocks(store, last, last_time).files(empty=not msgs)
    yield from consumers


def settings_lost(store: FileStreamStore, era: Era) -> tuple[list[str], dict[str, list[str]]]:
    """Settings of the stream, and of each consumer, that servers of `era` do not know."""
    by_consumer = {
        name: _consumer_lost(store.consumers.get(name).config, era) for name in store.consumers.names()
    }
    return lost_in(store.config, era), {name: lost for name, lost in by_consumer.items() if lost}


def _consumer_lost(config: ConsumerConfig, era: Era) -> list[str]:
    # 2.6 does not take up a pull consumer with another ack policy: it warns, and the stream is there without it.
    refused = era == "2.6" and not config.deliver_subject and config.ack_policy != "explicit"
    return [*lost_in(config, era), *(["ack_policy"] if refused else [])]


def write_portable(
    store: FileStreamStore, target_dir: str, era: Era = "2.9", disk: Disk | None = None
) -> PortableReport:
    """Write one stream into `target_dir` (which must not exist and must end in its name), synced."""
    place = disk or Disk.real()
    if target_dir.rstrip("/").rsplit("/", 1)[-1] != store.name:
        raise BadInput(f"{target_dir}: a stream's directory has its name, {store.name}")
    if place.entry(target_dir) is not None:
        raise AlreadyExists(f"{target_dir} is there already; give a directory that is not")
    blocks = 0
    make_dirs(place, f"{target_dir}/{MSGS}")
    for name, data in portable_files(store, era):
        path = f"{target_dir}/{name}"
        folder = path.rsplit("/", 1)[0]
        if place.entry(folder) is None:
            make_dirs(place, folder)
        file = place.open(path, "create_new")
        file.write_at(0, data)
        file.sync_data()
        place.sync_dir(folder)
        blocks += name.endswith(".blk")
    lost, by_consumer = settings_lost(store, era)
    return PortableReport(store.name, store.log.messages, blocks, lost, by_consumer)


def write_portable_volume(
    volume: JetStreamVolume,
    target: str,
    era: Era = "2.9",
    disk: Disk | None = None,
    progress: Callable[[PortableReport], None] | None = None,
) -> list[PortableReport]:
    """Write every stream of a volume below `target`, a store directory for a server of that era or later."""
    _check_era(era)
    place, reports = disk or Disk.real(), list[PortableReport]()
    if place.entry(f"{target}/jetstream") is not None:
        raise AlreadyExists(f"{target} holds a JetStream store already; give a directory without one")
    for name in volume.logs():
        account, _, stream = name.rpartition("/")
        directory = f"{target.rstrip('/')}/jetstream/{account or '$G'}/streams/{stream}"
        reports.append(write_portable(volume.open(name), directory, era, place))
        if progress is not None:
            progress(reports[-1])
    return reports


def _check_era(era: str) -> None:
    if era not in ERAS:
        raise BadInput(f"era {era!r}; known are {', '.join(ERAS)}")


def _consumer_files(store: FileStreamStore, era: Era) -> Files:
    for name in store.consumers.names():
        consumer, folder = store.consumers.get(name), f"{CONSUMERS_DIR}/{name}"
        key_text = f"{store.name}/{name}"
        meta = encode_consumer_meta(name, consumer.config, consumer.created_ns, era)
        yield f"{folder}/{META_FILE}", meta
        yield f"{folder}/{SUM_FILE}", meta_sum(key_text, meta)
        state = consumer.state()
        # Without o.dat a server applies the deliver policy; with one it goes on where that says.
        if state.delivered.stream or consumer.dirty or store.consumers.has_state_file(name):
            yield f"{folder}/{STATE_FILE}", encode_state(state, key_text)[:-TRAILER_BYTES]


class _Blocks:
    """The messages of a store as blocks without holes."""

    def __init__(self, store: FileStreamStore, last: int, last_time: int) -> None:
        self._store, self._last, self._last_time = store, last, last_time
        self._bytes_max = block_size(store.config)
        self._number, self._parts, self._size = 1, list[bytes](), 0
        self._next = self._time = 0

    def files(self, *, empty: bool) -> Files:
        if not empty:
            for batch in self._batches():
                yield from self._add(batch)
        hole = self._last + 1 - self._next if self._next else self._last + 1
        if self._next and 0 < hole <= HOLE_IN_BLOCK_MAX:
            self._parts.append(self._placeholders(hole))
            hole = 0
        yield from self._end()
        if self._last and hole > 0:
            yield from self._nothing_up_to_last()

    def _batches(self) -> Iterator[Batch]:
        position = 0
        while position <= self._last:
            batch = self._store.log.read(position, _AT_ONCE, _READ_BYTES, None, self._last + 1)
            if not len(batch):
                return
            yield batch
            position = batch.last_position + 1

    def _add(self, batch: Batch) -> Files:
        start, count = 0, len(batch)
        while start < count:
            records, taken = _kernels.js_encode_filled(
                self._store.name,
                self._number,
                batch,
                start,
                self._next if self._parts else 0,
                self._time,
                self._bytes_max - self._size,
                HOLE_IN_BLOCK_MAX,
            )
            if taken:
                start += taken
                self._parts.append(records)
                self._size += len(records)
                newest = batch.slice(start - 1, start)
                self._next, self._time = newest.last_position + 1, newest.times()[0]
            if start < count:
                yield from self._end()

    def _placeholders(self, count: int) -> bytes:
        """The sequences behind the last message, in the block that holds it."""
        batch = Batch.build(
            "",
            [b""] * count,
            times=[self._last_time or self._time] * count,
            positions=list(range(self._next, self._next + count)),
            flags=[FLAG_PLACEHOLDER] * count,
        )
        return _kernels.js_encode_records(self._store.name, self._number, batch)

    def _end(self) -> Files:
        if self._parts:
            yield f"{MSGS}/{self._number}.blk", b"".join(self._parts)
            self._parts, self._size, self._number = [], 0, self._number + 1

    def _nothing_up_to_last(self) -> Files:
        """An empty block whose index says where the stream ends."""
        yield f"{MSGS}/{self._number}.blk", b""
        idx = _kernels.js_encode_idx(0, 0, self._last + 1, 0, self._last, self._last_time, [], _NO_HASH)
        yield f"{MSGS}/{self._number}.idx", idx
