"""`Layout`: one product's directories as everything above storage meets them. One instance per product (`registry.py`).

recognise, open, create          which directories are its, and a Volume over one
inspect, verify, salvage         what is in one, whether it is sound, all that is sound into a new one
unread                           what of a directory is not read
check_tasks, check_plan          `verify` in pieces that can be spread
follow, copies, lone_task …      what else differs between products

OpenRequest   how a directory is to be opened
Options       every setting of the product, under the product's own name
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from headrace._core import Disk
from headrace.errors import BadInput, NotFound
from headrace.layouts.base import Durability, ScanTask, Volume
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.checks import CheckPlan, CheckTask, LogCheck, LogCheckPlan, UnreadCheck
from headrace.layouts.copies import Copies
from headrace.layouts.following import Follower, ReopeningFollower
from headrace.layouts.log_names import LogNames
from headrace.layouts.places import absolute, check_path, disk_at
from headrace.layouts.report import Nouns, Report
from headrace.layouts.salvage import SalvageReport, salvage_by_copy
from headrace.layouts.unread import Unread
from headrace.layouts.volume_parts import check_words

if TYPE_CHECKING:
    from headrace.layouts.archives import Archives

THREADS = min(4, os.cpu_count() or 1)
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); from the calling thread only."""


class LayoutOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a layout's options. Field names are the product's; where it writes dots, `names` says so.

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

    def fields(self) -> dict[str, Any]:
        """By their Python names."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def spelled(self) -> dict[str, Any]:
        """By the product's names."""
        return {self.names.get(name, name): value for name, value in self.fields().items()}

    def changed(self) -> dict[str, Any]:
        """Those that are not the default, by the product's names."""
        default = type(self)().spelled()
        return {name: value for name, value in self.spelled().items() if value != default[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """How a directory is to be opened: "r" reads tolerantly and writes nothing, "rw" takes the lock and recovers."""

    mode: str = "r"
    create: bool = False
    durability: Durability = "sync"
    options: LayoutOptions | None = None
    disk: Disk | None = None
    key: str | None = field(default=None, repr=False)
    clock: Callable[[], int] = time.time_ns
    maintenance: bool = True
    """Whether a thread does what time brings; without it, whoever opened the volume does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is to be looked at, and how closely."""

    path: str
    log: str | None = None
    disk: Disk | None = None
    key: str | None = field(default=None, repr=False)
    progress: Progress | None = None
    quick: bool = False
    """Names, metadata and sizes only."""
    full: bool = False
    """Every byte is read; every checksum, index and reference compared."""
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server's own configuration file says about its store."""

    directory: str | None
    options: LayoutOptions
    passed_over: tuple[str, ...] = ()
    """Keys that are not the store's."""


class Layout(ABC):
    """One product's directories. Functions that read never write and take no lock."""

    name: ClassVar[str]
    product: ClassVar[str]
    label: ClassVar[str]
    """The product's name in a sentence."""
    nouns: ClassVar[Nouns] = Nouns()
    options: ClassVar[type[LayoutOptions]] = LayoutOptions
    volume: ClassVar[Callable[..., Volume]]
    sealed: ClassVar[bool] = False
    """Whether its files may be encrypted."""
    shares_files: ClassVar[bool] = False
    """Whether logs have files in common, so that one cannot be checked without the others."""
    columns: ClassVar[Mapping[str, str]] = {}
    """What its messages have and others have not: name → Arrow type (see `ScanTask.own_column`)."""
    copies_age: ClassVar[bool] = True
    """Whether time brings something (files to be closed, say) while a copy is made."""
    needs_server: ClassVar[str | None] = None
    """Why its options cannot be changed on a stopped store."""
    log_names: ClassVar[LogNames] = LogNames()
    capabilities: ClassVar[Capabilities]
    """Of layouts that can be written."""

    # Which directories

    @abstractmethod
    def recognise(self, path: str, disk: Disk) -> bool:
        """Whether the directory was written by this product. Cheap: names and a few bytes."""

    def recognise_log(self, path: str, disk: Disk) -> bool:
        """Whether it is the directory of one log, which can be looked at and not opened as a volume."""
        return False

    @abstractmethod
    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """What the directory holds and is not read: other kinds of queues, tiered storage, unknown folders."""

    def unread_at(self, path: str, disk: Disk | None = None) -> list[Unread]:
        """The same for a path as a user gives it."""
        checked = check_path(path)
        return self.unread(disk or disk_at(checked), absolute(checked) if disk is None else checked)

    # Opening

    def open(self, path: str, request: OpenRequest | None = None) -> Volume:
        """A Volume over the directory."""
        request = request or OpenRequest()
        check_words(request.mode, request.durability)
        if request.options is not None and not isinstance(request.options, self.options):
            raise BadInput(f"options of another layout: {type(request.options).__name__}")
        if request.key is not None and not self.sealed:
            raise BadInput(f"{self.product}'s files are not encrypted: no key is needed")
        return self.volume_at(path, request)

    def create(self, path: str, request: OpenRequest | None = None) -> Volume:
        """A new directory, opened for writing."""
        from dataclasses import replace

        return self.open(path, replace(request or OpenRequest(), mode="rw", create=True))

    def volume_at(self, path: str, request: OpenRequest) -> Volume:
        """The volume for a request that was checked."""
        more: dict[str, Any] = {"key": request.key} if self.sealed else {}
        return type(self).volume(
            path,
            mode=request.mode,
            create=request.create,
            durability=request.durability,
            options=request.options,
            disk=request.disk,
            clock=request.clock,
            maintenance=request.maintenance,
            **more,
        )

    def source_options(self) -> LayoutOptions | None:
        """Options under which a whole directory is read to be copied."""
        return None

    def copy_options(self) -> LayoutOptions | None:
        """Options under which a copy of any directory can be made: no limit may refuse what is there already."""
        return None

    # Looking

    @abstractmethod
    def look(self, request: Look) -> Report:
        """What is in the directory, or in one log of it."""

    def inspect(
        self,
        path: str,
        *,
        log: str | None = None,
        quick: bool = False,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """What is in it. `quick`: metadata, names and sizes only."""
        request = Look(
            path=path, log=log, disk=disk, key=key, progress=progress, quick=quick, threads=THREADS
        )
        report = self._report(request)
        if log is None:
            self._hide_internal(report)
        return report

    def verify(
        self,
        path: str,
        *,
        log: str | None = None,
        disk: Disk | None = None,
        key: str | None = None,
        progress: Progress | None = None,
        threads: int = THREADS,
    ) -> Report:
        """The same after every byte was read and every checksum, index and reference compared."""
        return self._report(
            Look(
                path=path,
                log=log,
                disk=disk,
                key=key,
                progress=progress,
                full=True,
                threads=max(threads, 1),
            )
        )

    def _report(self, request: Look) -> Report:
        started = time.monotonic()
        report = self.look(request)
        if request.log is not None and not report.logs:
            raise NotFound(f"{report.path}: no log {request.log!r}")
        report.nouns, report.complete = self.nouns, not request.quick
        report.unread = self.unread_at(request.path, request.disk) if request.log is None else []
        report.seconds = round(time.monotonic() - started, 3)
        return report

    def _hide_internal(self, report: Report) -> None:
        """The broker's own topics are named and not shown, unless something is wrong with them."""
        names = self.log_names_of(report.origin)
        own = [log.name for log in report.logs if names.is_internal(log.name) and log.sound]
        if own:
            report.hide_internal(own, list(dict.fromkeys(names.topic_of(name) or name for name in own)))

    def log_names_of(self, origin: str) -> LogNames:
        """How logs are named in a directory; in an archive, as in the product that they came from."""
        return self.log_names

    def salvage(
        self,
        path: str,
        out: str,
        *,
        log: str | None = None,
        key: str | None = None,
        disk: Disk | None = None,
        progress: Progress | None = None,
        threads: int = THREADS,
    ) -> SalvageReport:
        """All that is sound at `path` into a new directory at `out`. The source is only read."""
        request = Look(path=path, log=log, key=key, disk=disk, progress=progress, threads=max(threads, 1))
        return salvage_by_copy(self, request, out)

    # Checks in pieces

    def check_tasks(
        self, path: str, logs: Sequence[str] | None = None, key: str | None = None
    ) -> list[CheckTask]:
        """Everything there is to check, of these logs if some are named: a row per file."""
        left_out = [place for place in self.unread_at(path) if place.may_hold_messages]
        return [
            *self.check_tasks_of_logs(path, logs, key),
            *(UnreadCheck(path, place) for place in left_out if logs is None),
        ]

    def check_tasks_of_logs(self, path: str, logs: Sequence[str] | None, key: str | None) -> list[CheckTask]:
        """What can be read of it."""
        view = self.inspect(path, quick=True, key=key)
        if self.shares_files:
            only = logs[0] if logs is not None and len(logs) == 1 else None
            return [LogCheck(self, path, only, view.file_bytes, key)]
        sizes = {log.name: sum(row.file_bytes for row in log.file_rows()) for log in view.logs}
        return [
            LogCheck(self, path, name, size, key)
            for name, size in sizes.items()
            if logs is None or name in logs
        ]

    def check_plan(self, path: str, *, log: str | None = None, key: str | None = None) -> CheckPlan:
        """`verify` as pieces of work, and the report that they make together."""
        checked = check_path(path)
        view = self.look(Look(path=checked, quick=True, key=key))
        names = [each.name for each in view.logs]
        if log is not None:
            names = self.log_names_of(view.origin).choose(names, (log,), path=path)
            if not names:
                raise NotFound(f"{path}: no log {log!r}")
        # Files that logs share are looked at as a whole, once; without logs they are all there is.
        parts: Sequence[str | None] = [log] if self.shares_files or not names else names
        return LogCheckPlan([LogCheck(self, checked, name, 0, key) for name in parts])

    # What else differs

    def reading(self, path: str, *, disk: Disk | None = None, key: str | None = None) -> Volume:
        """A volume for reading what can be read, whatever else is damaged."""
        return self.open(path, OpenRequest(disk=disk, key=key))

    def follow(
        self, path: str, names: Sequence[str], *, disk: Disk | None = None, key: str | None = None
    ) -> Follower:
        """What comes into these logs while somebody else writes them. Make it before the logs are read."""
        return ReopeningFollower(lambda: self.reading(path, disk=disk, key=key), names)

    def carry_over(self, source: Volume, target: Volume, log: str) -> int:
        """Copy what is known of the readers of a log; returns how many. Nothing, where readers leave no trace here."""
        return 0

    def copies(self, volume: Volume, options: Mapping[str, Any] | None = None) -> Copies:
        """For whoever copies logs of any layout into a volume of this one. `options`: see `check_log_options`."""
        return Copies(volume)

    def check_log_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options for a directory that copies are made in; BadInput for one that it does not have. Returns those that
        belong to the logs, not to the directory."""
        self.options_for_copies(options)
        return {}

    def options_for_copies(self, given: Mapping[str, Any]) -> LayoutOptions | None:
        """`copy_options` with these, under the product's names."""
        bare = self.copy_options()
        spelled = {theirs: ours for ours, theirs in self.options.names.items()}
        request = {spelled.get(name, name): value for name, value in given.items()}
        base = {} if bare is None else bare.fields()
        return self.options.of(base | request) if base or request else None

    def read_server_config(self, given: Mapping[str, Any]) -> ServerConfig | None:
        """Directory and options from the server's own configuration file, read into plain values; None where a server's
        file is no more than names and values."""
        return None

    @property
    def has_server_config(self) -> bool:
        """Whether `read_server_config` reads something."""
        return type(self).read_server_config is not Layout.read_server_config

    def lone_task(self, log: str, files: Sequence[str], key: str | None = None) -> ScanTask | None:
        """A part of a log that its server has given up, by its files alone; None when it holds nothing."""
        raise BadInput(f"{self.product} has no files that are read one by one")

    def archives(self) -> Archives:
        """What writes archives of other layouts' logs, where this layout is such an archive."""
        raise BadInput(f"{self.product}: not an archive")
