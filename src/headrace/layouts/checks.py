"""`verify` in pieces that can be spread: what is to be checked, as tasks that can be pickled.

    CheckTask   reads its files and nothing else; runs anywhere; gives a `CheckRow` per file
    CheckPlan   the same work as pieces whose results together make the report of `verify`

JetStream: a task per block, and one per stream for its indexes, metadata and consumers, which goes over the blocks again to
compare. Kafka, NATS Streaming, archives: a task per log. RocketMQ and RabbitMQ, whose logs share files: one for the
directory. What is not read (`Layout.unread`) is a row too. Together the rows say what `headrace verify` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace.layouts.base import Damage
from headrace.layouts.report import FileRow, LogReport, Report, VolumeView
from headrace.layouts.unread import Unread

if TYPE_CHECKING:
    from headrace.layouts.layout import Layout


@dataclass(frozen=True, slots=True)
class CheckRow:
    """What was found of one file, or (kind "stream", "log", "directory") beside the files."""

    log: str
    file: str
    kind: str
    first_seq: int | None
    next_seq: int | None
    messages: int
    bytes: int
    findings: tuple[Damage, ...] = ()
    problem: str | None = None
    """Why it could not be read."""

    @property
    def ok(self) -> bool:
        return not self.findings and self.problem is None


class CheckTask(ABC):
    """A piece of the work."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """What it weighs."""

    @abstractmethod
    def rows(self) -> Iterator[CheckRow]:
        """Check it."""


class Checked(Protocol):
    """What a piece of a `CheckPlan` has found."""

    @property
    def messages(self) -> int: ...

    @property
    def file_bytes(self) -> int: ...


class CheckPiece(Protocol):
    """A piece of a `CheckPlan`; can be pickled, and so can what it finds."""

    def run(self) -> Checked:
        """Check it."""
        ...


class CheckPlan(ABC):
    """`verify` as pieces of work."""

    pieces: Sequence[CheckPiece]
    file_bytes: int
    """Of all pieces; 0 where that is not known before."""

    @abstractmethod
    def report(self, found: Mapping[int, Any]) -> Report:
        """From what each piece has found, by its number."""


@dataclass(frozen=True, slots=True)
class LogCheck(CheckTask):
    """One log, or (None) all of them."""

    layout: Layout
    path: str
    log: str | None
    weight: int
    key: str | None = field(default=None, repr=False)

    @property
    def size_bytes(self) -> int:
        return self.weight

    def run(self) -> Report:
        """Every byte of the log, and what it needs of the shared files."""
        return self.layout.verify(self.path, log=self.log, key=self.key)

    def rows(self) -> Iterator[CheckRow]:
        report = self.run()
        for log in report.logs:
            yield from _log_rows(log)
        shared = report.shared()
        if shared is not None and (self.log is None or self.layout.shares_files):
            yield from (_file_row("", row) for row in shared.file_rows())
            own = [each for each in shared.findings if each not in _of_files(shared)]
            yield CheckRow(
                *("", report.path, "directory", None, None, 0, 0, tuple(own)), joined(shared.problems)
            )


@dataclass(frozen=True, slots=True)
class UnreadCheck(CheckTask):
    """What no reader here reads."""

    path: str
    place: Unread

    @property
    def size_bytes(self) -> int:
        return 0

    def rows(self) -> Iterator[CheckRow]:
        place = self.place
        yield CheckRow("", place.path, "not read", None, None, 0, place.file_bytes, problem=place.what)


class LogCheckPlan(CheckPlan):
    """Log by log."""

    def __init__(self, pieces: Sequence[LogCheck]) -> None:
        self.pieces, self.file_bytes = pieces, 0

    def report(self, found: Mapping[int, Any]) -> Report:
        merged = cast("VolumeView", found[0])
        for number in range(1, len(self.pieces)):
            merged.absorb(cast("VolumeView", found[number]))
        return merged


def _log_rows(log: LogReport) -> Iterator[CheckRow]:
    of_files = _of_files(log)
    yield from (_file_row(log.name, row) for row in log.file_rows())
    yield CheckRow(
        log.name,
        log.directory,
        "log",
        *log.extent(),
        tuple(each for each in log.findings if each not in of_files),
        joined(log.problems),
    )


def _of_files(log: LogReport) -> set[Damage]:
    return {each for row in log.file_rows() for each in row.damage}


def _file_row(log: str, row: FileRow) -> CheckRow:
    return CheckRow(
        log, row.file, row.kind, row.first, row.next, row.messages, row.file_bytes, tuple(row.damage)
    )


def joined(problems: Sequence[str]) -> str | None:
    """As one text; None without any."""
    return "; ".join(problems) or None
