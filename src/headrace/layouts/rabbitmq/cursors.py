"""`RabbitCursors`: deliveries and acks of a queue, the records of its index.

A classic queue has one reader, the queue itself: consumers share it. A message is handed out (`deliver`), then acked
(`ack`) or put back (`requeue`). Since 3.10 the deliver record stands behind every publish and says nothing; who has
what is then known in memory only, and everything unacked is delivered again after a restart. With
`deliver_at_publish=False` the record is written at delivery, as up to 3.9, and survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.layouts.base import ConsumerState, Cursors, Pending, SequencePair, Ticket

if TYPE_CHECKING:
    from headrace.layouts.rabbitmq.log import RabbitLog

READER = "queue"
PENDING_MAX = 1_000_000


class RabbitCursors(Cursors):
    """The reader of one queue. Positions are sequence ids."""

    def __init__(self, log: RabbitLog) -> None:
        self._log = log

    def names(self) -> list[str]:
        """The one reader there is."""
        return [READER]

    def deliver(self, positions: Sequence[int]) -> Ticket:
        """These were handed to a consumer."""
        log = self._log
        with log.lock:
            ticket = log.moves(positions, ack=False, record=not log.options.deliver_at_publish)
            log.next_deliver = max(log.next_deliver, ticket.next)
            return ticket

    def ack(self, positions: Sequence[int]) -> Ticket:
        """These are acked; a fully acked segment goes with the next flush."""
        return self._log.moves(positions, ack=True)

    def requeue(self, positions: Sequence[int]) -> None:
        """Back to their place, to be handed out again."""
        with self._log.lock:
            self._log.kernel.unsend(list(positions))

    def pending(self) -> list[int]:
        """Handed out, not acked."""
        with self._log.lock:
            return self._log.kernel.pending(PENDING_MAX)

    def unacked(self) -> dict[int, int]:
        """Segment → messages in it that are not acked."""
        with self._log.lock:
            return {number: unacked for number, unacked, _, _ in self._log.kernel.segments() if unacked}

    def state_of(self, name: str) -> ConsumerState:
        """Delivered up to, acked up to, what is out."""
        log = self._log
        with log.lock:
            state = log.state()
            pending = {seq: Pending(seq, 0) for seq in self.pending()}
            floor = state.first_seq - 1
            delivered = max(log.next_deliver - 1, floor)
            return ConsumerState(
                delivered=SequencePair(delivered, delivered),
                ack_floor=SequencePair(floor, floor),
                pending=pending,
            )
