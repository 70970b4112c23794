"""The directory that a conversion writes: a new one, or one that the product has made already.

    DST absent   built beside as DST.incomplete, verified, then renamed: a directory called DST is whole
    DST there    its product's; logs of it that are empty, and new ones, take the messages
    DST.convert  while it runs: what was asked for, so that the same command goes on after an interruption

What was interrupted goes on where the target ends: a process that is killed leaves a prefix. (After a power cut the end
may have holes: the final comparison finds them and says so.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace._core import Disk
from headrace.errors import AlreadyExists, BadInput, NotFound, UnknownFormat
from headrace.layouts.base import Log, Volume
from headrace.layouts.copies import Copies
from headrace.layouts.layout import OpenRequest
from headrace.layouts.places import absolute
from headrace.layouts.registry import detect, layout_named
from headrace.layouts.salvage import SUFFIX, take_name

NOTE = ".convert"


class ConversionNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversion was asked for; only the same question goes on with an interrupted one."""

    v: int = 1
    source: str
    to: str
    logs: tuple[tuple[str, ...], ...]
    subject: str | None
    carry: str
    order: str = "time"
    options: dict[str, str]
    began_ns: int
    fresh: bool

    def same(self, other: ConversionNote) -> bool:
        """Whether both ask for the same."""
        return msgspec.structs.replace(other, began_ns=self.began_ns, fresh=self.fresh) == self


@dataclass(slots=True)
class ConversionTarget:
    """The directory under construction."""

    path: str
    building: str
    note: ConversionNote
    resumed: bool
    disk: Disk
    copies: Copies
    opened: dict[str, Log] = field(default_factory=lambda: {})
    later: list[Callable[[], None]] = field(default_factory=lambda: [])
    """What is done when all logs are copied."""

    @property
    def volume(self) -> Volume:
        """Opened for writing."""
        return self.copies.volume

    @property
    def is_work_queue(self) -> bool:
        """Whether its logs give every message once: readers are not carried there."""
        return is_work_queue(layout_named(self.note.to).check_log_options(self.note.options))

    def log(self, name: str, like: Log) -> Log:
        """The log that takes messages. Refused when it holds some that are not of this conversion."""
        if name in self.opened:
            return self.opened[name]
        there = name in self.volume.logs()
        log = self.copies.take(name, like)
        if there and not self.resumed and (held := log.state().messages):
            raise AlreadyExists(
                f"{self.path}: {name} holds {held:,} messages; convert into another log (--map) or a new directory"
            )
        self.opened[name] = log
        return log

    def close(self) -> None:
        """Everything on disk, and logs with the configuration they are to have."""
        self.copies.close()

    def reopen(self) -> Volume:
        """For the comparison, read-only."""
        layout = layout_named(self.note.to)
        return layout.open(self.building, OpenRequest(disk=self.disk, options=layout.copy_options()))

    def take_name(self) -> None:
        """It is whole: the name it was made for, and no note any more."""
        if self.building != self.path:
            take_name(self.disk, self.building, self.path)
        self.disk.remove_file(f"{self.path}{NOTE}")
        self.disk.sync_dir(self.path.rsplit("/", 1)[0] or "/")


def is_work_queue(log_options: Mapping[str, Any]) -> bool:
    """Whether logs of these options give every message once."""
    return log_options.get("retention") == "workqueue"


def open_copies(
    layout: str,
    path: str,
    *,
    create: bool,
    options: Mapping[str, Any] | None = None,
    disk: Disk | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Copies:
    """A directory for writing, without limits that would refuse or drop what is copied."""
    where = layout_named(layout)
    request = OpenRequest(
        mode="rw",
        create=create,
        options=where.options_for_copies(options or {}),
        disk=disk,
        clock=clock,
        maintenance=where.copies_age,
    )
    return where.copies(where.open(path, request), options)


def open_target(
    path: str,
    note: ConversionNote,
    disk: Disk | None,
    *,
    restart: bool,
    clock: Callable[[], int] = time.time_ns,
) -> ConversionTarget:
    """A new directory, an existing one, or the one of an interrupted conversion."""
    on = disk or Disk.real()
    target = absolute(path)
    _check_place(on, target, note.source)
    file = f"{target}{NOTE}"
    before = _read_note(on, file)
    building = f"{target}{SUFFIX}"
    if restart and before is not None:
        if before.fresh and on.entry(building) is not None:
            on.remove_dir_all(building)
        if not before.fresh:
            raise BadInput(
                f"{path}: an interrupted conversion wrote into it; --restart cannot tell what was there before. "
                "Put back its backup, remove the note beside it and start again"
            )
        on.remove_file(file)
        before = None
    if before is not None:
        if not before.same(note):
            raise AlreadyExists(
                f"{file}: another conversion to {path} was interrupted; repeat its command, or give --restart"
            )
        note = before
    else:
        note = msgspec.structs.replace(note, fresh=_is_fresh(on, target, building, note.to))
        on.replace_file(file, msgspec.json.encode(note))
    where = building if note.fresh else target
    there = on.entry(where) is not None
    copies = open_copies(
        note.to, where, options=note.options, create=note.fresh and not there, disk=disk, clock=clock
    )
    return ConversionTarget(target, where, note, before is not None, on, copies)


def _check_place(disk: Disk, target: str, source: str) -> None:
    if target == source or target.startswith(f"{source}/") or source.startswith(f"{target}/"):
        raise BadInput(f"{target}: the target must lie outside the source")
    parent = target.rsplit("/", 1)[0] or "/"
    if disk.entry(parent) is None:
        raise NotFound(f"{parent}: no such directory; make it first")


def _is_fresh(disk: Disk, target: str, building: str, to: str) -> bool:
    if disk.entry(building) is not None:
        raise AlreadyExists(f"{building} is there, and no conversion that made it; remove it and try again")
    entry = disk.entry(target)
    if entry is None or (entry.is_dir and not disk.list(target)):
        return True
    if not entry.is_dir:
        raise AlreadyExists(f"{target} is a file")
    try:
        found = detect(target, disk)
    except UnknownFormat:
        found = ""
    if found != to:
        what = f"a {layout_named(found).label} directory" if found else "not empty, and of no product"
        raise AlreadyExists(f"{target} is {what}; give a new directory, or one of {layout_named(to).label}")
    return False


def _read_note(disk: Disk, file: str) -> ConversionNote | None:
    if disk.entry(file) is None:
        return None
    try:
        return msgspec.json.decode(disk.read(file, 1 << 24), type=ConversionNote)
    except msgspec.DecodeError as problem:
        raise AlreadyExists(f"{file}: not readable ({problem}); remove it, and what was begun") from None
