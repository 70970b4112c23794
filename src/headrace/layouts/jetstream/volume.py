"""`JetStreamVolume`: a store directory of nats-server, opened for reading or for writing.

    <path>/headrace.lock                            who writes (beside `jetstream`, where no server looks)
    <path>/jetstream/<account>/streams/<STREAM>/    the streams; "$G" is the account of servers without accounts

`path` may also name the `jetstream` directory itself. A stream of another account than "$G" is called
`<account>/<STREAM>` here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.errors import (
    AlreadyExists,
    BadInput,
    Damaged,
    HeadraceError,
    NotFound,
    ReadOnly,
    StoreClosed,
    UnknownFormat,
)
from headrace.layouts.base import Damage, Durability, Ticket, Volume
from headrace.layouts.jetstream import foreign, upkeep
from headrace.layouts.jetstream._kernels import Disk, DiskLock
from headrace.layouts.jetstream.config import StreamConfig
from headrace.layouts.jetstream.config_json import encode_stream_meta
from headrace.layouts.jetstream.meta import write_meta
from headrace.layouts.jetstream.names import check_name
from headrace.layouts.jetstream.opening import open_for_reading, open_for_writing
from headrace.layouts.jetstream.paths import MSGS, SIDE, make_dirs
from headrace.layouts.jetstream.sealed import StoreKey
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.places import disk_given, is_remote
from headrace.layouts.volume_parts import SoonCommitter, check_words, highest_marks

ROOT = "jetstream"
DEFAULT_ACCOUNT = "$G"
LOCK = "headrace.lock"
TICK_S = 0.25
LOG = logging.getLogger("headrace")


class JetStreamVolume(Volume):
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
        check_words(mode, durability)
        disk = disk_given(path, disk)
        self._disk = disk or Disk.real()
        self.path = _base(self._disk, path)
        self.root = f"{self.path}/{ROOT}"
        self.durability: Durability = durability
        self.read_only, self._clock = mode == "r", clock
        self._sync_every_ns, self._key, self._block_bytes = int(sync_interval_s * 1e9), key, block_bytes
        self._cache_bytes = cache_bytes
        self._stores: dict[str, FileStreamStore] = {}
        self._mutex, self._closed = threading.RLock(), False
        self._lock: DiskLock | None = None
        self._committer = SoonCommitter()
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None
        self.notices: list[str] = []
        if not create and self._disk.entry(self.root) is None:
            raise NotFound(
                f"{self.path}: no JetStream store there (no {ROOT!r} directory); create one with create=True"
            )
        if not self.read_only:
            self._take(create, disk is None)
            if maintenance:
                self._keeper = threading.Thread(target=self._keep, name="headrace-upkeep", daemon=True)
                self._keeper.start()

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
        return sorted(self._stream_dirs())

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

    def open(self, name: str, first_look: Callable[[FileStreamStore], None] | None = None) -> FileStreamStore:
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

    def _open(
        self,
        name: str,
        directory: str,
        *,
        fresh: bool = False,
        first_look: Callable[[FileStreamStore], None] | None = None,
    ) -> FileStreamStore:
        """A stream that was just made (`fresh`) has nothing to index, and upkeep makes its reserve."""
        options: dict[str, Any] = {} if self._cache_bytes is None else {"cache_bytes": self._cache_bytes}
        if self.read_only:
            account = name.partition("/")[0] if "/" in name else DEFAULT_ACCOUNT
            secret = StoreKey(self._key, account) if self._key is not None else None
            opened = open_for_reading(self._disk, directory, secret, **options)
        else:
            options["reserve"] = not fresh or self._keeper is None
            opened = open_for_writing(self._disk, directory, block_bytes=self._block_bytes, **options)
        store = FileStreamStore(
            self._disk,
            directory,
            opened,
            read_only=self.read_only,
            durability=self.durability,
            clock=self._clock,
            block_bytes=self._block_bytes,
            sync_every_ns=self._sync_every_ns,
        )
        for damage in store.damage():
            LOG.warning("%s: %s at byte %d: %s", damage.file, damage.kind, damage.offset, damage.detail)
        if first_look is not None:
            first_look(store)
        if not self.read_only:
            store.publish()
            upkeep.apply_limits(store)
            if not opened.clean and not fresh:
                store.write_index()
        return store

    def create(self, name: str, **options: Any) -> FileStreamStore:
        """A new stream with the options of StreamConfig, or the existing one if its configuration is equal."""
        with self._mutex:
            self._check_open()
            if self.read_only:
                raise ReadOnly(f"{self.path} was opened for reading; open it with mode='rw'")
            config = _config(name, options)
            if config.storage == "memory":
                return self._create_in_memory(name, config)
            directory = self._directory(name)
            if self._disk.entry(f"{directory}/meta.inf") is not None:
                store = self.open(name)
                if store.config != config:
                    raise AlreadyExists(f"stream {name} exists with a different configuration")
                return store
            self._make(directory, config)
            self._stores[name] = self._open(name, directory, fresh=True)
            if config.first_seq > 1:
                self._stores[name].compact(config.first_seq)
            return self._stores[name]

    def _make(self, directory: str, config: StreamConfig) -> None:
        """The files of a new stream; each directory is synced once, when all its names are there."""
        made = [*self._disk.create_dir_all(f"{directory}/{MSGS}")]
        self._disk.create_dir_all(f"{directory}/{SIDE}")
        write_meta(self._disk, directory, config.name, encode_stream_meta(config, self._clock()))
        for each in reversed(made):
            if not each.startswith(f"{directory}/"):
                self._disk.sync_dir(each.rsplit("/", 1)[0] or "/")

    def _create_in_memory(self, name: str, config: StreamConfig) -> FileStreamStore:
        """Memory storage is the same store on a disk that is memory: gone when the volume closes."""
        if name in self._stores:
            if self._stores[name].config != config:
                raise AlreadyExists(f"stream {name} exists with a different configuration")
            return self._stores[name]
        disk, directory = Disk.memory(), f"/{config.name}"
        make_dirs(disk, f"{directory}/{MSGS}")
        write_meta(disk, directory, config.name, encode_stream_meta(config, self._clock()))
        opened = open_for_writing(disk, directory, block_bytes=self._block_bytes)
        self._stores[name] = FileStreamStore(
            disk, directory, opened, read_only=False, storage="memory", clock=self._clock
        )
        return self._stores[name]

    def delete(self, name: str) -> None:
        """Remove a stream with all its files."""
        with self._mutex:
            self.open(name).delete()
            del self._stores[name]

    def restore(
        self, name: str, chunks: Iterable[bytes], config: StreamConfig | None = None, **options: Any
    ) -> FileStreamStore:
        """A new stream from a snapshot of either form; see `restore.restore`."""
        from headrace.layouts.jetstream.restore import restore

        return restore(self, name, chunks, config, **options)

    # For those who work on whole streams

    @property
    def disk(self) -> Disk:
        """Where the files are."""
        return self._disk

    @property
    def clock(self) -> Callable[[], int]:
        """The wall clock in ns that streams are stamped with."""
        return self._clock

    @contextmanager
    def changing(self) -> Generator[None]:
        """Nobody else makes, opens or removes a stream meanwhile; ReadOnly if nobody may."""
        with self._mutex:
            self._check_open()
            if self.read_only:
                raise ReadOnly(f"{self.path} was opened for reading; open it with mode='rw'")
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

    # Durability

    def commit(self, tickets: Iterable[Ticket]) -> None:
        """Return when all tickets are acknowledged: on disk in mode `sync`, written in mode `interval`."""
        for name, mark in highest_marks(tickets).items():
            self.open(name).acknowledge(mark)

    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        """The same off the caller's thread; tickets handed in while a sync runs share the next one."""
        with self._mutex:
            self._check_open()
            return self._committer.submit(self.commit, tickets)

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

    def _keep(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._mutex:
                stores = list(self._stores.values())
            for store in stores:
                try:
                    store.tick()
                except Exception as error:  # the next tick tries again; commits report it to their callers
                    if str(error) != str(self.last_upkeep_error):
                        LOG.warning("upkeep of stream %s: %s", store.name, error)
                    self.last_upkeep_error = error

    last_upkeep_error: Exception | None = None

    def close(self) -> None:
        """Clean stop of every stream, then the lock goes."""
        with self._mutex:
            if self._closed:
                return
            self._stop.set()
        if self._keeper is not None:
            self._keeper.join()
        self._committer.close()
        with self._mutex:
            self._closed = True
            problems: list[HeadraceError] = []
            try:
                for store in self._stores.values():
                    try:
                        store.stop()
                    except HeadraceError as problem:  # the others are to be stopped all the same
                        problems.append(problem)
            finally:
                if self._lock is not None:
                    self._lock.release()
            if problems:
                raise problems[0]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed; open it again")


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


def unknown(path: str) -> UnknownFormat:
    """The error for a directory that is none."""
    return UnknownFormat(
        path,
        0,
        "no `jetstream` directory",
        "a nats-server store directory",
        "give the directory that holds `jetstream`",
    )
