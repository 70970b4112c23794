"""A clock that moves only by hand: give it to `headrace.open(..., clock=clock)`.

Every reading is one nanosecond after the one before (unless `step_ns` says otherwise), so that no two
messages of a test share a time and no test waits.
"""

from __future__ import annotations

START_NS = 1_700_000_000_000_000_000
_NS = 1_000_000_000


class FakeClock:
    """Call it for the time in ns since 1970; `advance` moves it on."""

    def __init__(self, start_ns: int = START_NS, step_ns: int = 1) -> None:
        self.now_ns, self.step_ns = start_ns, step_ns

    def __call__(self) -> int:
        """The time now; each call moves it by `step_ns`."""
        self.now_ns += self.step_ns
        return self.now_ns

    def advance(self, seconds: float) -> int:
        """Let time pass; returns the new time. Negative values set the clock back, as people do."""
        self.now_ns += int(seconds * _NS)
        return self.now_ns
