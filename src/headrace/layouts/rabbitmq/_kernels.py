"""The one module of this package that calls the Rust core."""

from __future__ import annotations

from headrace._core import (
    Batch,
    Disk,
    DiskFile,
    DiskLock,
    RabbitQueue,
    RabbitStore,
    RabbitWrite,
    rabbit_check_journal,
    rabbit_check_segment,
    rabbit_check_store,
    rabbit_rewritten_segment,
    rabbit_stamp,
)

__all__ = [
    "Batch",
    "Disk",
    "DiskFile",
    "DiskLock",
    "RabbitQueue",
    "RabbitStore",
    "RabbitWrite",
    "rabbit_check_journal",
    "rabbit_check_segment",
    "rabbit_check_store",
    "rabbit_rewritten_segment",
    "rabbit_stamp",
]
