"""What every layout's volume does alike: the words it is opened with, tickets summed up, commits off the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.errors import BadInput, HeadraceError
from headrace.layouts.base import Ticket

SYNCS_AT_ONCE = 16


def check_words(mode: str, durability: str) -> None:
    """BadInput unless both are known."""
    if mode not in ("r", "rw"):
        raise BadInput(f"mode {mode!r}; open with 'r' or 'rw'")
    if durability not in ("sync", "interval"):
        raise BadInput(f"durability {durability!r}; known are 'sync' and 'interval'")


def highest_marks(tickets: Iterable[Ticket]) -> dict[str, int]:
    """Log → the highest of its marks."""
    marks: dict[str, int] = {}
    for ticket in tickets:
        marks[ticket.log] = max(ticket.mark, marks.get(ticket.log, 0))
    return marks


def side_by_side(actions: Sequence[Callable[[], object]]) -> list[HeadraceError]:
    """Run what writes to files of its own each; the errors. Syncs of many threads share the disk's own commits, one
    after the other they would not; a few actions run in order."""

    def run(action: Callable[[], object]) -> HeadraceError | None:
        try:
            action()
        except HeadraceError as problem:
            return problem
        return None

    if len(actions) <= SYNCS_AT_ONCE:
        problems = [run(action) for action in actions]
    else:
        with ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="headrace-sync") as pool:
            problems = list(pool.map(run, actions))
    return [problem for problem in problems if problem is not None]


class SoonCommitter:
    """Two threads, made when the first one asks: what is handed in while a sync runs shares the next one."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def submit(self, commit: Callable[[Iterable[Ticket]], None], tickets: Iterable[Ticket]) -> Future[None]:
        """Call `commit` with the tickets, soon. Callers take turns."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="headrace-commit")
        return self._threads.submit(commit, list(tickets))

    def close(self) -> None:
        """What was handed in is committed when this returns."""
        if self._threads is not None:
            self._threads.shutdown()
