"""`salvage`: all that is sound into a new store, and a list of what is not, byte range by byte range.

    source   only read; opened without its metadata where that is damaged
    OUT      must not exist, or be an empty directory. It is built beside, as OUT.incomplete, and gets its name
             only when everything is on disk and verified: a store called OUT is whole

Messages keep sequence, time and headers; holes stay holes. Consumers keep their position, streams their
configuration. The copy is in the current form (nats-server 2.10 and later) and not encrypted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from headrace._core import Disk
from headrace.errors import AlreadyExists, BadInput, NotFound
from headrace.layouts.base import Damage
from headrace.layouts.jetstream.audit import Indexes
from headrace.layouts.jetstream.inspector import Survey
from headrace.layouts.jetstream.rebuild import (
    copy_consumers,
    copy_stream,
    guessed_config,
    is_unlimited,
    open_stream,
    settle,
    unmoved_consumers,
)
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.layouts.places import is_remote, only_read
from headrace.ops.plain import plain
from headrace.ops.plan import THREADS, Progress, absolute, make_plan, run_plan
from headrace.ops.verify import StreamReport, VerifyReport, report_on, verify

SUFFIX = ".incomplete"


@dataclass(slots=True)
class SavedStream:
    """What became of one stream."""

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
    streams: list[SavedStream]
    copy_sound: bool = False

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
        """Nothing in the source was unsound or unreadable."""
        return not self.damage and not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**plain(self), "messages": self.messages, "complete": self.complete}


def salvage(
    path: str,
    out: str,
    *,
    stream: str | None = None,
    key: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> SalvageReport:
    """Copy what is sound at `path` into a new store at `out`. The source is only read."""
    on = disk or Disk.real()
    target = check_target(on, path, out)
    plan = make_plan(path, stream=stream, key=key, disk=disk)
    total = 2 * plan.file_bytes
    facts = run_plan(plan, disk=disk, threads=threads, progress=progress, rounds=2)
    checked = report_on(plan, facts, disk=disk, threads=threads)
    building = f"{target}{SUFFIX}"
    if on.entry(building) is not None:
        raise AlreadyExists(
            f"{building} is there: an earlier salvage was interrupted; remove it and try again"
        )
    report = SalvageReport(plan.path, target, [])
    try:
        done = plan.file_bytes
        for found, seen in zip(plan.streams.values(), checked.streams, strict=True):
            report.streams.append(_save_stream(on, found, plan.indexes[found.name], seen, building))
            done += seen.file_bytes
            if progress is not None:
                progress(done, total)
        if not report.streams:
            JetStreamVolume(building, mode="rw", create=True, disk=disk, maintenance=False).close()
        report.copy_sound = _verified(building, disk, threads)
        take_name(on, building, target)
    except BaseException:
        if on.entry(building) is not None:
            on.remove_dir_all(building)
        raise
    return report


def check_target(disk: Disk, path: str, out: str) -> str:
    source, target = absolute(path), absolute(only_read(out, "a salvaged copy"))
    if is_remote(source):
        raise BadInput(f"{source}: salvage works on a local directory; copy it, then salvage the copy")
    if target == source or target.startswith(f"{source}/") or source.startswith(f"{target}/"):
        raise BadInput(f"{out}: the new store must lie outside the damaged one")
    entry = disk.entry(target)
    if entry is not None and (not entry[0] or disk.list(target)):
        raise AlreadyExists(f"{out} is there and not empty; give a directory that does not exist yet")
    parent = target.rsplit("/", 1)[0] or "/"
    if disk.entry(parent) is None:
        raise NotFound(f"{parent}: no such directory; make it first")
    return target


def _save_stream(
    disk: Disk, found: Survey, indexes: Indexes, seen: StreamReport, building: str
) -> SavedStream:
    saved = SavedStream(
        found.name, damage=list(seen.damage), notes=list(seen.notes), problems=list(seen.problems)
    )
    source = open_stream(disk, found, indexes, seen.unreadable)
    config = found.config
    if config is None:
        saved.config_guessed, config = True, guessed_config(source)
        shown = ", ".join(config.subjects[:5]) + ("…" if len(config.subjects) > 5 else "")
        saved.notes.append(
            f"its configuration was lost; made anew from the messages: subjects {shown}, no limits"
        )
    if found.encrypted:
        saved.notes.append("the copy is not encrypted")
    if not is_unlimited(config):
        saved.notes.append(
            "its limits apply again when the copy is opened for writing; old messages may expire then"
        )
    # Skipped sequences get the time of the last message, not of the salvage.
    now_ns = source.fast_state().last_time_ns or time.time_ns()
    volume = JetStreamVolume(
        building, mode="rw", create=True, disk=disk, maintenance=False, clock=lambda: now_ns
    )
    try:
        store = copy_stream(source, volume, found.name, config)
        saved.problems += [f"consumer {name}: {why}" for name, why in copy_consumers(source, store).items()]
        _sum_up(saved, store)
    finally:
        volume.close()
    settle(disk, store.stream_dir, config, found.created_ns or 0, unmoved_consumers(disk, source))
    return saved


def _sum_up(saved: SavedStream, store: FileStreamStore) -> None:
    state = store.fast_state()
    saved.messages, saved.consumers = state.messages, state.consumers
    saved.first_seq, saved.last_seq = state.first_seq, state.last_seq


def _verified(building: str, disk: Disk | None, threads: int) -> bool:
    report: VerifyReport = verify(building, disk=disk, threads=threads)
    return report.sound


def take_name(disk: Disk, building: str, target: str) -> None:
    if disk.entry(target) is not None:
        disk.remove_dir_all(target)
    disk.rename(building, target)
    disk.sync_dir(target.rsplit("/", 1)[0] or "/")
