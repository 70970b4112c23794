"""The one module of this package that calls the Rust core."""

from __future__ import annotations

from headrace._core import (
    Batch,
    Disk,
    DiskFile,
    DiskLock,
    RocketEncoded,
    RocketIndex,
    RocketIndexHeader,
    RocketReader,
    RocketScan,
    rocketmq_bytes_of,
    rocketmq_crc,
    rocketmq_encode,
    rocketmq_scan,
)

__all__ = [
    "Batch",
    "Disk",
    "DiskFile",
    "DiskLock",
    "RocketEncoded",
    "RocketIndex",
    "RocketIndexHeader",
    "RocketReader",
    "RocketScan",
    "rocketmq_bytes_of",
    "rocketmq_crc",
    "rocketmq_encode",
    "rocketmq_scan",
]
