"""The one module of this package that calls the Rust core: disks that lose, tear and refuse."""

from __future__ import annotations

from headrace._core import Disk, FaultPlan

__all__ = ["Disk", "FaultPlan"]
