"""Which messages of an interest or work-queue stream nobody needs any more.

    ack                    the other consumers whose filters share subjects with this one's are asked
    a consumer is deleted  of the messages that it took, those that the others are done with go
    start                  the same for all messages: a crash may have come between an ack and the removal

Many messages are looked at in steps, so that nobody waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.streams.api.call_queue import WHOLE
from headrace.streams.subjects import subjects_overlap

if TYPE_CHECKING:
    from headrace.streams._kernels import Batch
    from headrace.streams.consumer.consumer import Consumer
    from headrace.streams.stream.stream import Stream

LOG = logging.getLogger("headrace.streams")
AT_ONCE = 512
BYTES_AT_ONCE = 4 << 20
AT_START_NS = 100_000_000
"""So long a start waits for messages that were acked and are still there."""


class Interest:
    """Who wants what of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._beside: dict[Consumer, list[Consumer]] = {}

    def changed(self) -> None:
        """A consumer came, went, or takes other subjects."""
        self._beside = {}

    def beside(self, consumer: Consumer) -> list[Consumer]:
        """The other consumers that may want a message of this one's."""
        known = self._beside.get(consumer)
        if known is None:
            known = self._beside[consumer] = [
                other
                for other in self._stream.consumers.values()
                if other is not consumer and _share_subjects(other.filters, consumer.filters)
            ]
        return known

    def free_at_start(self) -> None:
        """Remove what every consumer is done with; what takes long goes on beside the clients."""
        engine = self._stream.engine
        if not self._stream.consumers:
            self._purge_if_unwanted()
            return
        steps, until = self._free(()), engine.now() + AT_START_NS
        for _ in steps:
            if engine.now() >= until:
                engine.do_in_steps(("acked", self._stream), steps)
                return

    def consumer_gone(self, consumer: Consumer) -> None:
        """What only it still wanted goes."""
        if self._stream.consumers:
            steps = self._free(consumer.filters)
            self._stream.engine.do_in_steps(("acked", self._stream), steps)
        else:
            self._purge_if_unwanted()

    def _free(self, filters: Sequence[str], position: int = 1) -> Iterator[None]:
        """Of the messages that the filters take, those that every consumer is done with go, in steps."""
        stream = self._stream
        if stream.config.retention == "limits":
            return
        end = stream.store.last_seq + 1
        while position < end and not stream.closed and stream.consumers:
            if stream.is_busy:
                yield
                continue
            batch, position = stream.store.read_matching(
                position, AT_ONCE, BYTES_AT_ONCE, list(filters), end, 0
            )
            if len(batch):
                self._free_of(batch, filters)
            elif position < end:
                stream.engine.loads.want(stream.store, position, partial(self._free_on, filters, position))
                return
            yield

    def _free_on(self, filters: Sequence[str], position: int) -> None:
        """The block is there at which `_free` had come to."""
        self._stream.engine.do_in_steps(("acked", self._stream), self._free(filters, position))

    def _free_of(self, batch: Batch, filters: Sequence[str]) -> None:
        stream, gone = self._stream, batch.positions()
        for consumer in stream.consumers.values():
            if gone and _share_subjects(consumer.filters, filters):
                gone = consumer.done_with(gone, batch)
        if stream.config.retention == "workqueue" and gone:
            gone = [seq for seq in gone if self._has_taker(seq)]
        if gone:
            stream.remove_acked(gone)

    def _has_taker(self, sequence: int) -> bool:
        """Work queue: a message that no consumer's filter takes waits for one that does."""
        record = self._stream.store.load_msg(sequence)
        return any(consumer.takes(record.subject) for consumer in self._stream.consumers.values())

    def _purge_if_unwanted(self) -> None:
        """Nobody is left who wants anything: all goes, off the loop. Publishes and calls on the stream wait."""
        stream = self._stream
        if stream.config.retention != "interest" or not stream.store.messages:
            return
        key = (stream.name, WHOLE)

        def done(result: object) -> None:
            if isinstance(result, Exception):
                LOG.warning("messages of %r that nobody wants are still there: %s", stream, result)
            stream.unfence()
            stream.account.calls.end(key)

        stream.account.calls.begin(key)
        stream.fence()
        stream.engine.off_loop(stream.store.purge, done)


def _share_subjects(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two consumers' filters may take the same message; none take all."""
    return not one or not other or any(subjects_overlap(a, b) for a in one for b in other)
