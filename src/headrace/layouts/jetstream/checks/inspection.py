"""`inspect`: what is this directory? Product, era, streams, blocks, sizes, consumers, damage.

By default every block is read, so that damage and the overhead are facts. `quick` looks at metadata and indexes
only: on a store that was stopped cleanly that takes a moment, whatever its size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.config.meta_json import encode_config
from headrace.errors import Damaged, DiskFault, KeyNeeded
from headrace.layouts.base import ConsumerState, Damage, LogState
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.checks.inspector import BlockFacts, Survey
from headrace.layouts.jetstream.checks.plan import Plan, make_plan, run_plan
from headrace.layouts.jetstream.checks.report import StoreReport
from headrace.layouts.jetstream.checks.verification import StreamReport, report_on
from headrace.layouts.jetstream.recovery.rebuild import open_stream
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.layout import Look
from headrace.layouts.places import disk_at
from headrace.layouts.report import Extent, FileRow, LogReport, Picture, ReaderRow
from headrace.units import format_size, format_time_ns, plural

_DEFAULTS = {"retention": "limits", "discard": "old", "compression": "none", "num_replicas": 1}
_SHOWN = ("retention", "discard", "compression", "num_replicas", "max_msgs", "max_bytes", "max_age")
_SHOWN_MORE = ("max_msgs_per_subject", "max_msg_size", "mirror", "sources", "sealed", "allow_msg_ttl")
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
class BlockFileRow(FileRow):
    """The same among the files of a log."""

    number: int = 0
    encrypted: bool = False
    packed: bool = False
    plain_bytes: int = 0

    @classmethod
    def of(cls, row: BlockRow) -> BlockFileRow:
        """From what was found."""
        return cls(
            row.file,
            "block",
            row.file_bytes,
            row.live_messages,
            row.first_seq,
            row.last_seq + 1,
            row.first_time_ns,
            row.last_time_ns,
            row.live_bytes,
            row.newest,
            damage=row.damage,
            number=row.number,
            encrypted=row.encrypted,
            packed=bool(row.packed),
            plain_bytes=row.plain_bytes or row.file_bytes,
        )

    def label(self) -> str:
        return f"block {self.number:>4} "

    def picture(self) -> Picture:
        size = self.plain_bytes
        live = min(1.0, (self.live_bytes or 0) / size) if size else 0.0
        spans = [(each.offset / size, (each.offset + each.length) / size) for each in self.damage if size]
        return Picture(live, spans)

    def text(self) -> str:
        sequences = f"{self.first}..{(self.next or 0) - 1}" if self.messages else "no messages"
        return (
            f"{format_size(self.file_bytes):>10}  live {self.picture().live:>4.0%}  "
            f"{self.messages:>9,} messages  {sequences}"
        )

    def words(self) -> list[str]:
        flags = (("packed", self.packed), ("encrypted", self.encrypted))
        return [word for word, on in flags if on] + FileRow.words(self)


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
class ConsumerReaderRow(ReaderRow):
    """The same among the readers of a log."""

    consumer: ConsumerRow | None = None

    def text(self) -> str:
        row = self.consumer
        assert row is not None
        doubt = ", in doubt" if row.doubtful else ""
        return (
            f"{row.name}: delivered {row.delivered}, ack floor {row.ack_floor}, "
            f"{row.pending:,} pending, {row.redelivered:,} redelivered (acks: {row.ack_policy}){doubt}"
        )


@dataclass(slots=True)
class StreamView(LogReport):
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

    def extent(self) -> Extent:
        return Extent.of(self.state)

    @property
    def findings(self) -> list[Damage]:
        return self.damage

    def file_rows(self) -> Sequence[FileRow]:
        return [BlockFileRow.of(row) for row in self.blocks]

    def reader_rows(self) -> Sequence[ReaderRow]:
        return [
            ConsumerReaderRow(
                row.name, "consumer", row.delivered + 1, row.ack_floor or None, row.pending, consumer=row
            )
            for row in self.consumers
        ]

    @property
    def heading(self) -> str:
        flags = (("encrypted", self.encrypted), ("written by Headrace", self.headrace_has_written))
        return f"files of {self.written_by}{''.join(f', {flag}' for flag, on in flags if on)}"

    def about(self) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        if self.config is not None:
            lines.append(("subjects", ", ".join(self.config.get("subjects", [])) or "none"))
            lines.append(
                ("config", f"{_config_line(self.config)}, created {format_time_ns(self.created_ns)}")
            )
        if self.state is not None:
            lines.append(("messages", self.summary))
        cost = self.overhead
        if cost is not None and cost.messages:
            text = (
                f"{format_size(cost.record_bytes)} of records hold {format_size(cost.payload_bytes)} of payload: "
                f"{cost.per_message:.1f} bytes more per message; {format_size(cost.file_bytes)} on disk"
            )
            lines.append(("overhead", text))
        return lines

    def remarks(self) -> list[tuple[str, str]]:
        sizes = self.sidecars.values()
        text = f"{plural(len(sizes), 'file')} in headrace/, {format_size(sum(sizes))}"
        return [*([("sidecars", text)] if sizes else []), *LogReport.remarks(self)]

    @property
    def summary(self) -> str:
        state = self.state
        if state is None:
            return "nothing could be read"
        times = ""
        if state.messages:
            times = f", {format_time_ns(state.first_time_ns)} to {format_time_ns(state.last_time_ns)}"
        return (
            f"{state.messages:,} on {plural(state.num_subjects, 'subject')}, "
            f"sequences {state.first_seq}..{state.last_seq}, {state.num_deleted:,} removed between{times}"
        )


@dataclass(slots=True, repr=False)
class StoreView(StoreReport):
    """A JetStream store, stream by stream, with blocks and consumers."""

    streams: list[StreamView] = field(default_factory=lambda: [])

    @property
    def logs(self) -> Sequence[StreamView]:
        return self.streams

    @property
    def file_bytes(self) -> int:
        return sum(block.file_bytes for stream in self.streams for block in stream.blocks)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found = self.plain("streams", "complete", "writer")
        for view, each in zip(self.streams, found["streams"], strict=True):
            if view.overhead is not None:
                each["overhead"]["per_message"] = round(view.overhead.per_message, 2)
        return found


def inspect(request: Look) -> StoreView:
    """Look at a store, or one stream of it. Raises when it is none, or when a key is needed."""
    disk, progress = request.disk, request.progress
    plan = make_plan(request.path, stream=request.log, key=request.key, disk=disk)
    on, total = disk or disk_at(plan.path), plan.file_bytes
    report = None
    if not request.quick:
        facts = run_plan(plan, disk=disk, threads=request.threads, progress=progress, rounds=2)
        report = report_on(plan, facts, disk=disk, threads=request.threads)
    view = StoreView(plan.path)
    view.writer = next((found.writer for found in plan.streams.values() if found.writer), None)
    done = total
    for at, (name, found) in enumerate(plan.streams.items()):
        view.streams.append(_stream_view(on, plan, found, report.streams[at] if report is not None else None))
        done += sum(task.size_bytes for task in plan.tasks if task.log == name)
        if progress is not None:
            progress(done, 2 * total)
    return view


def _config_line(config: dict[str, Any]) -> str:
    words: list[str] = []
    for name in (*_SHOWN, *_SHOWN_MORE):
        value = config.get(name)
        if name == "retention" or value not in (None, "", 0, -1, False, [], {}, _DEFAULTS.get(name)):
            words.append(f"{name} {_readable(name, value)}")
    return ", ".join(words)


def _readable(name: str, value: Any) -> str:
    if name == "max_age" and isinstance(value, int):
        return f"{value / 1e9:g} s"
    if name == "max_bytes" and isinstance(value, int):
        return format_size(value)
    if isinstance(value, dict):
        return str(value.get("name", "yes"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return str(len(value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType]


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
    else:
        found_now = (each for each in store.damage() if each.kind != "index")
        view.damage += [each for each in found_now if each not in view.damage]
    return view


def _rows(store: FileStreamStore, found: Survey, report: StreamReport | None) -> list[BlockRow]:
    facts: dict[int, BlockFacts] = {} if report is None else {block.number: block for block in report.blocks}
    files = {block.number: block for block in found.blocks}
    rows: list[BlockRow] = []
    for block in store.log.blocks():
        number, msgs = block.number, block.messages
        file, fact = files.get(number), facts.get(number)
        row = BlockRow(
            number,
            file.path if file is not None else f"{store.msgs_dir}/{number}.blk",
            block.file_bytes,
            block.first_seq,
            block.last_seq,
            block.first_time_ns if msgs else None,
            block.last_time_ns if msgs else None,
            msgs,
            block.bytes,
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
        *_, data = made["data"]
        *_, texts = made["subject"]
        payload, subjects = payload + len(data), subjects + len(texts)
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
