"""`inspect`: what is this directory? Product, era, streams, blocks, sizes, consumers, damage.

By default every block is read, so that damage and the overhead are facts. `quick` looks at metadata and indexes
only: on a store that was stopped cleanly that takes a moment, whatever its size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from headrace._core import Disk
from headrace.errors import Damaged, DiskFault, KeyNeeded
from headrace.layouts.base import ConsumerState, Damage, LogState
from headrace.layouts.jetstream.config_json import encode_config
from headrace.layouts.jetstream.inspector import BlockFacts, Survey
from headrace.layouts.jetstream.rebuild import open_stream
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.places import disk_at
from headrace.ops.plain import plain
from headrace.ops.plan import PRODUCTS, THREADS, Plan, Progress, make_plan, run_plan
from headrace.ops.verify import StreamReport, report_on

ERAS = {
    "2.6": "nats-server 2.2 to 2.9 (.idx)",
    "2.9": "nats-server 2.6 to 2.9 (.idx, .fss)",
    "2.15": "nats-server 2.10 or later (index.db)",
}


@dataclass(slots=True)
class BlockRow:
    """One block for people. `live` counts messages that are still there."""

    number: int
    file: str
    file_bytes: int
    first_seq: int
    last_seq: int
    first_time_ns: int | None
    last_time_ns: int | None
    live_messages: int
    live_bytes: int
    newest: bool
    encrypted: bool
    packed: bool | None = None
    """None: not looked at."""
    plain_bytes: int | None = None
    guarded: bool = False
    damage: list[Damage] = field(default_factory=lambda: [])


@dataclass(slots=True)
class Overhead:
    """What storing costs: bytes of live records against the payload in them."""

    messages: int
    record_bytes: int
    payload_bytes: int
    subject_bytes: int
    header_bytes: int
    file_bytes: int

    @property
    def per_message(self) -> float:
        """Bytes of a record beyond its payload, on average."""
        return (self.record_bytes - self.payload_bytes) / self.messages if self.messages else 0.0


@dataclass(slots=True)
class ConsumerRow:
    """Where a consumer stands: sequences of the stream."""

    name: str
    delivered: int
    delivered_consumer: int
    ack_floor: int
    ack_floor_consumer: int
    pending: int
    redelivered: int
    ack_policy: str
    filters: list[str]
    doubtful: bool = False


@dataclass(slots=True)
class StreamView:
    """One stream."""

    name: str
    directory: str
    era: str
    written_by: str
    headrace_has_written: bool
    encrypted: bool
    created_ns: int | None
    config: dict[str, Any] | None
    """None: the metadata cannot be relied on."""
    state: LogState | None = None
    blocks: list[BlockRow] = field(default_factory=lambda: [])
    overhead: Overhead | None = None
    consumers: list[ConsumerRow] = field(default_factory=lambda: [])
    sidecars: dict[str, int] = field(default_factory=lambda: {})
    damage: list[Damage] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    problems: list[str] = field(default_factory=lambda: [])


@dataclass(slots=True)
class StoreView:
    """A directory."""

    path: str
    layout: str
    product: str
    complete: bool
    """False after a quick look: blocks were not read."""
    streams: list[StreamView]
    writer: str | None = None

    @property
    def damage(self) -> list[Damage]:
        return [each for stream in self.streams for each in stream.damage]

    @property
    def problems(self) -> list[str]:
        return [f"{stream.name}: {problem}" for stream in self.streams for problem in stream.problems]

    @property
    def sound(self) -> bool:
        return not self.damage and not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found = plain(self)
        found["sound"] = self.sound
        for view, each in zip(self.streams, found["streams"], strict=True):
            if view.overhead is not None:
                each["overhead"]["per_message"] = round(view.overhead.per_message, 2)
        return found


def inspect(
    path: str,
    *,
    stream: str | None = None,
    key: str | None = None,
    quick: bool = False,
    disk: Disk | None = None,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> StoreView:
    """Look at a store, or one stream of it. Raises when it is none, or when a key is needed."""
    plan = make_plan(path, stream=stream, key=key, disk=disk)
    on, total = disk or disk_at(plan.path), plan.file_bytes
    report = None
    if not quick:
        facts = run_plan(plan, disk=disk, threads=threads, progress=progress, rounds=2)
        report = report_on(plan, facts, disk=disk, threads=threads)
    view = StoreView(plan.path, plan.layout, PRODUCTS[plan.layout], not quick, [])
    view.writer = next((found.writer for found in plan.streams.values() if found.writer), None)
    done = total
    for at, (name, found) in enumerate(plan.streams.items()):
        view.streams.append(_stream_view(on, plan, found, report.streams[at] if report is not None else None))
        done += sum(task.file_bytes for task in plan.tasks if task.log == name)
        if progress is not None:
            progress(done, 2 * total)
    return view


def _stream_view(disk: Disk, plan: Plan, found: Survey, report: StreamReport | None) -> StreamView:
    view = StreamView(
        found.name,
        found.directory,
        found.era,
        ERAS[found.era],
        found.ours,
        found.encrypted,
        found.created_ns,
        config=None if found.config is None else json.loads(encode_config(found.config)),
        sidecars=found.sidecars,
        damage=list(report.damage if report is not None else found.damage),
        notes=list(report.notes if report is not None else found.notes),
        problems=list(report.problems if report is not None else []),
    )
    if found.config is None:
        view.notes.append("the metadata cannot be relied on; what follows is from the blocks alone")
    try:
        unreadable = report.unreadable if report is not None else frozenset[int]()
        store = open_stream(disk, found, plan.indexes[found.name], unreadable)
    except KeyNeeded:
        raise
    except (Damaged, DiskFault, LookupError) as problem:
        if str(problem) not in view.problems:
            view.problems.append(str(problem))
        return view
    view.state = store.fast_state()
    view.consumers = _consumers(store)
    view.blocks = _rows(store, found, report)
    if report is not None:
        view.overhead = _overhead(store)
    return view


def _rows(store: FileStreamStore, found: Survey, report: StreamReport | None) -> list[BlockRow]:
    facts: dict[int, BlockFacts] = {} if report is None else {block.number: block for block in report.blocks}
    files = {block.number: block for block in found.blocks}
    rows: list[BlockRow] = []
    for number, first, last, msgs, size, file_bytes, first_time, last_time, _ in store.log.blocks():
        file, fact = files.get(number), facts.get(number)
        row = BlockRow(
            number,
            file.path if file is not None else f"{store.msgs_dir}/{number}.blk",
            file_bytes,
            first,
            last,
            first_time if msgs else None,
            last_time if msgs else None,
            msgs,
            size,
            newest=file is not None and file.newest,
            encrypted=file is not None and file.cipher is not None,
            guarded=file is not None and file.guard is not None,
        )
        if fact is not None:
            row.packed, row.plain_bytes, row.damage = fact.packed, fact.plain_bytes, list(fact.damage)
        rows.append(row)
    return rows


def _overhead(store: FileStreamStore) -> Overhead:
    state = store.fast_state()
    payload = subjects = everything = 0
    for batch in store.batches():
        made = batch.arrow_columns(["subject", "data"])
        payload += len(made["data"][-1])
        subjects += len(made["subject"][-1])
        everything += batch.payload_bytes
    on_disk, _ = store.utilization()
    return Overhead(state.messages, state.bytes, payload, subjects, everything - payload - subjects, on_disk)


def _consumers(store: FileStreamStore) -> list[ConsumerRow]:
    doubtful = set(store.consumers.doubtful())
    rows: list[ConsumerRow] = []
    for name in store.consumers.names():
        consumer = store.consumers.get(name)
        state: ConsumerState = consumer.state()
        rows.append(
            ConsumerRow(
                name,
                state.delivered.stream,
                state.delivered.consumer,
                state.ack_floor.stream,
                state.ack_floor.consumer,
                len(state.pending),
                len(state.redelivered),
                consumer.config.ack_policy,
                list(consumer.config.filters),
                name in doubtful,
            )
        )
    return rows
