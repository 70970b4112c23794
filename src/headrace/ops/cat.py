"""`cat`: the messages of a store, batch by batch, as far as a selection asks for them.

Memory stays bounded: at most one read of messages is held. With `follow` the reader goes on as new messages come;
beside a Headrace writer it shows nothing above the durable mark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from headrace._core import Batch, Disk, subject_filter_valid
from headrace.errors import BadInput
from headrace.layouts.base import Damage, Predicate
from headrace.layouts.jetstream.inspector import find_streams, survey
from headrace.layouts.jetstream.rebuild import open_stream
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.jetstream.tail import Tail
from headrace.ops.plan import check_path, choose

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
        self._disk, self._key, self._select = disk or Disk.real(), key, select or Selection()
        self._select.check()
        checked = check_path(path)
        self.streams = choose(checked, find_streams(self._disk, checked), stream)
        self._follow, self._stop, self._poll_s = follow, stop or threading.Event(), poll_s
        self._left = self._select.limit
        self.damage: list[Damage] = []

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        """(stream, messages); stream after stream, then, when following, whatever comes."""
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

    def _stored(self, store: FileStreamStore) -> Iterator[Batch]:
        """What is there now."""
        for batch in store.batches(self._select.predicate()):
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
