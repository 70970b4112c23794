"""Syncs off the loop: the core's thread takes commit groups one after the other; what comes meanwhile shares the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.server._kernels import Committer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.engine.commits import Group
    from headrace.server._kernels import Sockets


class ThreadCommitter:
    """`submit` returns at once; `done(group)` is called on the loop when the group is on disk.

    With `sockets`, these are woken, and who serves them calls `take`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Group], None],
        sockets: Sockets | None = None,
    ) -> None:
        self._loop, self._done = loop, done
        self._core = Committer(sockets)
        self._groups: dict[int, Group] = {}
        self._number = 0
        self._bell = self._core.fileno()
        if self._bell is not None:
            loop.add_reader(self._bell, self.take)

    def submit(self, group: Group) -> None:
        """Take a group; the engine hands over the next one only when this one is done."""
        self._number += 1
        self._groups[self._number] = group
        self._core.submit(self._number, group.handles())

    def take(self) -> None:
        """On the loop: hand over what is on disk."""
        for committed in self._core.take():
            group = self._groups.pop(committed.number)
            for place, error in committed.errors:
                group.failed(place, error)
            self._done(group)

    def wait(self) -> None:
        """Finish what was handed over and end; on whatever thread. `take` has the rest."""
        self._core.close()

    def close(self) -> None:
        """On the loop, after `wait`: the last results, and no more of them."""
        if self._bell is not None:
            self._loop.remove_reader(self._bell)
        self.take()
