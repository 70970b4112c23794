"""A stream made from a snapshot, in either form. It appears whole or not at all.

    streams/.<STREAM>/<STREAM>/…    built here, as an ordinary stream; servers remove what begins with a dot
    streams/<STREAM>                renamed to this when everything in it is synced

Whoever sends a snapshot may send anything: names are checked before a path is made of them, sizes are limited,
and a snapshot whose messages are not sound is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from headrace.config.meta_json import decode_stream_meta, encode_stream_meta
from headrace.config.model import UNLIMITED, StreamConfig
from headrace.config.names import check_name
from headrace.errors import AlreadyExists, BadInput, Damaged, HeadraceError
from headrace.layouts.base import LogState
from headrace.layouts.directories import make_dirs
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.meta import META_FILE, write_meta
from headrace.layouts.jetstream.paths import MSGS, SIDE
from headrace.layouts.jetstream.recovery.opening import open_for_writing
from headrace.layouts.jetstream.snapshots import archive
from headrace.layouts.jetstream.snapshots.archive import Document
from headrace.layouts.jetstream.snapshots.snapshot_json import decode_log_state, decode_snapshot_consumer
from headrace.layouts.jetstream.store import upkeep
from headrace.layouts.jetstream.store.sidecar import PRODUCERS
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.stream_store import FirstLook

if TYPE_CHECKING:
    from headrace.layouts.jetstream.volume import JetStreamVolume

RESTORE_BYTES_MAX = 1 << 40
_WANTED = re.compile(
    r"meta\.(inf|sum)|msgs/([1-9][0-9]{0,18}\.(blk|idx|fss)|index\.db)|obs/[^/]+/(meta\.inf|meta\.sum|o\.dat)"
)
_SEALED = re.compile(r".*\.key")
_UNSOUND = ("bad-record", "unsound-tail", "forged-inside", "metadata")


def restore(
    volume: JetStreamVolume,
    name: str,
    chunks: Iterable[bytes],
    config: StreamConfig | None = None,
    *,
    bytes_max: int = RESTORE_BYTES_MAX,
    first_look: FirstLook | None = None,
) -> FileStreamStore:
    """Make stream `name` from the chunks of a snapshot and open it.

    The tar form brings its own configuration, which `config` replaces; the archive form needs one.
    AlreadyExists if the name is taken, Damaged if the snapshot is not sound; nothing is left of it then.
    """
    target = volume.directory_of(name)
    stream = target.rsplit("/", 1)[-1]
    if config is not None:
        config = config.filled()
        config.validate()
        if config.name != stream:
            raise BadInput(f"the configuration is that of {config.name!r}, the stream is to be {stream!r}")
    disk = volume.disk
    with volume.changing():
        if disk.entry(target) is not None:
            raise AlreadyExists(f"stream {name} exists; delete it first, or restore under another name")
        hidden = f"{target.rsplit('/', 1)[0]}/.{stream}"
        if disk.entry(hidden) is not None:
            disk.remove_dir_all(hidden)
        try:
            built = f"{hidden}/{stream}"
            make_dirs(disk, f"{built}/{MSGS}")
            _Builder(disk, built, config, volume.clock).build(_limited(archive.decompress(chunks), bytes_max))
            disk.replace_file(f"{built}/{SIDE}/{PRODUCERS}", b"")
            disk.rename(built, target)
            disk.sync_dir(target.rsplit("/", 1)[0])
        finally:
            try:
                disk.remove_dir_all(hidden)
            except HeadraceError:
                pass  # what begins with a dot is not a stream, here and in nats-server
        return volume.open(name, first_look)


def restore_in_memory(
    volume: JetStreamVolume, name: str, chunks: Iterable[bytes], config: StreamConfig
) -> FileStreamStore:
    """A memory stream from a snapshot: unpacked on a disk that is memory, then copied."""
    scratch = type(volume)("/restore", mode="rw", create=True, disk=Disk.memory(), maintenance=False)
    try:
        source = scratch.restore(config.name, chunks, msgspec.structs.replace(config, storage="file"))
        target = volume.create(name, config=config)
        start = 1
        while len(batch := source.read(start, 8192)):
            target.append(batch, keep_positions=True)
            start = batch.last_position + 1
        target.log.raise_last(source.last_seq, source.last_time_ns)
        for each in source.consumers.names():
            consumer = source.consumers.get(each)
            target.consumers.create(each, consumer.config, consumer.created_ns).update(consumer.state())
        return target
    finally:
        scratch.close()


def _limited(pieces: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    taken = 0
    for piece in pieces:
        taken += len(piece)
        if taken > bytes_max:
            raise BadInput(f"the snapshot holds more than {bytes_max} bytes")
        yield piece


class _Builder:
    """Fills one directory from the plain bytes of a snapshot."""

    def __init__(
        self, disk: Disk, directory: str, config: StreamConfig | None, clock: Callable[[], int]
    ) -> None:
        self._disk, self._dir, self._config, self._clock = disk, directory, config, clock
        self._stream = directory.rsplit("/", 1)[-1]

    def build(self, pieces: Iterator[bytes]) -> None:
        head = b""
        while len(head) < len(archive.MAGIC):
            piece = next(pieces, None)
            if piece is None:
                break
            head += piece
        whole = chain([head], pieces)
        if head.startswith(archive.MAGIC):
            self._from_archive(whole)
        else:
            self._from_tar(whole)

    # NATSARC1

    def _from_archive(self, pieces: Iterable[bytes]) -> None:
        if self._config is None:
            raise BadInput("a snapshot in archive form holds no configuration: give one")
        write_meta(self._disk, self._dir, self._stream, encode_stream_meta(self._config, self._clock()))
        store, state = self._open(), LogState(0, 0, 0, 0)
        try:
            for item in archive.read_archive(pieces):
                if not isinstance(item, Document):
                    store.append(item, keep_positions=True)
                elif item.kind == "state":
                    state = decode_log_state(item.data)
                else:
                    consumer_config, where = decode_snapshot_consumer(item.name, item.data)
                    store.consumers.create(item.name, consumer_config, self._clock()).update(where)
            self._pin(store, state)
        finally:
            store.stop()

    def _pin(self, store: FileStreamStore, state: LogState) -> None:
        """What lies behind the last message: sequences that were used up, and the time of the last one."""
        last = store.log.last_seq
        store.log.raise_last(state.last_seq, state.last_time_ns or 0)
        if state.last_seq > last:
            upkeep.roll(store)
            store.log.write_tombstones([(state.last_seq, state.last_time_ns or 0)])

    # tar

    def _from_tar(self, pieces: Iterable[bytes]) -> None:
        names = set[str]()
        for name, data in archive.read_tar(pieces):
            if _SEALED.fullmatch(name):
                raise Damaged(
                    "snapshot", 0, name, "files without encryption", "take the snapshot from the server"
                )
            if not _WANTED.fullmatch(name):
                continue
            if name in names:
                raise Damaged("snapshot", 0, f"{name} twice", "each file once", "take the snapshot again")
            names.add(name)
            if name.startswith("obs/"):
                check_name("consumer", name.split("/")[1])
            path = f"{self._dir}/{name}"
            if self._disk.entry(path.rsplit("/", 1)[0]) is None:
                make_dirs(self._disk, path.rsplit("/", 1)[0])
            file = self._disk.open(path, "create_new")
            file.write_at(0, data)
            file.sync_data()
            self._disk.sync_dir(path.rsplit("/", 1)[0])
        if not {"meta.inf", "meta.sum"} <= names:
            raise Damaged(
                "snapshot", 0, "no meta.inf and meta.sum", "the files of a stream", "take the snapshot again"
            )
        self._take_config()
        store = self._open()
        try:
            bad = [finding for finding in store.damage() if finding.kind in _UNSOUND]
            if bad:
                raise Damaged(
                    f"snapshot: {bad[0].file.removeprefix(self._dir + '/')}",
                    bad[0].offset,
                    bad[0].detail,
                    "sound messages",
                    "take the snapshot again",
                )
        finally:
            store.stop()

    def _take_config(self) -> None:
        config, created_ns = decode_stream_meta(
            self._disk.read(f"{self._dir}/{META_FILE}"), "snapshot: meta.inf"
        )
        if config.name != self._stream:
            raise BadInput(
                f"the snapshot is that of {config.name!r}; in tar form it cannot become {self._stream!r}, "
                "because the name is in the hashes of its records"
            )
        wanted = self._config if self._config is not None else config.filled()
        if wanted != config:
            write_meta(self._disk, self._dir, self._stream, encode_stream_meta(wanted, created_ns))

    def _open(self) -> FileStreamStore:
        """The directory as a store without limits: nothing is refused or evicted while it is filled."""
        opened = open_for_writing(self._disk, self._dir)
        free = msgspec.structs.replace(
            opened.config,
            max_msgs=UNLIMITED,
            max_bytes=UNLIMITED,
            max_age=0,
            max_msgs_per_subject=UNLIMITED,
            discard="old",
            sealed=False,
        )
        opened = replace(opened, config=free)
        return FileStreamStore(self._disk, self._dir, opened, read_only=False, durability="interval")
