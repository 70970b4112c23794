"""A classic queue's one reader, the queue itself, as every layout's readers. Nothing of it outlives the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.layouts.rabbitmq.cursors import RabbitCursors
from headrace.layouts.readers import Readers, ReaderState, plain_state

if TYPE_CHECKING:
    from headrace.layouts.rabbitmq.log import RabbitLog


class QueueReaders(Readers):
    """Deliveries and acks of one queue."""

    def __init__(self, log: RabbitLog) -> None:
        self._log = log

    def states(self) -> list[ReaderState]:
        cursors, end = RabbitCursors(self._log), self._log.state().last_seq
        return [
            plain_state(self._log, name, "queue", cursors.state_of(name), end) for name in cursors.names()
        ]
