"""`StreamingVolume`: a file store of NATS Streaming, opened for reading or for writing.

    reading   no lock, nothing is written; a channel is opened when it is asked for
    writing   the lock, then in the server's order: the witness of file_truncate_bad_eof, server.dat, clients.dat,
              every channel (file_parallel_recovery at a time); the first record that is not sound stops it

The directory is used as it was given: the archive script gets its name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from headrace.errors import (
    AlreadyExists,
    BadInput,
    Damaged,
    HeadraceError,
    NotFound,
    ReadOnly,
    StoreFull,
)
from headrace.layouts.base import Damage, Durability
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.directories import make_dirs
from headrace.layouts.directory_volume import DirectoryVolume
from headrace.layouts.marks import Marks, MarksBefore
from headrace.layouts.nats_streaming import foreign, upkeep
from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.archive import Archiver, Runner, run_script
from headrace.layouts.nats_streaming.channel import Channel, make_files
from headrace.layouts.nats_streaming.clients import TYPES, Clients
from headrace.layouts.nats_streaming.home import Home
from headrace.layouts.nats_streaming.limits import LimitTable
from headrace.layouts.nats_streaming.marks import ChannelMark, of_root
from headrace.layouts.nats_streaming.names import (
    CLIENTS,
    LOCK,
    SUBS,
    channels,
    check_channel,
    looks_like_streaming,
)
from headrace.layouts.nats_streaming.opening import open_channel
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.protos import ServerInfo
from headrace.layouts.nats_streaming.recovery import ChannelRecovery, take_witness
from headrace.layouts.nats_streaming.seal import key_text
from headrace.layouts.nats_streaming.server_info import find_poly, read_info, recover_info
from headrace.layouts.places import disk_given
from headrace.layouts.volume_parts import check_words, side_by_side

LOG = logging.getLogger("headrace")
TOO_MANY = "too many channels"


class StreamingVolume(DirectoryVolume):
    """An opened store. Use `headrace.open`."""

    layout = "nats_streaming"
    _torn: ChannelMark | None = None
    served_by: int | None = None
    """The process of a real server that has the directory, when it is only read."""

    def __init__(
        self,
        path: str,
        *,
        mode: str = "r",
        create: bool = False,
        durability: Durability = "sync",
        options: StreamingOptions | None = None,
        key: str | None = None,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.time_ns,
        maintenance: bool = True,
        archive_runner: Runner = run_script,
    ) -> None:
        self.options = options or StreamingOptions()
        check_words(mode, durability)
        super().__init__(mode, durability if self.options.file_sync else "interval", clock)
        self.path = path.rstrip("/") or "/"
        disk = disk_given(path, disk)
        self._real = disk is None
        on = disk or Disk.real(path)
        if self.read_only:
            poly = find_poly(on, self.path, self.options.file_crc_poly)
            self.options = msgspec.structs.replace(self.options, file_crc_poly=poly)
        self.home = Home(
            disk=on,
            root=self.path,
            options=self.options,
            limits=LimitTable(self.options),
            files=Descriptors(on, self.options.file_fds_limit, self.durability == "sync"),
            archiver=Archiver(on, self.options.file_slice_archive_script, archive_runner),
            clock=clock,
            durability=self.durability,
            read_only=self.read_only,
            key=key_text(key or self.options.encryption_key),
        )
        self._channels: dict[str, Channel] = {}
        self._auto_synced = time.monotonic()
        self.info: ServerInfo | None = None
        if not create and not looks_like_streaming(on, self.path):
            raise NotFound(f"{self.path}: no NATS Streaming store there; create one with create=True")
        if self.read_only:
            self._look()
            return
        self._take()
        if maintenance:
            self._start_upkeep()

    # Opening

    def _recovery(self) -> ChannelRecovery:
        options = self.options
        truncate = options.file_truncate_bad_eof and not self.read_only
        return ChannelRecovery(
            self.home.disk, self.path, self.home.poly, options.file_crc, not self.read_only, truncate
        )

    def _look(self) -> None:
        how, disk = self._recovery(), self.home.disk
        self.served_by = foreign.server_on(self.path) if self._real else None
        self._live = disk.lock_holder(f"{self.path}/{LOCK}") is not None or self.served_by is not None
        self.home.before = MarksBefore.read(disk, self.path)
        try:
            self.info = read_info(disk, self.path, self.home.poly)
        except Damaged as problem:
            how.note(problem.file, problem.offset, 0, "metadata", str(problem))
        data = how.read_records(f"{self.path}/{CLIENTS}", TYPES, None)
        self.clients = Clients(self.path, data, how, disk=disk, options=self.options)
        self._damage = how.damage

    def _take(self) -> None:
        disk, options = self.home.disk, self.options
        make_dirs(disk, self.path)
        self._lock, self._live = disk.lock(f"{self.path}/{LOCK}", "headrace"), False
        try:
            if self._real:
                foreign.refuse_if_served(self.path)
            self._refuse_node()
            take_witness(disk, self.path, options.file_truncate_bad_eof)
            how, found = self._recovery(), channels(disk, self.path)
            self.info = recover_info(how, options.cluster_id, bool(found))
            self._mark_file, ended = (mark := of_root(disk, self.path)), mark.read()
            data = how.read_records(f"{self.path}/{CLIENTS}", TYPES, ended)
            self.clients = Clients(
                self.path,
                data,
                how,
                disk=disk,
                files=self.home.files,
                options=options,
            )
            self._damage = how.damage
            self._torn = ChannelMark() if ended is not None and ended.durability == "interval" else None
            self.home.before = MarksBefore.read(disk, self.path)
            self._recover(found)
            mark.begin(ChannelMark(records=len(data), durability=self.durability))
            self._publish()
        except BaseException:
            self._lock.release()
            raise

    def _publish(self) -> None:
        """Everything that was found is on disk, and what was lost is noted in the channels."""
        marks = self.home.marks = Marks(self.home.disk, self.path)
        marks.begin()
        for name, channel in self._channels.items():
            marks.publish(name, channel.end_mark())
        self.home.before = MarksBefore()

    def _refuse_node(self) -> None:
        """Messages of a cluster's node are replicated by its Raft log: nobody else may write them."""
        try:
            info = read_info(self.home.disk, self.path, self.home.poly)
        except Damaged:
            return
        if info is not None and info.node_id:
            raise ReadOnly(
                f"{self.path} belongs to node {info.node_id!r} of cluster {info.cluster_id!r}: its messages are the "
                "Raft log's. Open it for reading, or convert it"
            )

    def _recover(self, names: list[str]) -> None:
        """Every channel; the first error stops, as in the real server."""
        with ThreadPoolExecutor(self.options.file_parallel_recovery) as pool:
            made = [pool.submit(self._open, name) for name in names]
            try:
                for name, future in zip(names, made, strict=True):
                    self._channels[name] = future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _open(self, name: str) -> Channel:
        channel = Channel(self.home, name, open_channel(self.home, name, self._torn, live_writer=self._live))
        for damage in channel.damage():
            LOG.warning("%s: %s at byte %d: %s", damage.file, damage.kind, damage.offset, damage.detail)
        if not self.read_only:
            upkeep.apply_limits_on_open(channel)
        return channel

    # Logs

    def logs(self) -> list[str]:
        """The names of all channels, sorted."""
        self._check_open()
        return channels(self.home.disk, self.path)

    def open(self, name: str) -> Channel:
        """One channel; opened once, shared afterwards."""
        with self._mutex:
            self._check_open()
            if name not in self._channels:
                # A foreign directory may be called what no channel can be; it is read all the same.
                if name not in (known := self.logs()):
                    raise NotFound(
                        f"{self.path}: no channel {name!r}; there are: {', '.join(known[:50]) or 'none'}"
                    )
                self._channels[name] = self._open(name)
            return self._channels[name]

    def create(self, name: str, **options: Any) -> Channel:
        """A new channel, or the one that is there. Its limits are the store's, by its name."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            if options:
                raise BadInput(
                    f"no channel option {', '.join(sorted(options))}: limits are given to the store (channels=…)"
                )
            check_channel(name)
            if name in self._channels:
                return self._channels[name]
            for other in self._channels:
                if other.lower() == name.lower():
                    raise AlreadyExists(
                        f'rejecting channel "{name}" because channel "{other}" alreay exists '
                        "(different cases not allowed)"
                    )
            if 0 < self.options.max_channels <= len(self._channels):
                raise StoreFull(TOO_MANY)
            directory = self.home.directory(name)
            if self.home.disk.entry(directory) is None:
                make_files(self.home, directory, [f"{directory}/{SUBS}"])
            self._channels[name] = self._open(name)
            return self._channels[name]

    def delete(self, name: str) -> None:
        """Remove a channel with all its files; a new one of that name begins at sequence 1."""
        with self._mutex:
            channel = self.open(name)
            self._check_writable()
            with channel.lock:
                channel.closed = True
                paths = [path for found in channel.slices for path in (found.data_path, found.index_path)]
                self.home.files.forget(*paths, channel.subscriptions.path)
                if self.home.marks is not None:
                    self.home.marks.retract(name)
                self.home.disk.remove_dir_all(channel.directory)
                self.home.disk.sync_dir(self.path)
                del self._channels[name]

    def heal(self, name: str) -> Channel:
        """After a failed sync: recover the channel anew. What no sync confirmed is written and synced again before it
        counts. The old object is closed; go on with the one returned."""
        with self._mutex:
            old = self.open(name)
            self._check_writable()
            with old.lock:
                with suppress(HeadraceError):
                    old.subscriptions.flush()
                old.closed = True
                paths = [path for found in old.slices for path in (found.data_path, found.index_path)]
                self.home.files.forget(*paths, old.subscriptions.path)
                del self._channels[name]
            self._channels[name] = self._open(name)
            return self._channels[name]

    def opened(self) -> list[Channel]:
        """Channels that are open now."""
        with self._mutex:
            return list(self._channels.values())

    # Life

    def damage(self) -> list[Damage]:
        """Findings of the store and of every channel."""
        found = list(self._damage)
        for name in self.logs():
            try:
                found.extend(self.open(name).damage())
            except Damaged as problem:
                found.append(Damage(problem.file, problem.offset, 0, "metadata", str(problem)))
        return found

    @property
    def is_live(self) -> bool:
        """Whether somebody else was writing when it was opened for reading."""
        return self._live

    def damage_of_root(self) -> list[Damage]:
        """Findings in server.dat and clients.dat."""
        return list(self._damage)

    def tick(self) -> None:
        """One round of upkeep: age, inactivity, auto_sync, idle files. Called by a thread, or by a test."""
        upkeep.tick(self)

    @property
    def _upkeep_every_s(self) -> float:
        return upkeep.TICK_S

    def _upkeep(self) -> None:
        self.tick()
        every = self.options.file_auto_sync / 1e9
        if every > 0 and time.monotonic() - self._auto_synced >= every:
            self._auto_synced = time.monotonic()
            upkeep.sync_all(self)

    def _stop_logs(self) -> None:
        """And running archive scripts."""
        problems = side_by_side([channel.close for channel in self._channels.values()])
        self.home.archiver.wait()
        if self._lock is not None:
            try:
                self.clients.commit()
                self._mark_file.end()
            except HeadraceError as problem:
                problems.append(problem)
        self.home.files.close()
        if problems:
            raise problems[0]
