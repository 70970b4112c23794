"""Following the streams of a store, and reading them whatever else of it is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

from headrace.errors import ReadOnly
from headrace.layouts.base import Damage, Ticket, Volume
from headrace.layouts.following import Follower
from headrace.layouts.jetstream._kernels import Batch, Disk
from headrace.layouts.jetstream.checks.inspector import find_streams, survey
from headrace.layouts.jetstream.recovery.rebuild import open_stream
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.store.tail import Tail


class StreamFollower(Follower):
    """The newest blocks of each stream, and nothing else."""

    def __init__(self, disk: Disk, path: str, names: Sequence[str], key: str | None) -> None:
        found = find_streams(disk, path)
        self._tails = {name: Tail(disk, name, found[name], key) for name in names}
        self.after = dict.fromkeys(names, 0)

    def look(self) -> Iterator[tuple[str, Batch]]:
        for name in list(self.after):
            tail = self._tails[name]
            tail.after = self.after[name]
            for batch in tail.look():
                self.after[name] = tail.after
                yield name, batch


class SurveyedStore(Volume):
    """The streams of a store, its `jetstream` folder or one stream's own directory, for reading: from the blocks alone where
    metadata cannot be relied on."""

    layout = "jetstream"

    def __init__(self, disk: Disk, path: str, key: str | None) -> None:
        self.path, self._disk, self._key = path, disk, key
        self._found = find_streams(disk, path)
        self._stores: dict[str, FileStreamStore] = {}
        self._damage: list[Damage] = []

    def logs(self) -> list[str]:
        return list(self._found)

    def open(self, name: str) -> FileStreamStore:
        if name not in self._stores:
            found = survey(self._disk, name, self._found[name], self._key, real=False)
            self._stores[name] = open_stream(self._disk, found)
            self._damage += found.damage
        return self._stores[name]

    def damage(self) -> list[Damage]:
        """Of every stream that was opened."""
        found = [*self._damage, *(each for store in self._stores.values() for each in store.damage())]
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Nothing is held."""

    def create(self, name: str, **options: Any) -> NoReturn:
        raise self._refused()

    def delete(self, name: str) -> NoReturn:
        raise self._refused()

    def commit(self, tickets: Iterable[Ticket]) -> NoReturn:
        raise self._refused()

    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        raise self._refused()

    def _refused(self) -> ReadOnly:
        return ReadOnly(f"{self.path} was opened for reading; open it with mode='rw'")
