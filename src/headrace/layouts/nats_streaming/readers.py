"""Subscriptions as every layout's readers: durables and durable queue groups outlive their clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.layouts.base import Log
from headrace.layouts.nats_streaming.protos import SubState
from headrace.layouts.readers import (
    SECOND_NS,
    CarriedReaders,
    DurableReader,
    Readers,
    ReaderState,
    plain_state,
    safe_name,
)

if TYPE_CHECKING:
    from headrace.layouts.nats_streaming.channel import Channel

MAX_IN_FLIGHT = 1024
"""What a subscription without a limit of its own has."""


class ChannelReaders(Readers):
    """The subscriptions of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def states(self) -> list[ReaderState]:
        channel, known = self._channel, self._channel.subscriptions
        end = channel.state().last_seq
        return [
            plain_state(
                channel, each.name, each.kind, known.state_of(each.name), end, durable=each.is_durable
            )
            for each in known.readers()
        ]

    def durable(self) -> list[DurableReader]:
        """A name is the durable's alone where that is clear, else with its client or group."""
        readers = [reader for reader in self._channel.subscriptions.readers() if reader.is_durable]
        bare = Counter(safe_name(reader.durable_name) for reader in readers)
        found: list[DurableReader] = []
        for reader in readers:
            name = safe_name(reader.durable_name)
            if bare[name] > 1:
                name = safe_name(f"{reader.client_id or reader.queue_group}_{reader.durable_name}")
            found.append(
                DurableReader(
                    name,
                    reader.last_sent,
                    reader.floor,
                    reader.pending,
                    reader.ack_wait_s * SECOND_NS,
                    reader.max_in_flight,
                    f"{reader.kind} {reader.name} of NATS Streaming channel {self._channel.name}",
                )
            )
        return found

    def put(self, readers: Sequence[DurableReader]) -> CarriedReaders:
        """Durables of a client of that name."""
        known, done = self._channel.subscriptions, CarriedReaders()
        for reader in readers:
            name = reader.name
            try:
                there = [one.state.id for one in known.subscriptions() if one.reader == f"{name}/{name}"]
                number = there[0] if there else known.create(_state(reader))
                known.sent(number, reader.pending)
            except HeadraceError as problem:
                done.notes.append(f"{reader.origin}: {problem}")
                continue
            done.names.append(name)
            done.notes += [f"{reader.origin}: {note}" for note in reader.notes]
        if readers:
            known.commit()
        return done

    def carry(self, source: Log, shift: int) -> CarriedReaders:
        """Between channels whole."""
        if not isinstance(source.readers, ChannelReaders):
            return super().carry(source, shift)
        known = self._channel.subscriptions
        if not len(known):
            known.take_from(source.readers._channel.subscriptions)
        known.commit()
        return CarriedReaders(known.names())


def _state(reader: DurableReader) -> SubState:
    return SubState(
        client_id=reader.name,
        last_sent=reader.delivered,
        inbox=f"_INBOX.{reader.name}",
        ack_inbox=f"_INBOX.{reader.name}.acks",
        max_in_flight=min(reader.max_pending, 0x7FFF_FFFF) if reader.max_pending > 0 else MAX_IN_FLIGHT,
        ack_wait_s=max(reader.ack_wait_ns // SECOND_NS, 1),
        durable_name=reader.name,
        is_durable=True,
        is_closed=True,
    )
