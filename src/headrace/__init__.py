"""Headrace: durable message streams on disk, for Python and Spark. These are the public names.

What is behind a name is imported when somebody asks for it: a server without streams needs no store, and a command
that only prints its version neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace._core import Batch, __version__

if TYPE_CHECKING:
    from headrace.layouts.base import Damage, Log, LogState, Predicate, StreamStore, Ticket, Volume
    from headrace.layouts.detect import detect
    from headrace.layouts.detect import open_volume as open  # noqa: A004  (the public name)
    from headrace.ops.verify import VerifyReport
    from headrace.record import Record

batch = Batch.build

_BEHIND = {
    **dict.fromkeys(
        ("Damage", "Log", "LogState", "Predicate", "StreamStore", "Ticket", "Volume"), "headrace.layouts.base"
    ),
    "Record": "headrace.record",
    "detect": "headrace.layouts.detect",
    "open": "headrace.layouts.detect",
}

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


def __getattr__(name: str) -> Any:
    where = _BEHIND.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(where), "open_volume" if name == "open" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


def verify(path: str, **options: Any) -> VerifyReport:
    """Check every hash and boundary of a store; see `headrace.ops.verify`."""
    from headrace.ops.verify import verify as run

    return run(path, **options)
