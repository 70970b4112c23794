"""`GroupCommit`: those who wait for the disk share one sync. The rule is the core's (`commit/group.rs`); here stands what a
log written in Python gives it.

One for each file set that is synced together (a log, or a volume whose logs share a file). A failed sync poisons it:
what the kernel threw away cannot be synced again, so nothing is confirmed any more until the owner has written it anew.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import StorePoisoned
from headrace.layouts import _kernels


class GroupCommit:
    """Marks only grow. `written` gives the present mark, `sync` makes everything up to it durable."""

    def __init__(self, name: str, written: Callable[[], int], sync: Callable[[], None]) -> None:
        self.name, self._written, self._sync = name, written, sync
        self._group = _kernels.GroupCommit()

    @property
    def durable(self) -> int:
        """Everything up to there is on disk."""
        return self._group.durable

    def raise_durable(self, mark: int) -> None:
        """Everything up to the mark was made durable by other means."""
        self._group.raise_durable(mark)

    @property
    def poisoned(self) -> str | None:
        """Why nothing is confirmed any more."""
        return self._group.poison

    def commit(self, mark: int) -> None:
        """Return when everything up to `mark` is on disk; StorePoisoned when that can no longer be."""
        if self._group.durable >= mark:
            return
        try:
            self._group.commit(mark, self._round)
        except StorePoisoned as error:
            raise StorePoisoned(
                f"{self.name}: a sync failed ({error}); nothing more is confirmed until it is opened again"
            ) from error

    def _round(self) -> int:
        mark = self._written()  # before the sync: what is written meanwhile is for the next round
        self._sync()
        return mark

    def recovered(self) -> None:
        """The owner has written what was unsynced to another place: syncing may go on."""
        self._group.healed()
