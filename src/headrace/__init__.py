"""Headrace: durable message streams on disk, for Python and Spark. These are the public names.

    open(path)           a directory of any product, or an archive: a Volume with its logs
    create(path)         a new one                  detect(path)    which product wrote it
    inspect(path)        what is in it              verify(path)    whether every byte is sound
    salvage(path, out)   all that is sound          cat(path)       its messages, batch by batch
    convert(src, dst)    one broker's directory into another's
    batch(…)             messages to append

What is behind a name is imported when somebody asks for it: a server without streams needs no store, and a command
that only prints its version neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headrace._core import Batch as Batch
from headrace._core import __version__ as __version__
from headrace.errors import (
    AlreadyExists,
    BadInput,
    ConnectionLost,
    Damaged,
    DiskFault,
    DiskFull,
    EndOfStream,
    HeadraceError,
    KeyNeeded,
    MessageNotFound,
    NotFound,
    NotInMemory,
    ReadOnly,
    ServerRefused,
    StoreClosed,
    StoreFull,
    StoreLocked,
    StorePoisoned,
    UnknownFormat,
)

if TYPE_CHECKING:
    from headrace.layouts.base import Damage, Log, LogState, Predicate, Ticket, Volume
    from headrace.layouts.registry import create_volume as create
    from headrace.layouts.registry import detect
    from headrace.layouts.registry import open_volume as open  # noqa: A004  (the public name)
    from headrace.layouts.report import LogReport, Report
    from headrace.layouts.salvage import SalvageReport
    from headrace.layouts.stream_store import StreamStore
    from headrace.ops.cat import Selection, cat
    from headrace.ops.conversion import ConversionSpec, ConvertReport, convert
    from headrace.ops.look import inspect, salvage, verify
    from headrace.record import Record

batch = Batch.build

_BEHIND = {
    "headrace.layouts.base": ("Damage", "Log", "LogState", "Predicate", "Ticket", "Volume"),
    "headrace.layouts.registry": ("detect", "create_volume", "open_volume"),
    "headrace.layouts.report": ("LogReport", "Report"),
    "headrace.layouts.salvage": ("SalvageReport",),
    "headrace.layouts.stream_store": ("StreamStore",),
    "headrace.ops.cat": ("Selection", "cat"),
    "headrace.ops.conversion": ("ConversionSpec", "ConvertReport", "convert"),
    "headrace.ops.look": ("inspect", "salvage", "verify"),
    "headrace.record": ("Record",),
}
_SPELLED = {"open": "open_volume", "create": "create_volume"}

__all__ = [
    "AlreadyExists",
    "BadInput",
    "Batch",
    "ConnectionLost",
    "ConversionSpec",
    "ConvertReport",
    "Damage",
    "Damaged",
    "DiskFault",
    "DiskFull",
    "EndOfStream",
    "HeadraceError",
    "KeyNeeded",
    "Log",
    "LogReport",
    "LogState",
    "MessageNotFound",
    "NotFound",
    "NotInMemory",
    "Predicate",
    "ReadOnly",
    "Record",
    "Report",
    "SalvageReport",
    "Selection",
    "ServerRefused",
    "StoreClosed",
    "StoreFull",
    "StoreLocked",
    "StorePoisoned",
    "StreamStore",
    "Ticket",
    "UnknownFormat",
    "Volume",
    "__version__",
    "batch",
    "cat",
    "convert",
    "create",
    "detect",
    "inspect",
    "open",
    "salvage",
    "verify",
]


def __getattr__(name: str) -> object:
    spelled = _SPELLED.get(name, name)
    for module, names in _BEHIND.items():
        if spelled in names and name in __all__:
            found = getattr(import_module(module), spelled)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
