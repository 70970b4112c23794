"""`verify` in pieces that can be spread: what is to be checked, as tasks that can be pickled, and one row per file.

    plan_checks(path, logs)   → CheckTask …      names and sizes only
    run_check(task)           → CheckRow …       reads the task's files and nothing else; runs anywhere

JetStream: a task per block, and one per stream for its indexes, metadata and consumers, which goes over the blocks again to
compare. Kafka and NATS Streaming: a task per log. RocketMQ and RabbitMQ, whose logs share files: one for the directory.
Together the rows say what `headrace verify` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.layouts.base import Damage
from headrace.layouts.room import FileRow, LogView
from headrace.ops.plan import BlockTask, make_plan, room_at, run_plan, run_task
from headrace.ops.verify import report_on

_BY_LOG = ("kafka", "nats_streaming")


@dataclass(frozen=True, slots=True)
class CheckTask:
    """A piece of the work: one block, or else a log or (None) all of them."""

    path: str
    log: str | None
    size_bytes: int
    block: BlockTask | None = None
    key: str | None = field(default=None, repr=False)


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


def plan_checks(path: str, logs: Sequence[str] | None = None, key: str | None = None) -> list[CheckTask]:
    """Everything there is to check at `path`, of these logs if some are named."""
    room = room_at(path)
    if room is None:
        plan = make_plan(path, key=key)
        tasks = [
            CheckTask(path, task.log, task.file_bytes, task, key)
            for task in plan.tasks
            if logs is None or task.log in logs
        ]
        sizes = {name: sum(each.file_bytes for each in found.blocks) for name, found in plan.streams.items()}
        streams = [name for name in plan.streams if logs is None or name in logs]
        return [*(CheckTask(path, name, sizes[name], key=key) for name in streams), *tasks]
    view = room.inspect(path, quick=True, key=key)
    sizes = {log.name: sum(row.file_bytes for row in log.files) for log in view.logs}
    if room.layout in _BY_LOG:
        return [CheckTask(path, name, sizes[name], key=key) for name in sizes if logs is None or name in logs]
    only = logs[0] if logs is not None and len(logs) == 1 else None
    return [CheckTask(path, only, view.file_bytes, key=key)]


def run_check(task: CheckTask) -> Iterator[CheckRow]:
    """Check one piece."""
    if task.block is not None:
        facts = run_task(task.block)
        following = None if facts.last_seq is None else facts.last_seq + 1
        yield CheckRow(
            *(task.block.log, facts.file, "block", facts.first_seq, following, facts.messages),
            *(facts.file_bytes, facts.damage, facts.problem),
        )
        return
    room = room_at(task.path)
    if room is None:
        yield from _stream(task)
        return
    view = room.verify(task.path, log=task.log, key=task.key)
    for log in view.logs:
        yield from _log(log)
    if task.log is None or room.layout not in _BY_LOG:
        yield from (_file("", row) for row in view.files)
        yield CheckRow(
            *("", view.path, "directory", None, None, 0, 0, tuple(view.damage)), _joined(view.problems)
        )


def _stream(task: CheckTask) -> Iterator[CheckRow]:
    """The indexes, metadata and consumers of one stream, compared with its blocks."""
    plan = make_plan(task.path, stream=task.log, key=task.key)
    report = report_on(plan, run_plan(plan, threads=1), threads=1)
    for stream in report.streams:
        of_blocks = {each for block in stream.blocks for each in block.damage}
        unread = {block.problem for block in stream.blocks}
        following = None if stream.last_seq is None else stream.last_seq + 1
        yield CheckRow(
            *(stream.name, stream.directory, "stream", stream.first_seq, following),
            *(stream.messages, stream.file_bytes),
            tuple(each for each in stream.damage if each not in of_blocks),
            _joined([each for each in stream.problems if each not in unread]),
        )


def _log(log: LogView) -> Iterator[CheckRow]:
    told = {each for row in log.files for each in row.damage}
    yield from (_file(log.name, row) for row in log.files)
    state = log.state
    yield CheckRow(
        *(log.name, log.directory, "log"),
        *(
            (None, None, 0, 0)
            if state is None
            else (state.first_seq, state.last_seq + 1, state.messages, state.bytes)
        ),
        tuple(each for each in log.damage if each not in told),
        _joined(log.problems),
    )


def _file(log: str, row: FileRow) -> CheckRow:
    return CheckRow(
        log, row.file, row.kind, row.first, row.next, row.messages, row.file_bytes, tuple(row.damage)
    )


def _joined(problems: Sequence[str]) -> str | None:
    return "; ".join(problems) or None
