"""The one module of this package that calls the Rust core."""

from __future__ import annotations

from headrace._core import (
    Batch,
    Disk,
    DiskFile,
    DiskLock,
    StanEntry,
    StanIndexSummary,
    StanSubs,
    stan_crc,
    stan_encode,
    stan_frame,
    stan_frames,
    stan_front,
    stan_index,
    stan_mend,
    stan_read,
    stan_seq_from_time,
)

__all__ = [
    "Batch",
    "Disk",
    "DiskFile",
    "DiskLock",
    "StanEntry",
    "StanIndexSummary",
    "StanSubs",
    "stan_crc",
    "stan_encode",
    "stan_frame",
    "stan_frames",
    "stan_front",
    "stan_index",
    "stan_mend",
    "stan_read",
    "stan_seq_from_time",
]
