"""`ROOM`: Kafka's log directories, as the commands and Spark see them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from headrace.errors import BadInput, HeadraceError
from headrace.layouts.base import Durability
from headrace.layouts.kafka import checkpoints, inspector
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.names import has_segments, is_log_name, partition_dirs
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.room import Options, Progress, Room, VolumeView


class KafkaRoom(Room):
    """A log directory, or one partition's directory."""

    layout: ClassVar[str] = "kafka"
    product: ClassVar[str] = "Apache Kafka"
    options: ClassVar[type[Options]] = KafkaOptions

    def recognises(self, disk: Disk, path: str) -> bool:
        """Partition directories with segments, or the broker's own files."""
        try:
            entry = disk.entry(path)
            if entry is None or not entry[0]:
                return False
            if is_log_name(path.rstrip("/").rpartition("/")[2]) and has_segments(disk, path):
                return True
            names = {name for name, is_dir, _ in disk.list(path) if not is_dir}
            if names & {checkpoints.RECOVERY_POINT, checkpoints.CLEAN}:
                return True
            return any(has_segments(disk, folder) for folder in partition_dirs(disk, path).values())
        except HeadraceError:
            return False

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
    ) -> KafkaVolume:
        """Open it; "r" reads tolerantly and writes nothing, "rw" takes both locks and recovers."""
        if key is not None:
            raise BadInput("Kafka's files are not encrypted: no key is needed")
        if options is not None and not isinstance(options, KafkaOptions):
            raise BadInput(f"options of another layout: {type(options).__name__}")
        if durability not in ("sync", "interval"):
            raise BadInput(f"durability {durability!r}; known are 'sync' and 'interval'")
        return KafkaVolume(
            path,
            mode=mode,
            create=create,
            durability=durability,
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
        """What is in it. `quick`: metadata, names and sizes only."""
        return inspector.inspect(path, log=log, disk=disk, progress=progress, quick=quick)

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
        """The same after every message was decoded and every index and reference compared."""
        return inspector.inspect(path, log=log, disk=disk, progress=progress, deep=True, threads=threads)


ROOM: Room = KafkaRoom()
