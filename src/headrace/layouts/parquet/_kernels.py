"""The one module of this layout that calls the Rust core."""

from headrace._core import Disk, highway_hash

__all__ = ["Disk", "highway_hash"]
