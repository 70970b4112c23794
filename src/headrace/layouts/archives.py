"""Archives of logs, as whoever writes them sees them; `parquet/` implements it.

Archives   reads divisions, cuts logs into groups, opens a ledger
Group      what one worker turns into files; `write` runs anywhere
Ledger     where commits go: a range is committed once or not at all
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.errors import BadInput
from headrace.layouts.base import ScanTask

CODECS = ("auto", "zstd", "snappy", "none")
Range = tuple[int, int]


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file: positions `[first, next)` of a log, as far as they fall into its partition."""

    path: str
    log: str
    first: int
    next: int
    rows: int
    bytes: int
    hash: str
    """As `check.file_hash` gives it."""
    codec: str
    """Of the column headers_raw: nats, kafka, amqp, rocketmq, none."""
    min_time_ns: int
    max_time_ns: int
    partition: dict[str, str | None] = {}


class ArchivedLog(msgspec.Struct, kw_only=True):
    """A log in the archive: which incarnation, which positions, what retention took before it was archived."""

    id: str
    ranges: list[Range] = []
    rows: int = 0
    lost: list[Range] = []

    @property
    def next(self) -> int | None:
        """Where the next run goes on; None before the first."""
        return self.ranges[-1][1] if self.ranges else None

    def covers(self, first: int, following: int) -> bool:
        """Whether all of it is there already."""
        return any(a <= first and following <= b for a, b in self.ranges)

    def overlaps(self, first: int, following: int) -> bool:
        """Whether a part of it is there already."""
        return any(a < following and first < b for a, b in self.ranges)

    def add(self, first: int, following: int, rows: int) -> None:
        """Another range; neighbours become one."""
        if self.overlaps(first, following):
            raise BadInput(f"positions {first} to {following - 1} are in the archive already")
        merged: list[Range] = []
        for a, b in sorted([*self.ranges, (first, following)]):
            if merged and merged[-1][1] == a:
                merged[-1] = (merged[-1][0], b)
            else:
                merged.append((a, b))
        self.ranges, self.rows = merged, self.rows + rows


@dataclass(frozen=True, slots=True)
class AddedRange:
    """What a commit adds to a log: a range, and its files."""

    log: str
    entry: ArchivedLog
    first: int
    next: int
    files: list[ArchivedFile]


@dataclass(frozen=True, slots=True)
class WrittenGroup:
    """What became of a group."""

    log: str
    first: int
    next: int
    rows: int
    size_bytes: int
    files: list[ArchivedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How groups are cut, and how their files are written."""

    place: str
    """The directory that takes the finished files."""
    target_bytes: int
    by: Sequence[str] = ()
    compression: str = "auto"
    end: int | None = None
    """Nothing from this position on."""


class Division(Protocol):
    """How an archive is divided into directories."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it makes."""
        ...


class ArchiveGroup(Protocol):
    """What one worker turns into files. `[first, next)` also covers positions that nothing is at. Can be pickled."""

    @property
    def log(self) -> str: ...

    @property
    def first(self) -> int: ...

    @property
    def next(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def write(self) -> WrittenGroup:
        """Read the messages, write a file for each directory, and say what they are."""
        ...


class Ledger(Protocol):
    """Where commits go: a manifest, a Delta table, an Iceberg table."""

    format: str
    place: str
    """Where workers put finished files."""

    @property
    def rows(self) -> int:
        """Of everything that is committed."""
        ...

    def log(self, name: str, incarnation: str) -> ArchivedLog:
        """What is committed of a log."""
        ...

    def commit(self, parts: Sequence[AddedRange]) -> None:
        """All of it, or nothing."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


class Archives(ABC):
    """A layout that archives are written in."""

    @abstractmethod
    def division(self, by: Sequence[str]) -> Division:
        """BadInput names what cannot be read."""

    @abstractmethod
    def ledger(self, target: str, origin: str, by: Sequence[str], wait_s: float = 0) -> Ledger:
        """The archive at `target`, of logs of the layout `origin`, opened for writing."""

    @abstractmethod
    def committed(self, target: str) -> dict[str, ArchivedLog]:
        """What is in the archive, by log; nothing is locked or made."""

    @abstractmethod
    def groups(
        self,
        log: str,
        tasks: Sequence[ScanTask],
        start: int,
        how: WriteOptions,
    ) -> Sequence[ArchiveGroup]:
        """Tasks in order, from `start` on: big ones cut, small neighbours together, no position twice or left out."""

    @abstractmethod
    def columns(self) -> Sequence[str]:
        """The columns of a file, in their order."""
