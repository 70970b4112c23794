"""`LAYOUT`: Kafka's log directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from headrace.errors import HeadraceError
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.kafka import checkpoints, inspector, unread
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.names import LOG_NAMES, has_segments, is_log_name, partition_dirs
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.layout import Layout, LayoutOptions, Look
from headrace.layouts.report import Report
from headrace.layouts.unread import Unread


class KafkaLayout(Layout):
    """A log directory, or one partition's directory."""

    name: ClassVar[str] = "kafka"
    product: ClassVar[str] = "Apache Kafka"
    label: ClassVar[str] = "Kafka"
    options: ClassVar[type[LayoutOptions]] = KafkaOptions
    volume = KafkaVolume
    columns: ClassVar[Mapping[str, str]] = {
        "topic": "string",
        "partition": "int32",
        "leader_epoch": "int32",
        "timestamp_type": "string",
    }
    log_names = LOG_NAMES
    capabilities = Capabilities(
        layout="kafka",
        codec="kafka",
        origin=0,
        tick_ns=1_000_000,
        keys=True,
        nulls=True,
        position="offset",
        log="partition",
    )

    def recognise(self, path: str, disk: Disk) -> bool:
        """Partition directories with segments, or the broker's own files."""
        try:
            entry = disk.entry(path)
            if entry is None or not entry.is_dir:
                return False
            if is_log_name(path.rstrip("/").rpartition("/")[2]) and has_segments(disk, path):
                return True
            names = {name for name, is_dir, _ in disk.list(path) if not is_dir}
            if names & {checkpoints.RECOVERY_POINT, checkpoints.CLEAN}:
                return True
            return any(has_segments(disk, folder) for folder in partition_dirs(disk, path).values())
        except HeadraceError:
            return False

    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """Remote (tiered) logs, partitions that were set aside, unknown folders."""
        return unread.unread(disk, path.rstrip("/") or "/")

    def source_options(self) -> KafkaOptions:
        """What was not committed is no message."""
        return KafkaOptions(isolation_level="read_committed")

    def look(self, request: Look) -> Report:
        """Names and sizes; with a survey of each segment; or after every message was decoded and every index compared."""
        return inspector.inspect(
            request.path,
            log=request.log,
            disk=request.disk,
            progress=request.progress,
            quick=request.quick,
            deep=request.full,
            threads=request.threads if request.full else 1,
        )


LAYOUT = KafkaLayout()
