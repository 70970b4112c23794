"""What a copy of logs into a volume needs beside `append`: new logs that drop nothing, and the last touch on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.layouts.base import Log, Volume

OWN_SUBJECT = "{subject}"
"""In the subject that messages are given: the one that each had."""


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """Where the messages of a finished copy come from."""

    sources: Sequence[Log]
    subjects: Sequence[str | None]
    """Those that the messages of each source were given; None: their own."""
    whole: bool
    """All messages of the sources, at their positions."""


class Copies:
    """The logs of one volume that take the messages of others."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume

    def take(self, name: str, like: Log | None = None) -> Log:
        """The log of that name; where there is none, a new one for messages such as those of another log."""
        return self.volume.open(name) if name in self.volume.logs() else self.create(name, like)

    def create(self, name: str, like: Log | None) -> Log:
        """A new log."""
        return self.volume.create(name)

    def begin_at(self, log: Log, position: int) -> None:
        """The first message of a log that is empty will have this position: those below were never there."""

    def end_at(self, log: Log, position: int) -> None:
        """Positions up to this one are used up."""

    def finish(self, log: Log, origin: CopyOrigin) -> None:
        """All its messages are there."""

    def adopt_subjects(self, log: Log) -> None:
        """Where a log has subjects of its own: it takes those that are in it, so that a server serves it as it is."""

    def close(self) -> None:
        """Everything on disk, and the volume closed."""
        self.volume.close()
