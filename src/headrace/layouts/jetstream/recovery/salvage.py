"""`salvage` for a JetStream store: opened without its metadata where that is damaged.

Messages keep sequence, time and headers; holes stay holes. Consumers keep their position, streams their
configuration. The copy is in the current form (nats-server 2.10 and later) and not encrypted.
"""

from __future__ import annotations

import time

from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.checks.audit import Indexes
from headrace.layouts.jetstream.checks.inspector import Survey
from headrace.layouts.jetstream.checks.plan import make_plan, run_plan
from headrace.layouts.jetstream.checks.verification import StreamReport, report_on, verify
from headrace.layouts.jetstream.recovery.rebuild import (
    copy_consumers,
    copy_stream,
    guessed_config,
    is_unlimited,
    open_stream,
    unmoved_consumers,
    write_final_meta,
)
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.layouts.layout import Look
from headrace.layouts.salvage import SalvageReport, SavedLog, build_beside, check_target
from headrace.layouts.unread import Unread


def salvage(request: Look, out: str, unread: list[Unread]) -> SalvageReport:
    """Copy what is sound into a new store at `out`. The source is only read."""
    disk, progress, threads = request.disk, request.progress, request.threads
    on = disk or Disk.real()
    target = check_target(on, request.path, out)
    plan = make_plan(request.path, stream=request.log, key=request.key, disk=disk)
    total = 2 * plan.file_bytes
    facts = run_plan(plan, disk=disk, threads=threads, progress=progress, rounds=2)
    checked = report_on(plan, facts, disk=disk, threads=threads)
    report = SalvageReport(plan.path, target, [], unread=unread)

    def fill(building: str) -> None:
        done = plan.file_bytes
        for found, seen in zip(plan.streams.values(), checked.streams, strict=True):
            report.streams.append(_save_stream(on, found, plan.indexes[found.name], seen, building))
            done += seen.file_bytes
            if progress is not None:
                progress(done, total)
        if not report.streams:
            JetStreamVolume(building, mode="rw", create=True, disk=disk, maintenance=False).close()
        report.copy_sound = verify(Look(path=building, disk=disk, full=True, threads=threads)).sound

    build_beside(on, target, fill)
    return report


def _save_stream(disk: Disk, found: Survey, indexes: Indexes, seen: StreamReport, building: str) -> SavedLog:
    saved = SavedLog(
        found.name, damage=list(seen.damage), notes=list(seen.notes), problems=list(seen.problems)
    )
    source = open_stream(disk, found, indexes, seen.unreadable, ages=False)
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
    write_final_meta(disk, store.stream_dir, config, found.created_ns or 0, unmoved_consumers(disk, source))
    return saved


def _sum_up(saved: SavedLog, store: FileStreamStore) -> None:
    state = store.fast_state()
    saved.messages, saved.consumers = state.messages, state.consumers
    saved.first_seq, saved.last_seq = state.first_seq, state.last_seq
