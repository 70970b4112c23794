"""`JetStreamVolume`: a store directory of nats-server, opened for reading or for writing.

    <path>/headrace.lock                            who writes (beside `jetstream`, where no server looks)
    <path>/jetstream/<account>/streams/<STREAM>/    the streams; "$G" is the account of servers without accounts

`path` may also name the `jetstream` directory itself. A stream of another account than "$G" is called
`<account>/<STREAM>` here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from headrace.config.meta_json import encode_stream_meta
from headrace.config.model import StreamConfig
from headrace.config.names import check_name
from headrace.errors import (
    AlreadyExists,
    BadInput,
    Damaged,
    NotFound,
)
from headrace.layouts.base import Damage, Durability
from headrace.layouts.directories import make_dirs
from headrace.layouts.directory_volume import DirectoryVolume
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.meta import meta_files, write_meta
from headrace.layouts.jetstream.paths import MSGS, SIDE
from headrace.layouts.jetstream.recovery import foreign
from headrace.layouts.jetstream.recovery.opening import (
    OpenedStream,
    open_for_reading,
    open_for_writing,
    open_new,
)
from headrace.layouts.jetstream.sealed import StoreKey
from headrace.layouts.jetstream.snapshots.spool import FileSpool, clear_spools
from headrace.layouts.jetstream.store import upkeep
from headrace.layouts.jetstream.store.removal import remove_directory
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.places import disk_given, is_remote
from headrace.layouts.stream_store import FirstLook, StreamVolume
from headrace.layouts.volume_parts import SYNCS_AT_ONCE, side_by_side

ROOT = "jetstream"
DEFAULT_ACCOUNT = "$G"
LOCK = "headrace.lock"
TICK_S = 0.25
LOG = logging.getLogger("headrace")


class JetStreamVolume(DirectoryVolume, StreamVolume):
    """An opened store directory. Use `headrace.open`."""

    layout = "jetstream"

    def __init__(
        self,
        path: str,
        *,
        mode: str = "r",
        create: bool = False,
        durability: Durability = "sync",
        sync_interval_s: float = 120.0,
        key: str | None = None,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.time_ns,
        block_bytes: int | None = None,
        cache_bytes: int | None = None,
        maintenance: bool = True,
    ) -> None:
        super().__init__(mode, durability, clock)
        disk = disk_given(path, disk)
        self.path = _base(disk or Disk.real(), path)
        self._disk = disk or Disk.real(self.path)
        self.root = f"{self.path}/{ROOT}"
        self._sync_every_ns, self._key, self._block_bytes = int(sync_interval_s * 1e9), key, block_bytes
        self._cache_bytes = cache_bytes
        self._stores: dict[str, FileStreamStore] = {}
        self._changing: set[str] = set()
        self.notices: list[str] = []
        if not create and self._disk.entry(self.root) is None:
            raise NotFound(
                f"{self.path}: no JetStream store there (no {ROOT!r} directory); create one with create=True"
            )
        if not self.read_only:
            self._take(create, disk is None)
            if maintenance:
                self._start_upkeep()

    def _take(self, create: bool, real: bool) -> None:
        """Lock, look whether a server has it open, say what writing will change."""
        if create:
            make_dirs(self._disk, f"{self.root}/{DEFAULT_ACCOUNT}/streams")
        self._lock = self._disk.lock(f"{self.path}/{LOCK}", "headrace")
        try:
            if real:
                foreign.refuse_if_served(self.root)
            self.notices = foreign.takeover_notices(self._disk, self._stream_dirs())
            warning = foreign.file_system_notice(self.path) if real else None
            self.notices += [warning] if warning else []
            for notice in self.notices:
                LOG.warning("%s", notice)
        except BaseException:
            self._lock.release()
            raise

    # Logs

    def logs(self) -> list[str]:
        """The names of all streams, sorted."""
        self._check_open()
        return sorted(self._stream_dirs())

    def __getitem__(self, name: str) -> FileStreamStore:
        return self.open(name)

    def __iter__(self) -> Iterator[FileStreamStore]:
        return (self.open(name) for name in self.logs())

    def _stream_dirs(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self._disk.entry(self.root) is None:
            return found
        for account, is_dir, _ in self._disk.list(self.root):
            streams = f"{self.root}/{account}/streams"
            if not is_dir or self._disk.entry(streams) is None:
                continue
            for stream, is_stream, _ in self._disk.list(streams):
                if is_stream and not stream.startswith("."):
                    name = stream if account == DEFAULT_ACCOUNT else f"{account}/{stream}"
                    found[name] = f"{streams}/{stream}"
        return found

    def is_unfinished(self, name: str) -> bool:
        """Whether a crash came while the stream was made: no metadata and no messages. `create` makes it anew."""
        directory = self._directory(name)
        if self._disk.entry(f"{directory}/meta.inf") is not None:
            return False
        msgs = f"{directory}/{MSGS}"
        return self._disk.entry(msgs) is None or not any(size for _, _, size in self._disk.list(msgs))

    def open(self, name: str, first_look: FirstLook | None = None) -> FileStreamStore:
        """One stream; opened once, shared afterwards.

        `first_look` gets it before limits are applied: files that these empty are still there then.
        """
        with self._mutex:
            self._check_open()
            if name not in self._stores:
                directory = self._directory(name)
                if self._disk.entry(directory) is None:
                    known = ", ".join(self.logs()) or "none"
                    raise NotFound(f"{self.path}: no stream {name!r}; there are: {known}")
                self._stores[name] = self._open(name, directory, first_look=first_look)
            return self._stores[name]

    def open_ahead(self, names: Sequence[str], first_look: FirstLook | None = None) -> None:
        """Open many side by side. One that fails is left out: `open` says why."""

        def open_one(name: str) -> None:
            with suppress(Exception), self._changes(name):
                store = self._open(name, self._directory(name), first_look=first_look)
                with self._mutex:
                    self._check_open()
                    self._stores[name] = store

        if len(names) > SYNCS_AT_ONCE:
            whole = (name for name in names if name not in self._stores and not self.is_unfinished(name))
            side_by_side([partial(open_one, name) for name in whole])

    def _open(
        self,
        name: str,
        directory: str,
        *,
        fresh: bool = False,
        first_look: FirstLook | None = None,
    ) -> FileStreamStore:
        """A stream that was just made (`fresh`) has nothing to index, and upkeep makes its reserve."""
        options: dict[str, Any] = {} if self._cache_bytes is None else {"cache_bytes": self._cache_bytes}
        if self.read_only:
            account = name.partition("/")[0] if "/" in name else DEFAULT_ACCOUNT
            secret = StoreKey(self._key, account) if self._key is not None else None
            opened = open_for_reading(self._disk, directory, secret, clock=self.clock, **options)
        else:
            options["reserve"] = not fresh or self._keeper is None
            opened = open_for_writing(self._disk, directory, block_bytes=self._block_bytes, **options)
        store = self._store(directory, opened)
        for damage in store.damage():
            LOG.warning("%s: %s at byte %d: %s", damage.file, damage.kind, damage.offset, damage.detail)
        if first_look is not None:
            first_look(store)
        if not self.read_only:
            store.log.publish_mark()
            upkeep.apply_limits(store)
            if not opened.clean and not fresh:
                store.write_index()
        return store

    def _store(self, directory: str, opened: OpenedStream) -> FileStreamStore:
        return FileStreamStore(
            self._disk,
            directory,
            opened,
            read_only=self.read_only,
            durability=self.durability,
            clock=self.clock,
            block_bytes=self._block_bytes,
            sync_every_ns=self._sync_every_ns,
        )

    def create(self, name: str, **options: Any) -> FileStreamStore:
        """A new stream with the options of StreamConfig, or the existing one if its configuration is equal."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            config = _config(name, options)
            if config.storage == "memory":
                return self._create_in_memory(name, config)
            directory = self._directory(name)
            if self._disk.entry(f"{directory}/meta.inf") is not None and name not in self._changing:
                store = self.open(name)
                if store.config != config:
                    raise AlreadyExists(f"stream {name} exists with a different configuration")
                return store
        with self._changes(name):
            # Others make streams meanwhile: the syncs of all of them are the file system's group commit.
            store = self._make(name, directory, config)
            if config.first_seq > 1:
                store.compact(config.first_seq)
            with self._mutex:
                self._check_open()
                self._stores[name] = store
        return store

    @contextmanager
    def _changes(self, name: str) -> Generator[None]:
        """One thread at a time makes or removes a stream of that name."""
        with self._mutex:
            if name in self._changing:
                raise AlreadyExists(f"stream {name} is being made or removed by somebody else")
            self._changing.add(name)
        try:
            yield
        finally:
            with self._mutex:
                self._changing.discard(name)

    def _make(self, name: str, directory: str, config: StreamConfig) -> FileStreamStore:
        """The files of a new stream; each directory is synced once, when all its names are there."""
        made = self._disk.create_dir_all(f"{directory}/{MSGS}")
        self._disk.create_dir_all(f"{directory}/{SIDE}")
        created_ns = self.clock()
        meta = meta_files(config.name, encode_stream_meta(config, created_ns))
        self._disk.create_files(directory, [*meta.items()])
        for each in reversed(made):
            if not each.startswith(f"{directory}/"):
                self._disk.sync_dir(each.rsplit("/", 1)[0] or "/")
        if directory not in made:  # something was there, and it may hold evidence of messages
            return self._open(name, directory, fresh=True)
        options = {} if self._cache_bytes is None else {"cache_bytes": self._cache_bytes}
        opened = open_new(self._disk, directory, config, created_ns, block_bytes=self._block_bytes, **options)
        store = self._store(directory, opened)
        if self._keeper is None:
            store.sidecar.keep_reserve()
        store.log.publish_mark()
        return store

    def _create_in_memory(self, name: str, config: StreamConfig) -> FileStreamStore:
        """Memory storage is the same store on a disk that is memory: gone when the volume closes."""
        if name in self._stores:
            if self._stores[name].config != config:
                raise AlreadyExists(f"stream {name} exists with a different configuration")
            return self._stores[name]
        disk, directory = Disk.memory(), f"/{config.name}"
        make_dirs(disk, f"{directory}/{MSGS}")
        write_meta(disk, directory, config.name, encode_stream_meta(config, self.clock()))
        opened = open_for_writing(disk, directory, block_bytes=self._block_bytes)
        self._stores[name] = FileStreamStore(
            disk, directory, opened, read_only=False, storage="memory", clock=self.clock
        )
        return self._stores[name]

    def delete(self, name: str) -> None:
        """Remove a stream with all its files."""
        store = self.open(name)
        with self._changes(name):
            with self._mutex:
                del self._stores[name]
            store.delete()

    def delete_unopened(self, name: str) -> None:
        """Remove a stream that cannot be opened: asked for by name, never done by itself."""
        with self.changing():
            remove_directory(self._disk, self._directory(name))

    def restore(
        self,
        name: str,
        chunks: Iterable[bytes],
        config: StreamConfig | None = None,
        *,
        bytes_max: int | None = None,
        first_look: FirstLook | None = None,
    ) -> FileStreamStore:
        """A new stream from a snapshot of either form; see `restore.restore`."""
        from headrace.layouts.jetstream.snapshots.restore import RESTORE_BYTES_MAX, restore, restore_in_memory

        if config is not None and config.storage == "memory":
            return restore_in_memory(self, name, chunks, config)
        limit = RESTORE_BYTES_MAX if bytes_max is None else bytes_max
        return restore(self, name, chunks, config, bytes_max=limit, first_look=first_look)

    def new_spool(self, id: str) -> FileSpool:
        """A place for a snapshot that arrives: a file beside the streams."""
        return FileSpool(self._disk, self.path, id)

    def clear_spools(self) -> None:
        """Remove what was received before a crash."""
        clear_spools(self._disk, self.path)

    def log_name(self, account: str, stream: str) -> str:
        """A stream of another account than "$G" is called `<account>/<STREAM>`."""
        return stream if account == DEFAULT_ACCOUNT else f"{account}/{stream}"

    def account_of(self, log: str) -> str:
        """Whose stream a log is."""
        return log.rpartition("/")[0] or DEFAULT_ACCOUNT

    # For those who work on whole streams

    @property
    def disk(self) -> Disk:
        """Where the files are."""
        return self._disk

    @contextmanager
    def changing(self) -> Generator[None]:
        """Nobody else makes, opens or removes a stream meanwhile; ReadOnly if nobody may."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            yield

    def directory_of(self, name: str) -> str:
        """Where a stream of that name lies or would lie; BadInput for a name that cannot be one."""
        return self._directory(name)

    def _directory(self, name: str) -> str:
        account, _, stream = name.rpartition("/")
        account = account or DEFAULT_ACCOUNT
        check_name("stream", stream)
        if account in (".", "..") or "/" in account:
            raise BadInput(f"account name {account!r} is not a directory name")
        return f"{self.root}/{account}/streams/{stream}"

    # Life

    def damage(self) -> list[Damage]:
        """Findings in every stream that is open, and streams that cannot be opened."""
        found: list[Damage] = []
        for name in self.logs():
            try:
                found.extend(self.open(name).damage())
            except Damaged as problem:
                found.append(Damage(problem.file, problem.offset, 0, "metadata", str(problem)))
        return found

    @property
    def _upkeep_every_s(self) -> float:
        return TICK_S

    def _upkeep(self) -> None:
        with self._mutex:
            stores = list(self._stores.values())
        for store in stores:
            self._attempt(store.tick, f"stream {store.name}")

    def _stop_logs(self) -> None:
        for problem in side_by_side([store.stop for store in self._stores.values()]):
            raise problem


def _base(disk: Disk, path: str) -> str:
    """The directory that holds `jetstream`. It may be called so itself; an account may as well."""
    # A circle of links stays as it is: opening it says what is wrong.
    base = path.rstrip("/") if is_remote(path) else os.path.realpath(path)
    if base.rsplit("/", 1)[-1] == ROOT:
        inner = f"{base}/{ROOT}"
        if disk.entry(inner) is None or disk.entry(f"{inner}/streams") is not None:
            base = base.rsplit("/", 1)[0]
    return base


def _config(name: str, options: dict[str, Any]) -> StreamConfig:
    given = options.pop("config", None)
    if given is not None and options:
        raise BadInput("give a config or single options, not both")
    if given is None:
        known = set(StreamConfig.__struct_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise BadInput(
                f"no stream option {', '.join(unknown)}; known: {', '.join(sorted(known - {'name'}))}"
            )
        try:
            given = msgspec.convert({"name": name.rpartition("/")[2], **options}, StreamConfig)
        except msgspec.ValidationError as problem:
            raise BadInput(f"stream {name}: {problem}") from problem
    config: StreamConfig = given.filled()
    config.validate()
    return config


def looks_like_jetstream(disk: Disk, path: str) -> bool:
    """Whether a directory is (or holds) a JetStream store."""
    return disk.entry(f"{_base(disk, path)}/{ROOT}") is not None
