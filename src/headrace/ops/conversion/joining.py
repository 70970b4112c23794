"""Logs that become one: their messages in one order, round by round.

    time   a merge by the messages' times; each log keeps its own order, and equal times go by the order of the logs
    log    one log after the other

The order does not depend on how the logs are read, so that an interrupted conversion and the comparison at the end find
it again. Memory holds one read of each log, together not more than `HELD_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.layouts.base import Log
from headrace.ops._kernels import Batch, merge_round

ORDERS = ("time", "log")
HELD_BYTES = 64 << 20
READ_BYTES_LEAST = 128 << 10
READ_MESSAGES = 65_536
ORIGIN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Round:
    """The next messages: what each log gives, as it is stored there, and the log of each message in order."""

    parts: list[Batch]
    origins: bytes

    @property
    def messages(self) -> int:
        return len(self.origins) // ORIGIN_BYTES

    def origins_from(self, first: int, count: int) -> bytes:
        """The logs of some of its messages."""
        return self.origins[first * ORIGIN_BYTES : (first + count) * ORIGIN_BYTES]


def rounds(logs: Sequence[Log], subjects: Sequence[tuple[str, ...]], order: str) -> Iterator[Round]:
    """All messages of the logs (of these subjects, where some are named)."""
    each = max(HELD_BYTES // max(len(logs), 1), READ_BYTES_LEAST)
    reading = [_reads(log, wanted, each) for log, wanted in zip(logs, subjects, strict=True)]
    held = [next(more, None) for more in reading]
    empty, keys = Batch.build(subjects=[], data=[]), [0] * len(logs)
    while any(batch is not None for batch in held):
        batches = [empty if batch is None else batch for batch in held]
        found = merge_round(batches, keys, [batch is None for batch in held], order == "time")
        parts = [batch.slice(0, taken) for batch, taken in zip(batches, found.taken, strict=True)]
        keys = found.keys
        for at, (batch, taken) in enumerate(zip(batches, found.taken, strict=True)):
            if taken < len(batch):
                held[at] = batch.slice(taken, len(batch))
            elif held[at] is not None:
                held[at] = next(reading[at], None)
        yield Round(parts, found.origins)


def _reads(log: Log, subjects: tuple[str, ...], max_bytes: int) -> Iterator[Batch]:
    position = 0
    while True:
        batch = log.read(position, max_msgs=READ_MESSAGES, max_bytes=max_bytes)
        if not len(batch):
            return
        position = batch.last_position + 1
        kept = batch.filter(None, None, None, None, list(subjects)) if subjects else batch
        if len(kept):
            yield kept
