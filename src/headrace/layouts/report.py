"""What `inspect` and `verify` found, in one form for all products.

    Report      a directory: its logs, every finding, what could not be read or is not read at all
    LogReport   one stream, channel, partition or queue: state, files, readers, findings
    FileRow, ReaderRow   one file, one reader

`LogView` and `VolumeView` are what a layout fills in; JetStream has fuller ones of its own (`jetstream/inspection.py`,
`jetstream/verification.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.layouts.base import Damage, LogState
from headrace.layouts.plain import plain
from headrace.layouts.unread import Unread
from headrace.units import format_size, format_time_ns, plural

EXIT_SOUND = 0
EXIT_DAMAGED = 1
EXIT_COULD_NOT = 2
DAMAGE_KINDS_SHOWN = 3


class Nouns(NamedTuple):
    """What people call the parts of a product's directory."""

    directory: str = "directory"
    log: str = "log"
    file: str = "file"
    message: str = "message"


class Picture(NamedTuple):
    """A file as a bar: how much of it is live, and the damaged ranges as shares of its length."""

    live: float
    damaged: list[tuple[float, float]]


class Extent(NamedTuple):
    """Positions `[first, next)`, which may be empty; None where nothing could be read."""

    first: int | None
    next: int | None
    messages: int
    bytes: int

    @classmethod
    def of(cls, state: LogState | None) -> Extent:
        """From what a log says of itself."""
        if state is None:
            return cls(None, None, 0, 0)
        return cls(state.first_seq, state.last_seq + 1, state.messages, state.bytes)


@dataclass(slots=True)
class FileRow:
    """One file of a log: a segment, slice, block, queue file. Positions are half-open; None where it has none."""

    file: str
    kind: str
    file_bytes: int
    messages: int = 0
    first: int | None = None
    next: int | None = None
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    live_bytes: int | None = None
    newest: bool = False
    details: dict[str, str] = field(default_factory=lambda: {})
    damage: list[Damage] = field(default_factory=lambda: [])

    def label(self) -> str:
        """What it is called."""
        return f"{self.kind:<10} {self.file}  "

    def picture(self) -> Picture | None:
        """None where nothing is known of its inside."""
        return None

    def text(self) -> str:
        """Its size and what it holds."""
        where = "" if self.first is None or self.next is None else f"  {self.first}..{self.next - 1}"
        count = f"  {self.messages:>9,} messages{where}" if self.messages else ""
        return f"{format_size(self.file_bytes):>10}{count}"

    def words(self) -> list[str]:
        """What is special about it."""
        found = [f"{name} {value}" for name, value in self.details.items()]
        found += ["newest"] if self.newest else []
        return found + [each.kind for each in self.damage[:DAMAGE_KINDS_SHOWN]]


@dataclass(slots=True)
class ReaderRow:
    """Where a reader stands: the next position it is given, the last one of those that are all acked (None: nothing
    is), how much is sent and not acked."""

    name: str
    kind: str
    next: int
    floor: int | None
    pending: int = 0
    details: dict[str, str] = field(default_factory=lambda: {})

    def text(self) -> str:
        """For people, without its kind."""
        more = "".join(f", {name} {value}" for name, value in self.details.items())
        acked = "nothing acked" if self.floor is None else f"acked up to {self.floor}"
        return f"{self.name}: next {self.next}, {acked}, {self.pending:,} pending{more}"


def floor_below(following: int, origin: int = 0) -> int | None:
    """The floor of a reader that is done with everything below a position."""
    return following - 1 if following > origin else None


class LogReport(ABC):
    """One log, as it was found."""

    name: str
    directory: str
    damage: list[Damage]
    """Beside what is in its files; `findings` is all of it."""
    notes: list[str]
    problems: list[str]
    """What could not be read at all, as texts: not the same as damage."""

    @abstractmethod
    def extent(self) -> Extent:
        """What it holds."""

    @property
    def messages(self) -> int:
        return self.extent().messages

    @property
    def first_seq(self) -> int | None:
        """The first position; None where it holds no message."""
        return self.extent().first if self.messages else None

    @property
    def last_seq(self) -> int | None:
        """The last position; None where it holds no message."""
        following = self.extent().next if self.messages else None
        return None if following is None else following - 1

    @property
    @abstractmethod
    def findings(self) -> list[Damage]:
        """Damage of the log and of its files, each once."""

    @abstractmethod
    def file_rows(self) -> Sequence[FileRow]:
        """Its files."""

    def reader_rows(self) -> Sequence[ReaderRow]:
        """Who reads it."""
        return ()

    @property
    def sound(self) -> bool:
        """Everything was read, and nothing is damaged."""
        return not self.findings and not self.problems

    @property
    def heading(self) -> str:
        """What stands beside its name."""
        return self.directory

    def about(self) -> list[tuple[str, str]]:
        """What it is, as names and texts in the order to be shown."""
        return []

    def remarks(self) -> list[tuple[str, str]]:
        """Worth knowing, but nothing is wrong; the same form."""
        return [("note", note) for note in self.notes]

    @property
    @abstractmethod
    def summary(self) -> str:
        """What was checked, in one line."""


class Report(ABC):
    """A directory of any product. `sound` means: everything that was to be read was read, and nothing is damaged."""

    nouns: Nouns
    path: str
    layout: str
    product: str
    unread: list[Unread]
    """What is in the directory and no reader here reads."""
    writer: str | None
    """Who has it open for writing now."""
    complete: bool
    """False after a quick look: files were not read."""
    seconds: float
    can_be_salvaged: bool = True

    @property
    @abstractmethod
    def logs(self) -> Sequence[LogReport]:
        """Every log."""

    @property
    @abstractmethod
    def damage(self) -> Sequence[Damage]:
        """Every finding, each once."""

    @property
    @abstractmethod
    def notes(self) -> Sequence[str]:
        """Worth knowing, but nothing is wrong."""

    @property
    @abstractmethod
    def problems(self) -> Sequence[str]:
        """What could not be read, and why."""

    @property
    @abstractmethod
    def file_bytes(self) -> int:
        """The size of all files that hold messages."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""

    @property
    def origin(self) -> str:
        """The layout that the messages come from: another one only for archives."""
        return self.layout

    @property
    def heading(self) -> str:
        """What it is, for people."""
        return f"{self.product} {self.nouns.directory}"

    def shared(self) -> LogReport | None:
        """What belongs to no log: shared files, checkpoints; in the form of a log without messages."""
        return None

    @property
    def left_out(self) -> list[Unread]:
        """What may hold messages, and is not read."""
        return [place for place in self.unread if place.may_hold_messages]

    @property
    def messages(self) -> int:
        """In all logs."""
        return sum(log.messages for log in self.logs)

    @property
    def sound(self) -> bool:
        return not self.damage and not self.problems and not self.left_out

    @property
    def exit_code(self) -> int:
        """0 sound, 1 damaged or not read as a whole, 2 something could not be read."""
        return EXIT_COULD_NOT if self.problems else EXIT_SOUND if self.sound else EXIT_DAMAGED

    def hide_internal(self, names: Sequence[str], topics: Sequence[str]) -> None:
        """Leave these logs, which a broker keeps for itself, out of `logs` and say so in a note. Here there are none."""
        return

    def __str__(self) -> str:
        lines = [f"{self.path}: {'sound' if self.sound else 'not sound'}"]
        lines += [describe(each) for each in self.damage]
        lines += [describe_unread(each) for each in self.unread]
        return "\n".join(lines + [f"could not be read: {problem}" for problem in self.problems])

    def __repr__(self) -> str:
        verdict = "sound" if self.sound else f"not sound, {len(self.damage)} findings"
        return (
            f"<{type(self).__name__} of {self.path!r}: {self.product}, {len(self.logs)} logs, "
            f"{self.messages} messages, {verdict}>"
        )


@dataclass(slots=True)
class LogView(LogReport):
    """One log. `details` are the product's own facts (codec, epoch, limits …), in the order to be shown; `damage` is what
    lies in none of the files."""

    name: str
    directory: str
    state: LogState | None = None
    files: list[FileRow] = field(default_factory=lambda: [])
    cursors: list[ReaderRow] = field(default_factory=lambda: [])
    details: dict[str, str] = field(default_factory=lambda: {})
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])

    def extent(self) -> Extent:
        return Extent.of(self.state)

    @property
    def findings(self) -> list[Damage]:
        return list(dict.fromkeys([*self.damage, *(each for row in self.files for each in row.damage)]))

    def file_rows(self) -> Sequence[FileRow]:
        return self.files

    def reader_rows(self) -> Sequence[ReaderRow]:
        return self.cursors

    def about(self) -> list[tuple[str, str]]:
        state = [] if self.state is None else [("messages", state_line(self.state))]
        return [*state, *self.details.items()]

    @property
    def summary(self) -> str:
        if self.state is not None:
            return state_line(self.state)
        return "nothing could be read" if self.findings or self.problems else "no files"


@dataclass(slots=True, repr=False)
class VolumeView(Report):
    """A directory: its logs, and what belongs to none of them (checkpoints, shared files)."""

    path: str
    layout: str
    product: str
    version: str
    """Which versions write such files, as far as one can know."""
    log_views: list[LogView]
    files: list[FileRow] = field(default_factory=lambda: [])
    details: dict[str, str] = field(default_factory=lambda: {})
    own_damage: list[Damage] = field(default_factory=lambda: [])
    """Findings that belong to no log and to none of the files; so with notes and problems."""
    own_notes: list[str] = field(default_factory=lambda: [])
    own_problems: list[str] = field(default_factory=lambda: [])
    unread: list[Unread] = field(default_factory=lambda: [])
    writer: str | None = None
    complete: bool = True
    seconds: float = 0.0
    nouns: Nouns = field(default_factory=Nouns)
    can_be_salvaged: bool = True

    @property
    def logs(self) -> Sequence[LogView]:
        return self.log_views

    def shared(self) -> LogView:
        return LogView(
            "(shared files)",
            self.path,
            files=self.files,
            details=self.details,
            damage=self.own_damage,
            notes=self.own_notes,
            problems=self.own_problems,
        )

    @property
    def damage(self) -> list[Damage]:
        found = [*self.shared().findings, *(each for log in self.log_views for each in log.findings)]
        return list(dict.fromkeys(found))

    @property
    def notes(self) -> list[str]:
        return [*self.own_notes, *(f"{log.name}: {note}" for log in self.log_views for note in log.notes)]

    @property
    def problems(self) -> list[str]:
        found = (f"{log.name}: {problem}" for log in self.log_views for problem in log.problems)
        return [*self.own_problems, *found]

    @property
    def file_bytes(self) -> int:
        """Of every file that belongs to a log or to all of them."""
        shared = sum(row.file_bytes for row in self.files)
        return shared + sum(row.file_bytes for log in self.log_views for row in log.files)

    @property
    def origin(self) -> str:
        return self.details.get("origin", self.layout)

    @property
    def heading(self) -> str:
        return f"{self.product} {self.nouns.directory}, {self.version}"

    def hide_internal(self, names: Sequence[str], topics: Sequence[str]) -> None:
        self.log_views = [log for log in self.log_views if log.name not in names]
        self.own_notes.append(
            f"the broker's own topics are not shown: {', '.join(topics)}; --stream names them"
        )

    def to_dict(self) -> dict[str, Any]:
        found = plain(self)
        del found["nouns"], found["seconds"], found["can_be_salvaged"]
        found["logs"] = found.pop("log_views")
        found |= {name: found.pop(f"own_{name}") for name in ("damage", "notes", "problems")}
        for log, each in zip(self.log_views, found["logs"], strict=True):
            each["sound"] = log.sound
        return found | {"sound": self.sound, "messages": self.messages}

    def absorb(self, other: VolumeView) -> None:
        """Take in the logs of another view of the same directory, and what it found beside them."""
        self.log_views += other.log_views
        self.own_damage += [each for each in other.own_damage if each not in self.own_damage]
        self.own_notes += [each for each in other.own_notes if each not in self.own_notes]
        self.own_problems += [each for each in other.own_problems if each not in self.own_problems]


def state_line(state: LogState) -> str:
    """What a log holds, in one line."""
    if not state.messages:
        return f"no messages, the next one is number {state.last_seq + 1}"
    times = ""
    if state.first_time_ns is not None:
        times = f", {format_time_ns(state.first_time_ns)} to {format_time_ns(state.last_time_ns)}"
    removed = f", {state.num_deleted:,} missing between" if state.num_deleted else ""
    return f"{plural(state.messages, 'message')}, {state.first_seq}..{state.last_seq}{removed}{times}"


def describe(damage: Damage) -> str:
    """One finding in one line: file, bytes (both ends included), kind, sequences, detail."""
    place = f"bytes {damage.offset}..{damage.offset + damage.length - 1}" if damage.length else "as a whole"
    seqs = ""
    if damage.first_seq is not None and damage.next_seq is not None and damage.next_seq > damage.first_seq:
        last = damage.next_seq - 1
        seqs = (
            f", sequence {damage.first_seq}"
            if last == damage.first_seq
            else f", sequences {damage.first_seq}..{last}"
        )
    return f"{damage.file}: {place}: {damage.kind}{seqs}: {damage.detail}"


def describe_unread(place: Unread) -> str:
    """One place that is not read, in one line."""
    size = f" ({place.file_bytes:,} bytes in {place.files:,} files)" if place.files else ""
    return f"{place.path}: not read{size}: {place.what}"
