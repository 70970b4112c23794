"""What the engine needs of others: who is woken, who syncs, and the process around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.commits import Group


class Deliverer(Protocol):
    """Something that has work to do at the end of a turn: a consumer, a mirror."""

    def deliver(self, now: int) -> None:
        """Do it; `now` is monotonic ns."""
        ...


class WorkSource(Protocol):
    """Where work arrives from: the connections of one protocol."""

    def serve(self, now: int) -> bool:
        """Decide what arrived, up to what one turn may take; True when there is more. `now` is monotonic ns."""
        ...


class Committer(Protocol):
    """Commits groups, one after the other, off the loop; calls `engine.released(group)` on the loop."""

    def submit(self, group: Group) -> None:
        """Take the next group."""
        ...


class Host(Protocol):
    """The process that runs the engine: its loop, its threads, its sockets."""

    def wake_loop(self) -> None:
        """There is work: another turn is wanted."""
        ...

    def run_off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` on a thread; `done(result or exception)` comes back on the loop."""
        ...

    def send_early(self) -> None:
        """Send what there is; what is only for us to note comes after it, while the client has its turn."""
        ...


class InlineHost:
    """No loop and no connections: work is done at once. For tests, and for whoever drives the turns by hand."""

    def wake_loop(self) -> None:
        """Nobody sleeps."""

    def run_off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Here and now."""
        try:
            result: Any = work()
        except HeadraceError as error:
            result = error
        done(result)

    def send_early(self) -> None:
        """Whoever drives the turns sends."""
