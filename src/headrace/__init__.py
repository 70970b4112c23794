"""Headrace: durable message streams on disk, for Python and Spark. These are the public names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._core import Batch, __version__
from headrace.layouts.base import Damage, Log, LogState, Predicate, StreamStore, Ticket, Volume
from headrace.layouts.detect import detect, open_volume
from headrace.record import Record

if TYPE_CHECKING:
    from headrace.ops.verify import VerifyReport

open = open_volume
batch = Batch.build

__all__ = [
    "Batch",
    "Damage",
    "Log",
    "LogState",
    "Predicate",
    "Record",
    "StreamStore",
    "Ticket",
    "Volume",
    "__version__",
    "batch",
    "detect",
    "open",
    "verify",
]


def verify(path: str, **options: Any) -> VerifyReport:
    """Check every hash and boundary of a store; see `headrace.ops.verify`."""
    from headrace.ops.verify import verify as run

    return run(path, **options)
