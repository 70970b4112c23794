"""Readers that outlive their clients, from one layout to the other: where they stand and what they have not settled.

    NATS Streaming   durable, durable queue group   ⇄   JetStream   durable consumer (o.dat)

Positions are those of the target: both sides count from 1, so they stay what they were.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.layouts.base import ConsumerState, Log, Pending, SequencePair
from headrace.layouts.jetstream.config import ConsumerConfig
from headrace.layouts.jetstream.rebuild import copy_consumers
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.nats_streaming.channel import Channel
from headrace.layouts.nats_streaming.protos import SubState

_SECOND_NS = 1_000_000_000
_NOT_IN_NAME = re.compile(r"[\s.*>/\\:\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Found:
    """A reader of the source."""

    name: str
    delivered: int
    floor: int
    pending: tuple[int, ...]
    ack_wait_ns: int
    max_pending: int
    origin: str
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Carried:
    """What became of the readers of one log."""

    names: list[str] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])


def carry_readers(source: Log, target: Log) -> Carried:
    """Every durable reader of the source into the target, where both know such readers."""
    done = Carried()
    if isinstance(source, FileStreamStore) and isinstance(target, FileStreamStore):
        failed = copy_consumers(source, target)
        done.names = [name for name in source.consumers.names() if name not in failed]
        done.notes = [f"consumer {name}: {why}" for name, why in failed.items()]
    elif isinstance(source, Channel) and isinstance(target, Channel):
        target.subscriptions.take_from(source.subscriptions)
        target.subscriptions.commit()
        done.names = target.subscriptions.names()
    elif isinstance(source, Channel) and isinstance(target, FileStreamStore):
        _to_consumers(_of_channel(source), target, done)
    elif isinstance(source, FileStreamStore) and isinstance(target, Channel):
        _to_channel(_of_stream(source), target, done)
    elif isinstance(source, FileStreamStore | Channel) and (known := _names(source)):
        done.notes.append(f"{len(known)} reader(s) not carried over: {', '.join(known[:10])}")
    return done


def _names(source: FileStreamStore | Channel) -> list[str]:
    if isinstance(source, FileStreamStore):
        return source.consumers.names()
    return [reader.name for reader in source.subscriptions.readers() if reader.is_durable]


def _of_channel(channel: Channel) -> list[Found]:
    """Durables and durable groups. A name is the durable's alone where that is clear, else with its client or group."""
    readers = [reader for reader in channel.subscriptions.readers() if reader.is_durable]
    bare = Counter(_NOT_IN_NAME.sub("_", reader.durable_name) for reader in readers)
    found: list[Found] = []
    for reader in readers:
        name = _NOT_IN_NAME.sub("_", reader.durable_name)
        if bare[name] > 1:
            name = _NOT_IN_NAME.sub("_", f"{reader.client_id or reader.queue_group}_{reader.durable_name}")
        found.append(
            Found(
                name,
                reader.last_sent,
                reader.floor,
                reader.pending,
                reader.ack_wait_s * _SECOND_NS,
                reader.max_in_flight,
                f"{reader.kind} {reader.name} of NATS Streaming channel {channel.name}",
            )
        )
    return found


def _of_stream(store: FileStreamStore) -> list[Found]:
    found: list[Found] = []
    for name in store.consumers.names():
        config, state = store.consumers.get(name).config, store.consumers.state_of(name)
        if not config.durable_name:
            continue
        notes = (f"its filter {', '.join(config.filters)} has no place there",) if config.filters else ()
        waits = config.ack_wait or 30 * _SECOND_NS
        found.append(
            Found(
                name,
                state.delivered.stream,
                state.ack_floor.stream,
                tuple(sorted(state.pending)),
                waits,
                config.max_ack_pending,
                f"consumer {name}",
                notes,
            )
        )
    return found


def _to_consumers(readers: list[Found], store: FileStreamStore, done: Carried) -> None:
    now = store.clock()
    first = store.fast_state().first_seq
    for reader in readers:
        config = ConsumerConfig(
            durable_name=reader.name,
            name=reader.name,
            description=f"converted from {reader.origin}"[:4096],
            ack_policy="explicit",
            ack_wait=reader.ack_wait_ns,
            max_ack_pending=reader.max_pending if reader.max_pending > 0 else 0,
        ).filled()
        # A delivery a day ago: whoever has the message in hand is gone, so it is due again at once.
        pending = {seq: Pending(seq, now - 86_400 * _SECOND_NS) for seq in reader.pending if seq >= first}
        floor = min(pending, default=reader.delivered + 1) - 1
        try:
            made = store.consumers.create(reader.name, config, now)
            made.update(
                ConsumerState(
                    delivered=SequencePair(reader.delivered, reader.delivered),
                    ack_floor=SequencePair(floor, floor),
                    pending=pending,
                )
            )
        except HeadraceError as problem:
            done.notes.append(f"{reader.origin}: {problem}")
            continue
        done.names.append(reader.name)
    store.consumers.commit()


def _to_channel(readers: list[Found], channel: Channel, done: Carried) -> None:
    for reader in readers:
        state = SubState(
            client_id=reader.name,
            last_sent=reader.delivered,
            inbox=f"_INBOX.{reader.name}",
            ack_inbox=f"_INBOX.{reader.name}.acks",
            max_in_flight=min(reader.max_pending, 0x7FFF_FFFF) if reader.max_pending > 0 else 1024,
            ack_wait_s=max(reader.ack_wait_ns // _SECOND_NS, 1),
            durable_name=reader.name,
            is_durable=True,
            is_closed=True,
        )
        try:
            number = channel.subscriptions.create(state)
            channel.subscriptions.sent(number, reader.pending)
        except HeadraceError as problem:
            done.notes.append(f"{reader.origin}: {problem}")
            continue
        done.names.append(reader.name)
        done.notes += [f"{reader.origin}: {note}" for note in reader.notes]
    channel.subscriptions.commit()
