"""`ROOM`: Kafka's log directories, as the commands and Spark see them."""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import HeadraceError
from headrace.layouts.kafka import checkpoints, inspector
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.names import has_segments, is_log_name, partition_dirs
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.room import ClearRoom, Options, Progress, Room, VolumeView


class KafkaRoom(ClearRoom):
    """A log directory, or one partition's directory."""

    layout: ClassVar[str] = "kafka"
    product: ClassVar[str] = "Apache Kafka"
    options: ClassVar[type[Options]] = KafkaOptions
    volume = KafkaVolume

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
        """Names and sizes; with a survey of each segment; or after every message was decoded and every index compared."""
        return inspector.inspect(
            path, log=log, disk=disk, progress=progress, quick=quick, deep=full, threads=threads
        )


ROOM: Room = KafkaRoom()
