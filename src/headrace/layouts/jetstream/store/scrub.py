"""The scrubber: cold blocks are read again, one at a time and at a bounded rate, before somebody needs them.

A clean start believes its index, and a disk forgets in silence; so every sealed block comes by here. A block
that is found damaged is replaced by a sound copy (the original is kept in headrace/damaged/) and the counts are
taken anew from the blocks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.jetstream._kernels import js_check_block

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore

BYTES_PER_SECOND = 8 << 20
LOG = logging.getLogger("headrace")
FIRST_AFTER_NS = 60 * 1_000_000_000
HARMLESS = ("order",)
MISSING = "missing"


class Scrubber:
    """Goes round the sealed blocks of one store. `position` and `rounds` are shown in health."""

    def __init__(self, store: FileStreamStore) -> None:
        self._store = store
        self._due_ns = store.clock() + FIRST_AFTER_NS
        self.position, self.rounds = 0, 0

    def step(self, now_ns: int) -> list[Damage]:
        """Check the next block if its turn has come; returns what was found and mended."""
        if now_ns < self._due_ns:
            return []
        newest = self._store.log.newest_block
        ahead = [block for block in self._store.log.blocks() if self.position < block.number != newest]
        if not ahead:
            self.rounds += bool(self.position)
            self.position = 0
            self._due_ns = now_ns + 60 * 1_000_000_000
            return []
        number, size = ahead[0].number, ahead[0].file_bytes
        self.position = number
        self._due_ns = now_ns + size * 1_000_000_000 // BYTES_PER_SECOND
        # Read without the lock first: nearly always it is sound. Otherwise somebody may just be changing it.
        return self.check(number) if self._look(number) else []

    def check(self, number: int) -> list[Damage]:
        """Read one block from the disk, every hash and boundary; mend it when it is damaged."""
        store = self._store
        with store.lock:
            if all(block.number != number for block in store.log.blocks()):
                return []  # it went meanwhile
            found = self._look(number)
            if found and found[0].kind != MISSING:
                for damage in found:
                    LOG.warning(
                        "%s: %s at byte %d: %s", damage.file, damage.kind, damage.offset, damage.detail
                    )
                store.mend(found)
            return found

    def _look(self, number: int) -> list[Damage]:
        store = self._store
        path = f"{store.msgs_dir}/{number}.blk"
        guard = store.sidecar.guard_path(number)
        try:
            known = store.disk.read(guard) if store.disk.entry(guard) is not None else None
            findings = js_check_block(store.disk, path, store.name, number, known)
        except HeadraceError as problem:
            return [Damage(path, 0, 0, MISSING, str(problem))]
        return [
            Damage(path, offset, length, kind, detail, first, following)
            for kind, offset, length, first, following, detail in findings
            if kind not in HARMLESS
        ]
