"""This layout as the commands see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import BadInput, NotFound
from headrace.layouts.base import Durability, Volume
from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.config_file import ServerConfig, from_server_config
from headrace.layouts.nats_streaming.inspector import Look, look
from headrace.layouts.nats_streaming.names import looks_like_streaming
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.layouts.places import disk_given
from headrace.layouts.room import Options, Progress, Room, VolumeView


class StreamingRoom(Room):
    """NATS Streaming (STAN)."""

    layout = "nats_streaming"
    product = "NATS Streaming"
    options = StreamingOptions

    def recognises(self, disk: Disk, path: str) -> bool:
        """Its two files, or channels that lost them."""
        return looks_like_streaming(disk, path)

    def open(
        self,
        path: str,
        mode: str = "r",
        *,
        create: bool = False,
        durability: Durability = "sync",
        options: Options | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        clock: Callable[[], int] | None = None,
        maintenance: bool = True,
    ) -> StreamingVolume:
        """Open it; "rw" stops at the first bad record unless an option says otherwise (see `recovery.py`)."""
        if options is not None and not isinstance(options, StreamingOptions):
            raise BadInput(
                f"options of {type(options).__name__}; a NATS Streaming store takes StreamingOptions"
            )
        return StreamingVolume(
            path,
            mode=mode,
            create=create,
            durability=durability,
            options=options,
            disk=disk,
            key=key,
            clock=clock or time.time_ns,
            maintenance=maintenance,
        )

    def inspect(
        self,
        path: str,
        *,
        log: str | None = None,
        quick: bool = False,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
        options: StreamingOptions | None = None,
    ) -> VolumeView:
        """What is in it. `quick`: names and sizes only."""
        return look(self._ask(path, disk, key, progress, options), log, quick=quick)

    def verify(
        self,
        path: str,
        *,
        log: str | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
        threads: int = 1,
        options: StreamingOptions | None = None,
    ) -> VolumeView:
        """The same after every byte was read and index and data were compared."""
        return look(self._ask(path, disk, key, progress, options), log, full=True, threads=threads)

    def carry_over(self, source: Volume, target: Volume, log: str) -> int:
        """The channel's subscriptions with their places and what is pending, and the clients they belong to."""
        assert isinstance(source, StreamingVolume) and isinstance(target, StreamingVolume)
        for client in source.clients.all():
            if client.id not in target.clients:
                target.clients.add(client)
        subscriptions = target.open(log).subscriptions
        count = subscriptions.take_from(source.open(log).subscriptions)
        subscriptions.commit()
        target.clients.commit()
        return count

    def read_config(self, given: Mapping[str, Any]) -> ServerConfig:
        """Directory and options from the server's own configuration file, read into plain values."""
        return from_server_config(given)

    def for_copies(self) -> StreamingOptions:
        """As many channels and subscriptions as there are."""
        return StreamingOptions(max_channels=0, max_subs=0)

    def _ask(
        self,
        path: str,
        disk: Disk | None,
        key: str | None,
        progress: Progress | None,
        options: StreamingOptions | None,
    ) -> Look:
        disk = disk_given(path, disk)
        on = disk or Disk.real()
        if not looks_like_streaming(on, path):
            raise NotFound(f"{path}: no NATS Streaming store there")
        return Look(on, path.rstrip("/") or "/", disk is None, key, options or StreamingOptions(), progress)


ROOM = StreamingRoom()
