"""The one door from this layout to the core."""

from headrace._core import Disk, highway_hash

__all__ = ["Disk", "highway_hash"]
