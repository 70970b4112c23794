"""The one door from the operations to the core."""

from headrace._core import Batch, Digest, Disk, recast, subject_filter_valid

__all__ = ["Batch", "Digest", "Disk", "recast", "subject_filter_valid"]
