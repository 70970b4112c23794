"""Replay `original`: messages come at the pace at which they were stored.

stored      |  |      |        gaps below a millisecond are not worth waiting for
sent        |  |      |  until the consumer has caught up with what was there when it was made
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST_NS = 1_000_000


class Replay:
    """When the next message may go."""

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq
        """The stream's last message when the consumer was made: what is newer goes at once."""
        self._before: tuple[int, int] | None = None
        self.due_ns: int | None = None
        """When to ask again, after `allowed` held some back."""

    def allowed(self, times: Sequence[int], now_ns: int) -> int:
        """How many of the messages with these (wall) times may go now; they count as sent."""
        self.due_ns = None
        for count, time_ns in enumerate(times):
            if self._before is not None:
                sent_ns, stored_ns = self._before
                gap = time_ns - stored_ns
                if gap > SHORTEST_NS and sent_ns + gap > now_ns:
                    self.due_ns = sent_ns + gap
                    return count
            self._before = (now_ns, time_ns)
        return len(times)
