"""`cat`: the messages of a store, batch by batch, as far as a selection asks for them.

Memory stays bounded: at most one read of messages is held. With `follow` the reader goes on as new messages come;
beside a Headrace writer it shows nothing above the durable mark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.errors import BadInput
from headrace.layouts.base import Damage, Log, Predicate
from headrace.layouts.jetstream.inspector import find_streams, survey
from headrace.layouts.jetstream.rebuild import open_stream
from headrace.layouts.jetstream.tail import Tail
from headrace.layouts.places import disk_at, is_remote
from headrace.layouts.room import Room
from headrace.ops._kernels import Batch, Disk, subject_filter_valid
from headrace.ops.plan import check_path, choose, room_at

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
    """What `cat` reads; `damage` is complete when the iteration has ended."""

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
        self._path, self._given = check_path(path), disk
        self._disk, self._key, self._select = disk or disk_at(self._path), key, select or Selection()
        self._select.check()
        if follow and is_remote(self._path):
            raise BadInput(
                f"{self._path}: a remote place tells nobody what is new; read it without following"
            )
        self._room = room_at(self._path, disk)
        self.streams = choose(self._path, self._find(), stream)
        self._follow, self._stop, self._poll_s = follow, stop or threading.Event(), poll_s
        self._left = self._select.limit
        self.damage: list[Damage] = []

    def _find(self) -> dict[str, str]:
        """Name and directory of what can be read."""
        if self._room is None:
            return find_streams(self._disk, self._path)
        with self._room.open(self._path, disk=self._given, key=self._key) as volume:
            return dict.fromkeys(volume.logs(), self._path)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        """(stream, messages); stream after stream, then, when following, whatever comes."""
        return self._in_store() if self._room is None else self._in_room(self._room)

    def _in_room(self, room: Room) -> Iterator[tuple[str, Batch]]:
        """The same for another layout: opened anew for each look, because a reader sees what was there then."""
        behind: dict[str, int] = {}
        while True:
            idle, found = True, list[Damage]()
            with room.open(self._path, disk=self._given, key=self._key) as volume:
                for name in self.streams:
                    log = volume.open(name)
                    for batch in self._stored(log, behind.get(name)):
                        idle, behind[name] = False, batch.last_position + 1
                        yield name, batch
                    behind.setdefault(name, log.state().last_seq + 1)
                found = volume.damage()
            self.damage = [each for each in found if each.kind != "index"]
            over = all(self._select.is_past(at - 1) for at in behind.values())
            if not self._follow or self._left == 0 or over or self._stop.is_set():
                return
            if idle:
                self._stop.wait(self._poll_s)

    def _in_store(self) -> Iterator[tuple[str, Batch]]:
        tails: dict[str, Tail] = {}
        for name, directory in self.streams.items():
            if self._left == 0:
                return
            # Made before the stream is read, so that what comes meanwhile is not passed over.
            tail = Tail(self._disk, name, directory, self._key) if self._follow else None
            found = survey(self._disk, name, directory, self._key, real=False)
            store = open_stream(self._disk, found)
            last = store.fast_state().last_seq
            for batch in self._stored(store):
                yield name, batch
            self.damage += [*found.damage, *(each for each in store.damage() if each.kind != "index")]
            if tail is not None and not self._select.is_past(last):
                tail.after, tails[name] = last, tail
        while tails and self._left != 0 and not self._stop.is_set():
            idle = True
            for name, tail in list(tails.items()):
                for batch in self._coming(tail):
                    idle = False
                    yield name, batch
                if self._select.is_past(tail.after):
                    del tails[name]
            if idle and tails:
                self._stop.wait(self._poll_s)

    def _stored(self, log: Log, first: int | None = None) -> Iterator[Batch]:
        """What is there now; from a position on, when it goes on there."""
        want = self._select.predicate()
        if first is not None:
            want = replace(want, first=max(first, want.first or 0))
        for batch in log.batches(want):
            cut = self._cut(batch)
            if len(cut):
                yield cut
            if self._left == 0:
                return

    def _coming(self, tail: Tail) -> Iterator[Batch]:
        for batch in tail.look():
            cut = self._cut(self._select.apply(batch))
            if len(cut):
                yield cut
            if self._left == 0:
                return

    def _cut(self, batch: Batch) -> Batch:
        """Not more than the limit leaves."""
        if self._left is None:
            return batch
        cut = batch.slice(0, min(self._left, len(batch)))
        self._left -= len(cut)
        return cut
