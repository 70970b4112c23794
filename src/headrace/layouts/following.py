"""Following logs that somebody else writes: what is new since the last look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from headrace._core import Batch
from headrace.layouts.base import Damage, Predicate, Volume


class Follower(ABC):
    """The messages of some logs behind `after`. Make it before the logs are read, so that nothing is passed over."""

    after: dict[str, int]
    """Log → the last position that was shown. A log that is taken out is followed no more."""

    def damage(self) -> list[Damage]:
        """What was found unsound at the last look."""
        return []

    @abstractmethod
    def look(self) -> Iterator[tuple[str, Batch]]:
        """(log, messages): what has come since the last look, in order; nothing when nothing has."""


class ReopeningFollower(Follower):
    """Opens the volume anew for each look, because a reader sees what was there then."""

    def __init__(self, open_volume: Callable[[], Volume], names: Sequence[str]) -> None:
        self._open, self.after = open_volume, dict.fromkeys(names, -1)
        self._damage: list[Damage] = []

    def damage(self) -> list[Damage]:
        return self._damage

    def look(self) -> Iterator[tuple[str, Batch]]:
        with self._open() as volume:
            for name in list(self.after):
                for batch in volume.open(name).batches(Predicate(first=self.after[name] + 1)):
                    self.after[name] = batch.last_position
                    yield name, batch
            self._damage = volume.damage()
