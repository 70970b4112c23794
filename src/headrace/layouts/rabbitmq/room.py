"""The room's front door: what the commands and Spark need to know of RabbitMQ directories."""

from __future__ import annotations

from headrace.layouts.rabbitmq import inspector
from headrace.layouts.rabbitmq._kernels import Disk
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume, vhost_paths
from headrace.layouts.room import ClearRoom, Progress, Room, VolumeView


class RabbitRoom(ClearRoom):
    """RabbitMQ's classic queues, version 1."""

    layout = "rabbitmq"
    product = inspector.PRODUCT
    options = RabbitOptions
    volume = RabbitVolume

    def recognises(self, disk: Disk, path: str) -> bool:
        """A vhost's directory, or one that holds some."""
        return vhost_paths(disk, path.rstrip("/") or "/") is not None

    def look(
        self,
        path: str,
        *,
        log: str | None,
        disk: Disk | None,
        progress: Progress | None,
        quick: bool,
        full: bool,
        threads: int,
    ) -> VolumeView:
        """Queues, segments, store files; in full after every byte was read and every reference followed."""
        return inspector.view(path, log=log, quick=quick, thorough=full, disk=disk, progress=progress)


ROOM: Room = RabbitRoom()
