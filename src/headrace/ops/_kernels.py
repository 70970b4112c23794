"""The one module of the operations that calls the Rust core."""

from headrace._core import (
    Batch,
    Digest,
    Disk,
    deinterleave,
    interleave,
    merge_round,
    recast,
    subject_filter_valid,
    unacked,
)

__all__ = [
    "Batch",
    "Digest",
    "Disk",
    "deinterleave",
    "interleave",
    "merge_round",
    "recast",
    "subject_filter_valid",
    "unacked",
]
