"""The room's front door: what the commands and Spark need to know of RabbitMQ directories."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.errors import BadInput
from headrace.layouts.rabbitmq import inspector
from headrace.layouts.rabbitmq._kernels import Disk
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume, vhost_paths
from headrace.layouts.room import Options, Progress, Room, VolumeView


class RabbitRoom(Room):
    """RabbitMQ's classic queues, version 1."""

    layout = "rabbitmq"
    product = inspector.PRODUCT
    options = RabbitOptions

    def recognises(self, disk: Disk, path: str) -> bool:
        """A vhost's directory, or one that holds some."""
        return vhost_paths(disk, path.rstrip("/") or "/") is not None

    def open(
        self,
        path: str,
        mode: str = "r",
        *,
        create: bool = False,
        durability: str = "sync",
        options: Options | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> RabbitVolume:
        """Open it; "rw" recovers what a crash left, and takes the directory over from RabbitMQ."""
        if key is not None:
            raise BadInput("RabbitMQ's files are not encrypted: no key is needed")
        if options is not None and not isinstance(options, RabbitOptions):
            raise BadInput(f"options of another layout: {type(options).__name__}")
        if durability not in ("sync", "interval"):
            raise BadInput(f"durability {durability!r}; known are 'sync' and 'interval'")
        return RabbitVolume(
            path,
            mode=mode,
            create=create,
            durability="sync" if durability == "sync" else "interval",
            options=options,
            disk=disk,
            clock=clock or time.time_ns,
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
    ) -> VolumeView:
        """Queues, segments, store files."""
        return inspector.view(path, log=log, quick=quick, thorough=False, disk=disk, progress=progress)

    def verify(
        self,
        path: str,
        *,
        log: str | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
        threads: int = 1,
    ) -> VolumeView:
        """The same after every byte was read and every reference followed."""
        return inspector.view(path, log=log, quick=False, thorough=True, disk=disk, progress=progress)


ROOM: Room = RabbitRoom()
