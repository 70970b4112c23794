"""Files and a server as one log: what the files hold is read from them, what comes after from the server.

    files    first ─────────────── next
    server          first ──────────────────────── next
    together first ─────────────── │ ───────────── next      one sequence, no seam: offsets are the stream's

Both must be the same stream: a copy of another incarnation is refused. Below the files' end the files are the truth, so
that what retention has taken from the server is still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.client import ServerLog
from headrace.client.remote import ReadOnlyLog
from headrace.errors import BadInput
from headrace.layouts.base import Batch, Damage, Log, LogState, Predicate, ScanTask
from headrace.units import clamp_time_ns, parse_time_ns


class HybridLog(ReadOnlyLog):
    """One stream, cold and live."""

    def __init__(self, cold: Log, live: ServerLog) -> None:
        self.name, self._cold, self._live = live.name, cold, live
        if cold.incarnation and _moment(cold.incarnation) != _moment(live.incarnation):
            raise BadInput(
                f"headrace source: stream {live.name}: the files are of another stream with this name "
                f"(made {cold.incarnation}, the server's {live.incarnation}); read one of them"
            )

    @property
    def incarnation(self) -> str:
        return self._live.incarnation

    def _seam(self, live: LogState) -> int:
        """From here on the server is asked. Files that are behind a gap of the server's cannot be joined."""
        cold = self._cold.state()
        seam = cold.last_seq + 1
        if cold.messages and seam < live.first_seq:
            raise BadInput(
                f"headrace source: stream {self.name}: the files end at {cold.last_seq}, the server begins at "
                f"{live.first_seq}: what is between is in neither"
            )
        return min(max(seam, 1), live.last_seq + 1)

    def state(self) -> LogState:
        cold, live = self._cold.state(), self._live.state()
        self._seam(live)
        if not cold.messages:
            return live
        return replace(
            live,
            messages=cold.messages + max(live.last_seq - cold.last_seq, 0),
            first_seq=min(cold.first_seq, live.first_seq),
            first_time_ns=cold.first_time_ns,
        )

    def seq_from_time(self, time_ns: int) -> int:
        found = self._cold.seq_from_time(time_ns)
        return found if found <= self._cold.state().last_seq else self._live.seq_from_time(time_ns)

    def scan_tasks(self, predicate: Predicate | None = None) -> list[ScanTask]:
        want, seam = predicate or Predicate(), self._seam(self._live.state())
        below = seam if want.next is None else min(seam, want.next)
        above = seam if want.first is None else max(seam, want.first)
        cold = self._cold.scan_tasks(replace(want, next=below))
        # A block may reach past the seam (files that grow): each part says itself what it holds.
        return [_Below(task, seam) for task in cold] + self._live.scan_tasks(replace(want, first=above))

    def read(
        self, first: int, max_msgs: int = 1000, max_bytes: int = 8 << 20, filter: str | None = None
    ) -> Batch:
        if first < self._seam(self._live.state()):
            return self._cold.read(first, max_msgs, max_bytes, filter)
        return self._live.read(first, max_msgs, max_bytes, filter)

    def damage(self) -> list[Damage]:
        return self._cold.damage()


class _Below(ScanTask):
    """A part of the files, cut at the seam."""

    def __init__(self, task: ScanTask, seam: int) -> None:
        self._task, self._seam = task, seam
        self.log, self.first, self.next, self.size_bytes = (
            task.log,
            task.first,
            min(task.next, seam),
            task.size_bytes,
        )

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        return self._task.batches(self._cut(predicate), damage)

    def showing(self, columns: Sequence[str]) -> ScanTask:
        return _Below(self._task.showing(columns), self._seam)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        damage: list[Damage] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        return self._task.scan(columns, self._cut(predicate), damage)

    def _cut(self, predicate: Predicate | None) -> Predicate:
        want = predicate or Predicate()
        return replace(want, next=self._seam if want.next is None else min(self._seam, want.next))


def _moment(text: str) -> int | str:
    """Files have it in nanoseconds, servers as a time."""
    try:
        return int(text) if text.isdecimal() else clamp_time_ns(parse_time_ns(text))
    except ValueError:
        return text
