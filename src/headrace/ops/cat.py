"""`cat`: the messages of a store, batch by batch, as far as a selection asks for them.

Memory stays bounded: at most one read of messages is held. With `follow` the reader goes on as new messages come;
beside a Headrace writer it shows nothing above the durable mark.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import BadInput
from headrace.layouts.base import Damage, Predicate, Volume
from headrace.layouts.following import Follower
from headrace.layouts.places import check_path, is_remote
from headrace.layouts.registry import layout_at
from headrace.ops._kernels import Batch, Disk, subject_filter_valid
from headrace.ops.names import chosen

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: sequences and times half-open, subjects with wildcards, at most `limit` of them."""

    first: int | None = None
    next: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    subjects: tuple[str, ...] = ()
    limit: int | None = None

    def check(self) -> None:
        """Raise BadInput for a selection that makes no sense."""
        for subject in self.subjects:
            if not subject_filter_valid(subject):
                raise BadInput(f"{subject!r} is not a subject; write orders.new, orders.* or orders.>")
        if self.limit is not None and self.limit < 0:
            raise BadInput(f"limit {self.limit}: give 0 or more")

    def predicate(self) -> Predicate:
        return Predicate(self.first, self.next, self.since_ns, self.until_ns, self.subjects)

    def apply(self, batch: Batch) -> Batch:
        return batch.filter(self.first, self.next, self.since_ns, self.until_ns, list(self.subjects))

    def is_past(self, seq: int) -> bool:
        """Whether nothing behind this sequence can be meant."""
        return self.next is not None and seq + 1 >= self.next


class Reading:
    """What `cat` reads; `damage` is complete when the iteration has ended. `unread` is what no reader here reads."""

    def __init__(
        self,
        path: str,
        *,
        stream: str | None = None,
        select: Selection | None = None,
        key: str | None = None,
        follow: bool = False,
        stop: threading.Event | None = None,
        disk: Disk | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._path, self._disk, self._key = check_path(path), disk, key
        self._select = select or Selection()
        self._select.check()
        if follow and is_remote(self._path):
            raise BadInput(
                f"{self._path}: a remote place notifies nobody of what is new; read it without following"
            )
        self._layout = layout_at(self._path, disk)
        with self._open() as volume:
            self.streams = chosen(volume, () if stream is None else (stream,), self._layout.nouns.log)
        self._follow, self._stop, self._poll_s = follow, stop or threading.Event(), poll_s
        self._left = self._select.limit
        self.damage: list[Damage] = []
        self.unread = self._layout.unread_at(self._path, disk) if stream is None else []

    def _open(self) -> Volume:
        return self._layout.reading(self._path, disk=self._disk, key=self._key)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        """(stream, messages); stream after stream, then, when following, whatever comes."""
        # Made before anything is read, so that what comes meanwhile is not passed over.
        news = self._follower() if self._follow else None
        with self._open() as volume:
            for name in self.streams:
                if self._left == 0:
                    break
                log = volume.open(name)
                last = log.state().last_seq
                for batch in log.batches(self._select.predicate()):
                    last = max(last, batch.last_position)
                    yield from self._shown(name, batch)
                    if self._left == 0:
                        break
                if news is not None:
                    news.after[name] = last
            self.damage = _costly(volume.damage())
        if news is not None:
            yield from self._coming(news)

    def _follower(self) -> Follower:
        return self._layout.follow(self._path, self.streams, disk=self._disk, key=self._key)

    def _coming(self, news: Follower) -> Iterator[tuple[str, Batch]]:
        read = self.damage
        while self._left != 0 and not self._stop.is_set():
            for name in [name for name, last in news.after.items() if self._select.is_past(last)]:
                del news.after[name]
            if not news.after:
                return
            idle = True
            for name, batch in news.look():
                idle = False
                yield from self._shown(name, self._select.apply(batch))
                if self._left == 0:
                    return
            self.damage = list(dict.fromkeys([*read, *_costly(news.damage())]))
            if idle:
                self._stop.wait(self._poll_s)

    def _shown(self, name: str, batch: Batch) -> Iterator[tuple[str, Batch]]:
        """What the limit leaves of it."""
        cut = self._cut(batch)
        if len(cut):
            yield name, cut

    def _cut(self, batch: Batch) -> Batch:
        """Not more than the limit leaves."""
        if self._left is None:
            return batch
        cut = batch.slice(0, min(self._left, len(batch)))
        self._left -= len(cut)
        return cut


def _costly(found: list[Damage]) -> list[Damage]:
    """Without what costs no message."""
    return [each for each in found if each.kind != "index"]


def cat(
    path: str | os.PathLike[str],
    *,
    log: str | None = None,
    select: Selection | None = None,
    key: str | None = None,
    disk: Disk | None = None,
) -> Reading:
    """The messages of a directory, or of one log: iterate over it for (log, messages)."""
    return Reading(check_path(path), stream=log, select=select, key=key, disk=disk)
