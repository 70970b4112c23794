"""The one door from this layout to the core."""

from headrace._core import highway_hash

__all__ = ["highway_hash"]
