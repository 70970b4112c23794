"""Small named states that whoever serves a stream keeps beside its messages: files of the side directory.

A store in memory keeps none: what is saved there ends with it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from headrace.layouts.base import Damage
from headrace.layouts.jetstream.store.sidecar import Sidecar
from headrace.layouts.stream_store import StreamStore

LOG = logging.getLogger("headrace")


class StoreState(StreamStore, ABC):
    """The part of a store that keeps such states."""

    sidecar: Sidecar

    @abstractmethod
    def note_damage(self, found: Damage) -> None:
        """Something beside the messages is not sound; `damage` shows what."""

    def has_saved(self, name: str) -> bool:
        """Whether there is a state of that name."""
        return self.type() != "memory" and self.sidecar.has_state(name)

    def load_saved(self, name: str) -> bytes | None:
        """What was saved; None if nothing was. Damaged if it is not whole."""
        return None if self.type() == "memory" else self.sidecar.read_state(name)

    def save(self, name: str, data: bytes) -> None:
        """Replace a state; on disk when this returns."""
        if self.type() != "memory":
            self.sidecar.write_state(name, data)

    def remove_saved(self, name: str) -> None:
        """Remove a state."""
        if self.type() != "memory":
            self.sidecar.remove_state(name)

    def report_unusable(self, name: str, why: str) -> None:
        """A state cannot be used: it is logged, and `damage` has it."""
        found = self.sidecar.state_damage(name, why)
        LOG.warning("%s: %s", found.file, why)
        self.note_damage(found)
