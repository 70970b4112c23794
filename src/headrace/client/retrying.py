"""How long trouble with servers may last: they restart, and clusters elect leaders.

no trouble ── ConnectionLost ── pause, try again ── … ── progress: forgotten      not longer than GIVE_UP_S at a stretch
"""

from __future__ import annotations

import time

from headrace.errors import ConnectionLost, ServerRefused

GIVE_UP_S = 60.0
PAUSE_S = 0.25
PASSING = frozenset((503, 10008, 10009, 10023, 10158))
"""Nobody answers, no leader, not the leader, no resources, the same id is under way: another try may find otherwise."""


class RetryDeadline:
    """For one piece of work."""

    def __init__(self, limit_s: float = GIVE_UP_S) -> None:
        self._limit_s = limit_s
        self._since: float | None = None

    def moved(self) -> None:
        """Something was achieved: the trouble is over."""
        self._since = None

    def pause(self, problem: ConnectionLost, doing: str) -> None:
        """Wait a little before the next try, or give up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > self._limit_s:
            raise ConnectionLost(f"{doing} could not go on for {self._limit_s:g} s: {problem}") from problem
        time.sleep(PAUSE_S)


def passing(refusal: ServerRefused) -> bool:
    """Is it an answer of a cluster that is not ready, rather than of one that does not want to?"""
    return refusal.code in PASSING
