"""What every channel of an opened store shares: the disk, the open files, the options, who takes slices away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.layouts.base import Durability
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.marks import Marks, MarksBefore
from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.archive import Archiver
from headrace.layouts.nats_streaming.limits import LimitTable
from headrace.layouts.nats_streaming.options import StreamingOptions


@dataclass(slots=True)
class Home:
    """One per volume."""

    disk: Disk
    root: str
    options: StreamingOptions
    limits: LimitTable
    files: Descriptors
    archiver: Archiver
    clock: Callable[[], int]
    durability: Durability
    read_only: bool
    key: str | None = None
    marks: Marks | None = None
    """How far each channel is on disk: (newest slice, bytes of it, last sequence). None for readers."""
    before: MarksBefore = field(default_factory=MarksBefore)
    """The marks that the last writer left."""
    new_names: set[str] = field(default_factory=lambda: set())
    """Directories with names that are not synced yet (mode `interval`)."""

    @property
    def poly(self) -> int:
        """The CRC's polynomial."""
        return self.options.file_crc_poly

    @property
    def syncs(self) -> bool:
        """Whether acknowledged means synced."""
        return self.durability == "sync"

    def directory(self, channel: str) -> str:
        """Where a channel's files are."""
        return f"{self.root}/{channel}"
