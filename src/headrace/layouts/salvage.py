"""`salvage`: all that is sound into a new directory of the same product, and a list of what is not, byte range by byte range.

    source   only read
    OUT      must not exist, or be an empty directory. It is built beside, as OUT.incomplete, and gets its name
             only when everything is on disk and verified: a directory called OUT is whole

Messages keep position, time, key and headers; holes stay holes. What is known of readers is carried over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace._core import Disk
from headrace.errors import AlreadyExists, BadInput, HeadraceError, NotFound
from headrace.layouts.base import Damage, Log, Volume
from headrace.layouts.places import absolute, is_remote, only_read
from headrace.layouts.plain import plain
from headrace.layouts.unread import Unread

if TYPE_CHECKING:
    from headrace.layouts.layout import Layout, Look

SUFFIX = ".incomplete"
COMMIT_EVERY_BYTES = 64 << 20


@dataclass(slots=True)
class SavedLog:
    """What became of one log."""

    name: str
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumers: int = 0
    config_guessed: bool = False
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])


@dataclass(slots=True)
class SalvageReport:
    """What was saved, and what was not sound in the source."""

    path: str
    out: str
    streams: list[SavedLog]
    """Every log."""
    copy_sound: bool = False
    unread: list[Unread] = field(default_factory=lambda: [])
    """What the source holds and is not read."""

    @property
    def damage(self) -> list[Damage]:
        return [each for stream in self.streams for each in stream.damage]

    @property
    def problems(self) -> list[str]:
        return [f"{stream.name}: {problem}" for stream in self.streams for problem in stream.problems]

    @property
    def messages(self) -> int:
        return sum(stream.messages for stream in self.streams)

    @property
    def complete(self) -> bool:
        """Nothing in the source was unsound, unreadable or left out."""
        return not self.damage and not self.problems and not any(it.may_hold_messages for it in self.unread)

    @property
    def exit_code(self) -> int:
        """0 all was sound, 1 something was left behind, 2 the copy is not sound."""
        return 2 if not self.copy_sound else 0 if self.complete else 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**plain(self), "messages": self.messages, "complete": self.complete}


def salvage_by_copy(layout: Layout, request: Look, out: str) -> SalvageReport:
    """Log by log, from one volume into the other."""
    from headrace.layouts.layout import OpenRequest

    disk = request.disk
    on = disk or Disk.real()
    target = check_target(on, request.path, out)
    checked = layout.verify(
        request.path, log=request.log, disk=disk, key=request.key, threads=request.threads
    )
    report = SalvageReport(checked.path, target, [], unread=checked.unread)
    total, done = max(checked.file_bytes, 1), 0

    def fill(building: str) -> None:
        nonlocal done
        into = OpenRequest(options=layout.copy_options(), disk=disk)
        with (
            layout.open(request.path, OpenRequest(disk=disk, key=request.key)) as source,
            layout.create(building, into) as copy,
        ):
            for seen in checked.logs:
                saved = SavedLog(
                    seen.name, damage=seen.findings, notes=list(seen.notes), problems=list(seen.problems)
                )
                report.streams.append(saved)
                try:
                    _copy(layout, source, copy, saved)
                except HeadraceError as problem:
                    saved.problems.append(str(problem))
                done += sum(row.file_bytes for row in seen.file_rows())
                if request.progress is not None:
                    request.progress(min(done, total), total)
        shared = checked.shared()
        if shared is not None and not shared.sound:
            report.streams.append(SavedLog(shared.name, damage=shared.findings, problems=shared.problems))
        report.copy_sound = layout.verify(building, disk=disk, threads=request.threads).sound

    build_beside(on, target, fill)
    return report


def build_beside(disk: Disk, target: str, fill: Callable[[str], None]) -> None:
    """Have a directory made under another name; it gets its own when `fill` returns, and goes when it fails."""
    building = f"{target}{SUFFIX}"
    if disk.entry(building) is not None:
        raise AlreadyExists(
            f"{building} is there: an earlier salvage was interrupted; remove it and try again"
        )
    try:
        fill(building)
        take_name(disk, building, target)
    except BaseException:
        if disk.entry(building) is not None:
            disk.remove_dir_all(building)
        raise


def check_target(disk: Disk, path: str, out: str) -> str:
    """Where the copy goes; BadInput, AlreadyExists or NotFound where it cannot."""
    source, target = absolute(path), absolute(only_read(out, "a salvaged copy"))
    if is_remote(source):
        raise BadInput(f"{source}: salvage works on a local directory; copy it, then salvage the copy")
    if target == source or target.startswith(f"{source}/") or source.startswith(f"{target}/"):
        raise BadInput(f"{out}: the new store must lie outside the damaged one")
    entry = disk.entry(target)
    if entry is not None and (not entry.is_dir or disk.list(target)):
        raise AlreadyExists(f"{out} is there and not empty; give a directory that does not exist yet")
    parent = target.rsplit("/", 1)[0] or "/"
    if disk.entry(parent) is None:
        raise NotFound(f"{parent}: no such directory; make it first")
    return target


def take_name(disk: Disk, building: str, target: str) -> None:
    """What was built beside gets its name."""
    if disk.entry(target) is not None:
        disk.remove_dir_all(target)
    disk.rename(building, target)
    disk.sync_dir(target.rsplit("/", 1)[0] or "/")


def _copy(layout: Layout, source: Volume, copy: Volume, saved: SavedLog) -> None:
    old, new = source.open(saved.name), copy.create(saved.name)
    saved.messages = copy_messages(old, copy, new)
    state = new.state()
    saved.first_seq, saved.last_seq = state.first_seq, state.last_seq
    saved.consumers = layout.carry_over(source, copy, saved.name)


def copy_messages(source: Log, volume: Volume, target: Log) -> int:
    """Every message with its position; durable when this returns."""
    copied = waiting = 0
    last = None
    for batch in source.batches():
        last = target.append(batch, keep_positions=True)
        copied += len(batch)
        waiting += batch.payload_bytes
        if waiting >= COMMIT_EVERY_BYTES:
            volume.commit([last])
            waiting = 0
    if last is not None:
        volume.commit([last])
    return copied
