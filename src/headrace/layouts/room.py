"""What every layout's room offers beside its Volume, so that commands and Spark need not know which one it is.

    Room      recognise a directory, open it, inspect it, verify it, list its options
    LogView   one log for people: what it holds, its files, its readers, what is not sound
    Options   every setting of the product, under the product's own name

The commands over it (`ops/`) are the same for all layouts; `detect.py` has the list of rooms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import msgspec

from headrace._core import Disk
from headrace.errors import BadInput
from headrace.layouts.base import Damage, Durability, LogState, Volume
from headrace.layouts.volume_parts import check_words

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); from the calling thread only."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a room's options. Field names are the product's; where it writes dots, `names` says so.

    Each field has a default, and a text for people in `msgspec.Meta(description=…)`.
    """

    names: ClassVar[Mapping[str, str]] = {}
    """The product's own spelling, where it is not a Python name: {"log_segment_bytes": "log.segment.bytes"}."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From keywords, a config file or flags: either spelling; texts become numbers. BadInput names the wrong one."""
        spelled = {theirs: ours for ours, theirs in cls.names.items()}
        fields = {spelled.get(name, name): value for name, value in given.items()}
        unknown = sorted(set(fields) - set(cls.__struct_fields__))
        if unknown:
            known = ", ".join(cls.names.get(name, name) for name in cls.__struct_fields__)
            raise BadInput(f"unknown option {unknown[0]!r}; known are: {known}")
        try:
            return msgspec.convert(fields, cls, strict=False)
        except msgspec.ValidationError as error:
            raise BadInput(f"option: {error}") from None


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


@dataclass(slots=True)
class CursorRow:
    """Where a reader stands: the next position it is given, how much is sent and not settled."""

    name: str
    kind: str
    next: int
    floor: int
    pending: int = 0
    details: dict[str, str] = field(default_factory=lambda: {})


@dataclass(slots=True)
class LogView:
    """One log. `details` are the product's own facts (codec, epoch, limits …), in the order to be shown."""

    name: str
    directory: str
    state: LogState | None = None
    files: list[FileRow] = field(default_factory=lambda: [])
    cursors: list[CursorRow] = field(default_factory=lambda: [])
    details: dict[str, str] = field(default_factory=lambda: {})
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])
    """What could not be read at all, as texts: not the same as damage."""

    @property
    def sound(self) -> bool:
        """Everything was read, and nothing is damaged."""
        return not self.all_damage and not self.problems

    @property
    def all_damage(self) -> list[Damage]:
        """Findings of the log and of its files, each once."""
        return list(dict.fromkeys([*self.damage, *(each for row in self.files for each in row.damage)]))


@dataclass(slots=True)
class VolumeView:
    """A directory: its logs, and what belongs to none of them (checkpoints, shared files)."""

    path: str
    layout: str
    product: str
    version: str
    """Which versions write such files, as far as one can tell."""
    logs: list[LogView]
    files: list[FileRow] = field(default_factory=lambda: [])
    details: dict[str, str] = field(default_factory=lambda: {})
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])
    writer: str | None = None
    """Who has it open for writing now."""

    @property
    def all_damage(self) -> list[Damage]:
        """Every finding, each once."""
        shared = [*self.damage, *(each for row in self.files for each in row.damage)]
        return list(dict.fromkeys([*shared, *(each for log in self.logs for each in log.all_damage)]))

    @property
    def all_problems(self) -> list[str]:
        """What could not be read, with the log's name."""
        return [*self.problems, *(f"{log.name}: {each}" for log in self.logs for each in log.problems)]

    @property
    def sound(self) -> bool:
        """Everything was read, and nothing is damaged."""
        return not self.all_damage and not self.all_problems

    @property
    def messages(self) -> int:
        return sum(log.state.messages for log in self.logs if log.state is not None)

    @property
    def file_bytes(self) -> int:
        """Of every file that belongs to a log or to all of them."""
        shared = sum(row.file_bytes for row in self.files)
        return shared + sum(row.file_bytes for log in self.logs for row in log.files)


class Room(ABC):
    """A layout, as the commands see it. Reading functions never write and take no lock."""

    layout: ClassVar[str]
    product: ClassVar[str]
    options: ClassVar[type[Options]]

    @abstractmethod
    def recognises(self, disk: Disk, path: str) -> bool:
        """Whether the directory was written by this product. Cheap: names and a few bytes."""

    @abstractmethod
    def open(
        self,
        path: str,
        mode: str = "r",
        *,
        create: bool = False,
        durability: Durability = "sync",
        options: Options | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> Volume:
        """Open it; "r" reads tolerantly and writes nothing, "rw" takes the lock and recovers."""

    @abstractmethod
    def inspect(
        self,
        path: str,
        *,
        log: str | None = None,
        quick: bool = False,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> VolumeView:
        """What is in it. `quick`: metadata, names and sizes only."""

    @abstractmethod
    def verify(
        self,
        path: str,
        *,
        log: str | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
        threads: int = 1,
    ) -> VolumeView:
        """The same after every byte was read and every checksum, index and reference compared."""

    def carry_over(self, source: Volume, target: Volume, log: str) -> int:
        """Copy what is known of the readers of a log; returns how many. Nothing, where readers leave no trace here."""
        return 0

    def for_copies(self) -> Options | None:
        """Options under which a copy of any directory can be made: no limit may refuse what is there already."""
        return None


class ClearRoom(Room):
    """A layout without encryption whose volume is opened with words, options, disk and clock, and looked at in one way."""

    volume: ClassVar[Callable[..., Volume]]

    def open(
        self,
        path: str,
        mode: str = "r",
        *,
        create: bool = False,
        durability: Durability = "sync",
        options: Options | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> Volume:
        """Open it; "r" reads tolerantly and writes nothing, "rw" takes the locks and recovers."""
        if key is not None:
            raise BadInput(f"{self.product}'s files are not encrypted: no key is needed")
        if options is not None and not isinstance(options, self.options):
            raise BadInput(f"options of another layout: {type(options).__name__}")
        check_words(mode, durability)
        given: dict[str, Any] = {} if clock is None else {"clock": clock}
        opened = type(self).volume
        return opened(
            path, mode=mode, create=create, durability=durability, options=options, disk=disk, **given
        )

    @abstractmethod
    def look(
        self,
        path: str,
        *,
        log: str | None,
        disk: Disk | None,
        progress: Progress | None,
        quick: bool,
        full: bool,
        threads: int,
    ) -> VolumeView:
        """What is in it: names and sizes only (`quick`), or after every byte was read and compared (`full`)."""

    def inspect(
        self,
        path: str,
        *,
        log: str | None = None,
        quick: bool = False,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> VolumeView:
        return self.look(path, log=log, disk=disk, progress=progress, quick=quick, full=False, threads=1)

    def verify(
        self,
        path: str,
        *,
        log: str | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
        threads: int = 1,
    ) -> VolumeView:
        return self.look(path, log=log, disk=disk, progress=progress, quick=False, full=True, threads=threads)
