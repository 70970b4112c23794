"""How a stream stores what it takes from an origin: by its own limits and rules, in order, nothing passed over."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.errors import DiskFault, HeadraceError, StoreFull
from headrace.layouts.base import Ticket
from headrace.streams._kernels import Batch
from headrace.streams.sourcing.sourced_batch import SourcedBatch, SourcedBatchBuilder
from headrace.streams.sourcing.state import Feed
from headrace.streams.stream.ingest import store_error

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream


class SourcedWriter:
    """Stores batches of origins in one stream. `feed.next` follows, `feed.error` says why it stopped."""

    def __init__(self, stream: Stream, *, mirror: bool) -> None:
        self.stream, self.mirror = stream, mirror
        self._builder = SourcedBatchBuilder(stream, mirror=mirror)
        self._torn = False

    @property
    def last(self) -> int:
        """The stream's own last sequence."""
        return self.stream.store.last_seq

    def take(self, feed: Feed, batch: Batch) -> bool:
        """Take messages in; False if some have to wait: `feed.next` is the first of them then."""
        stream = self.stream
        self._mend(feed)
        over = stream.account.over_limits(stream, batch)
        if over is not None:
            feed.error = over
            return False
        if stream.nobody_interested:
            stream.store.skip_msg(batch.last_position if self.mirror else self.last + len(batch))
            return True
        if self._builder.as_they_are(feed, batch):
            stored = self._append(feed, batch)
            if stored < len(batch):
                feed.next = batch[stored].position
            return stored == len(batch)
        return all(self._store_batch(feed, sourced) for sourced in self._builder.build(feed, batch))

    def _store_batch(self, feed: Feed, sourced: SourcedBatch) -> bool:
        stream, count = self.stream, len(sourced.subjects)
        first, now = self.last + 1, stream.engine.clock()
        stored = self._append(feed, sourced.batch(mirror=self.mirror)) if count else 0
        if stored:
            feed.next = sourced.positions[stored - 1] + 1
        for message_id, at in sourced.ids.items():
            if at < stored:
                stream.window.accepted(message_id, first + at, now)
        for at, ttl_ns, stored_ns in sourced.ttls:
            if at < stored:
                stream.expiry.add(sourced.positions[at] if self.mirror else first + at, ttl_ns, stored_ns)
        if stored < count:
            return False
        if sourced.rollup is not None:
            stream.rolled_up(sourced.rollup, self.last)
        if sourced.blocked is not None:
            feed.next, feed.error = sourced.blocked
            return False
        return True

    def _append(self, feed: Feed, batch: Batch) -> int:
        """Store as much of a batch as there is room for, in order; returns how many messages that were."""
        at, step = 0, len(batch)
        while at < len(batch):
            before = self.last
            part = batch.slice(at, min(at + step, len(batch)))
            try:
                for run in self._runs(part):
                    self._write(run)
            except StoreFull as full:
                if len(part) == 1:
                    feed.error = store_error(full)
                    return at
                step = len(part) // 2
                at += self._stored_of(part, before)
                continue
            except HeadraceError as problem:
                feed.error = store_error(problem)
                if isinstance(problem, DiskFault):  # taken back, but its sequences are used up
                    self._torn = self.mirror
                    return at
                return at + self._stored_of(part, before)
            at += len(part)
        return at

    def _stored_of(self, part: Batch, before: int) -> int:
        """How many messages of a part that failed are stored, by the sequences that it took."""
        return len(part.filter(None, self.last + 1, None, None, [])) if self.mirror else self.last - before

    def _runs(self, batch: Batch) -> Iterable[Batch]:
        """Whoever republishes counts on from the first sequence: no holes then."""
        if not self.mirror or not self.stream.republishes:
            return (batch,)
        seqs = batch.positions()
        cuts = [0, *(at for at in range(1, len(seqs)) if seqs[at] != seqs[at - 1] + 1), len(seqs)]
        return [batch.slice(a, b) for a, b in pairwise(cuts)]

    def _write(self, run: Batch) -> None:
        ticket = self.stream.write(run, keep_positions=self.mirror)
        first = run.first_position if self.mirror else ticket.first
        self.stream.appended(Ticket(ticket.log, first, first + len(run), ticket.mark), run)

    def _mend(self, feed: Feed) -> None:
        """The disk failed in the middle of a batch: its sequences are used up, a mirror needs them again."""
        if self._torn and self.last >= feed.next:
            self.stream.store.truncate(feed.next - 1)
        self._torn = False
