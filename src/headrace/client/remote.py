"""A server's streams through the storage interface: a volume of logs whose parts can be read anywhere.

    ServerVolume(access).open("ORDERS").scan_tasks() → ServerTask: a range of sequences, picklable, with the access

A worker keeps its connections: one per access and process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.client._kernels import Batch
from headrace.client.access import Access
from headrace.client.connection import Connection
from headrace.client.gets import get_range
from headrace.client.pulling import pull_range
from headrace.errors import BadInput, NotFound, ServerRefused
from headrace.layouts.base import Damage, Log, LogState, Predicate, ScanTask, Ticket, Volume
from headrace.units import format_time_ns, parse_time_ns

if TYPE_CHECKING:
    import pyarrow as pa

TASK_BYTES = 256 << 10
TASKS_MAX = 4096
NOT_FOUND = (10059, 404)
_connections: dict[tuple[int, Access], Connection] = {}


def shared_connection(access: Access, *, patient: bool = False) -> Connection:
    """The connection of this process; made anew after a fork."""
    key = (os.getpid(), access)
    if key not in _connections:
        _connections[key] = Connection(access, "headrace-reader", patient=patient)
    return _connections[key]


@dataclass(frozen=True, slots=True)
class ServerTask(ScanTask):
    """A range of a server's stream."""

    access: Access
    log: str
    first: int
    next: int
    size_bytes: int
    consumed: bool = True
    """By a consumer; where one would change the stream (work queues, interest), message by message."""
    bodies: bool = True

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        want = predicate or Predicate()
        first = max(self.first, want.first if want.first is not None else 0)
        following = min(self.next, want.next if want.next is not None else self.next)
        connection = shared_connection(self.access, patient=True)  # planned by one that was connected
        pull = pull_range if self.consumed else get_range
        for batch in pull(connection, self.log, first, following, subjects=want.subjects, bodies=self.bodies):
            kept = batch.filter(None, None, want.since_ns, want.until_ns, [])
            if len(kept):
                yield kept

    def showing(self, columns: Sequence[str]) -> ScanTask:
        """Without data and headers the server need not send them."""
        return self if {"data", "headers"} & set(columns) else replace(self, bodies=False)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        damage: list[Damage] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        task = self if columns is None else self.showing(columns)
        yield from ScanTask.scan(task, columns, predicate, damage)

    def joined(self, other: ScanTask) -> ScanTask | None:
        """One reader for neighbours: a consumer costs a few milliseconds."""
        if isinstance(other, ServerTask) and (other.log, other.first) == (self.log, self.next):
            return replace(self, next=other.next, size_bytes=self.size_bytes + other.size_bytes)
        return None


def _lost(lost: dict[str, Any] | None) -> int:
    """What a server says about damage."""
    return len(lost["msgs"]) if lost and lost.get("msgs") else 0


class ReadOnlyLog(Log):
    """What is only read here; it is written through a server."""

    def _refused(self) -> BadInput:
        return BadInput(f"stream {self.name} of a server: publish to it or use its API; here it is only read")

    def append(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        raise self._refused()

    def remove(self, positions: Sequence[int]) -> Ticket:
        raise self._refused()

    def drop_front(self, seq: int) -> int:
        raise self._refused()

    def close(self) -> None:
        """Connections are the volume's."""


class ServerLog(ReadOnlyLog):
    """One stream of a server."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self.name = connection, name
        try:
            self._info = connection.ask(f"STREAM.INFO.{name}")
        except ServerRefused as refusal:
            if refusal.code in NOT_FOUND:
                raise NotFound(f"{connection.access.place}: no stream {name!r}") from None
            raise

    @property
    def incarnation(self) -> str:
        return str(self._info.get("created", ""))

    @property
    def config(self) -> dict[str, Any]:
        """As the server gives it."""
        return self._info["config"]

    def state(self) -> LogState:
        """As of now."""
        self._info = self._connection.ask(f"STREAM.INFO.{self.name}")
        state = self._info["state"]
        empty = not state["messages"]
        return LogState(
            messages=state["messages"],
            bytes=state["bytes"],
            # An emptied stream goes on behind its last sequence.
            first_seq=state["first_seq"] if not empty else state["last_seq"] + 1,
            last_seq=state["last_seq"],
            first_time_ns=None if empty else parse_time_ns(state["first_ts"]),
            last_time_ns=None if empty else parse_time_ns(state["last_ts"]),
            num_subjects=state.get("num_subjects", 0),
            num_deleted=state.get("num_deleted", 0),
            consumers=state.get("consumer_count", 0),
            lost_messages=_lost(state.get("lost")),
        )

    def seq_from_time(self, time_ns: int) -> int:
        """A consumer that begins at that time says where it begins."""
        state = self.state()
        if state.messages == 0 or (state.first_time_ns is not None and time_ns <= state.first_time_ns):
            return state.first_seq
        if state.last_time_ns is not None and time_ns > state.last_time_ns:
            return state.last_seq + 1
        low, high = state.first_seq, state.last_seq
        while low < high:  # as few questions as a search needs; every stream can answer them
            middle = (low + high) // 2
            found = self._time_at(middle)
            if found is not None and found[1] < time_ns:
                low = found[0] + 1
            else:
                high = middle
        return low

    def _time_at(self, sequence: int) -> tuple[int, int] | None:
        """The first message at or behind a sequence, and its time."""
        try:
            body = {"seq": sequence, "next_by_subj": ">"}
            message = self._connection.ask(f"STREAM.MSG.GET.{self.name}", body)["message"]
        except ServerRefused:
            return None
        return int(message["seq"]), parse_time_ns(str(message["time"]))

    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        subjects = () if filter is None else (filter,)
        state = self.state()
        task = self._task(max(first, state.first_seq), state.last_seq + 1, state)
        for batch in task.batches(Predicate(subjects=subjects)):
            return batch.slice(0, max_msgs)
        return Batch.build(subjects=[], data=[])

    def _task(self, first: int, following: int, state: LogState) -> ServerTask:
        each = state.bytes / max(state.messages, 1)
        size = max(math.ceil((following - first) * each), 1)
        consumed = self.config.get("retention", "limits") == "limits"
        return ServerTask(self._connection.access, self.name, first, following, size, consumed)

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        want, state = predicate or Predicate(), self.state()
        first = max(state.first_seq, want.first if want.first is not None else 0)
        following = min(state.last_seq + 1, want.next if want.next is not None else state.last_seq + 1)
        if want.since_ns is not None and first < following:
            first = max(first, self.seq_from_time(want.since_ns))
        if want.until_ns is not None and first < following:
            following = min(following, self.seq_from_time(want.until_ns))
        if not state.messages or first >= following:
            return []
        each = max(state.bytes // state.messages, 1)
        # Small pieces: whoever plans joins neighbours again, up to the size it wants.
        step = max(TASK_BYTES // each, -(-(following - first) // TASKS_MAX), 1)
        return [self._task(at, min(at + step, following), state) for at in range(first, following, step)]

    def damage(self) -> list[Damage]:
        """A server's own findings are in its health and stream info, not here."""
        return []

    def __repr__(self) -> str:
        return f"<ServerLog {self.name} at {self._connection.access.place}, made {format_time_ns(parse_time_ns(self.incarnation))}>"


class ServerVolume(Volume):
    """The streams of an account."""

    layout = "server"

    def __init__(self, access: Access) -> None:
        self.path = access.place
        self.connection = shared_connection(access)

    def logs(self) -> list[str]:
        names: list[str] = []
        while True:
            page = self.connection.ask("STREAM.NAMES", {"offset": len(names)})
            found: list[str] = page.get("streams") or []
            names += found
            if not found or len(names) >= page.get("total", 0):
                return sorted(names)

    def open(self, name: str) -> ServerLog:
        return ServerLog(self.connection, name)

    def create(self, name: str, **options: Any) -> ServerLog:
        """A stream with the API's own field names; an equal one is taken as it is."""
        self.connection.ask(f"STREAM.CREATE.{name}", {"name": name, **options})
        return self.open(name)

    def delete(self, name: str) -> None:
        self.connection.ask(f"STREAM.DELETE.{name}")

    def commit(self, tickets: Iterable[Ticket]) -> None:
        """Nothing is written here."""

    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def damage(self) -> list[Damage]:
        return []

    def close(self) -> None:
        """The connection is kept for the next one in this process."""
