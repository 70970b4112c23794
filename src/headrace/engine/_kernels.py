"""What the engine takes from the Rust core."""

from headrace._core import CommitHandle

__all__ = ["CommitHandle"]
