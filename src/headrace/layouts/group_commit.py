"""`GroupCommit`: those who wait for the disk share one sync.

    write ─→ mark 7        the log says how far it has written
    commit(7)              nobody syncs: I do, for everything written so far; others that come meanwhile wait for the
                           next round, which one of them starts as soon as mine is over
    durable ≥ 7            return

One for each file set that is synced together (a log, or a volume whose logs share a file). A failed sync poisons it:
what the kernel threw away cannot be synced again, so nothing is confirmed any more until the owner has written it anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.errors import DiskFault, HeadraceError, StorePoisoned


class GroupCommit:
    """Marks only grow. `written` tells the present mark, `sync` makes everything up to it durable."""

    def __init__(self, name: str, written: Callable[[], int], sync: Callable[[], None]) -> None:
        self.name, self._written, self._sync = name, written, sync
        self._turn = threading.Condition()
        self._syncing = False
        self.durable = 0
        self._failure: HeadraceError | None = None

    @property
    def poisoned(self) -> HeadraceError | None:
        """Why nothing is confirmed any more."""
        return self._failure

    def commit(self, mark: int) -> None:
        """Return when everything up to `mark` is on disk; StorePoisoned when that can no longer be."""
        with self._turn:
            while self.durable < mark:
                self._refuse_if_poisoned()
                if self._syncing:
                    self._turn.wait()
                    continue
                self._syncing = True
                break
            else:
                return
        self._round()
        # The mark was read inside the round: it covers what was written before the call.

    def _round(self) -> None:
        try:
            mark = self._written()
            self._sync()
        except BaseException as error:
            with self._turn:
                if isinstance(error, HeadraceError):
                    self._failure = error
                else:
                    self._failure = DiskFault(f"{self.name}: {error}")
                self._syncing = False
                self._turn.notify_all()
            raise
        with self._turn:
            self.durable = max(self.durable, mark)
            self._syncing = False
            self._turn.notify_all()

    def recovered(self) -> None:
        """The owner has written what was unsynced to another place: syncing may go on."""
        with self._turn:
            self._failure = None

    def _refuse_if_poisoned(self) -> None:
        if self._failure is not None:
            raise StorePoisoned(
                f"{self.name}: a sync failed ({self._failure}); nothing more is confirmed until it is opened again"
            ) from self._failure
