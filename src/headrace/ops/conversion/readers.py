"""Readers that outlive their clients, from one layout to the other: where they stand and what they have not settled.

NATS Streaming   durable, durable queue group
JetStream        durable consumer (o.dat)
Kafka            group (its committed offset; nothing of what is open behind it)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.errors import HeadraceError
from headrace.layouts.base import ConsumerState, Log, Pending, SequencePair, Volume
from headrace.layouts.jetstream.config import ConsumerConfig
from headrace.layouts.jetstream.rebuild import copy_consumers
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.kafka.offsets import Committed
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.nats_streaming.channel import Channel
from headrace.layouts.nats_streaming.protos import SubState

_SECOND_NS = 1_000_000_000
OFFSETS_LOGS = "__consumer_offsets-"
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

    def moved(self, shift: int) -> Found:
        """The same in the target's positions."""
        pending = tuple(seq + shift for seq in self.pending)
        return replace(self, delivered=self.delivered + shift, floor=self.floor + shift, pending=pending)


@dataclass(slots=True)
class Carried:
    """What became of the readers of one log."""

    names: list[str] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])


class Readers:
    """Carries the readers of one volume into another."""

    def __init__(self, source: Volume, target: Volume) -> None:
        self._source, self._target = source, target
        self._committed: dict[tuple[str, str], Committed] | None = None

    def carry(self, source: Log, target: Log, shift: int) -> Carried:
        """Every durable reader of a log, where both sides know such readers. `shift`: what positions moved by."""
        done = Carried()
        if isinstance(source, FileStreamStore) and isinstance(target, FileStreamStore):
            there = target.consumers.names()  # an interrupted conversion may have made some
            failed = copy_consumers(source, target)
            for name in there:
                if name in failed:
                    target.consumers.get(name).update(source.consumers.state_of(name))
                    del failed[name]
            target.consumers.commit()
            done.names = [name for name in source.consumers.names() if name not in failed]
            done.notes = [f"consumer {name}: {why}" for name, why in failed.items()]
        elif isinstance(source, Channel) and isinstance(target, Channel):
            if not len(target.subscriptions):
                target.subscriptions.take_from(source.subscriptions)
            target.subscriptions.commit()
            done.names = target.subscriptions.names()
        elif found := [each.moved(shift) for each in self._found(source)]:
            if isinstance(target, FileStreamStore):
                _to_consumers(found, target, done)
            elif isinstance(target, Channel):
                _to_channel(found, target, done)
            elif isinstance(self._target, KafkaVolume):
                _to_groups(found, self._target, target.name, done)
            else:
                done.notes.append(_left([each.name for each in found]))
        return done

    def _found(self, source: Log) -> list[Found]:
        if isinstance(source, Channel):
            return _of_channel(source)
        if isinstance(source, FileStreamStore):
            return _of_stream(source)
        if isinstance(self._source, KafkaVolume):
            if self._committed is None:
                self._committed = self._source.committed()
            return [
                Found(group, it.next - 1, it.next - 1, (), 0, 0, f"group {group} of Kafka log {log}")
                for (group, log), it in sorted(self._committed.items())
                if log == source.name
            ]
        return []


def _left(names: Sequence[str], why: str = "") -> str:
    return f"{len(names)} reader(s) not carried over{why}: {', '.join(names[:10])}"


def _to_groups(readers: list[Found], volume: KafkaVolume, log: str, done: Carried) -> None:
    """What a group is given next is the first message that it has not settled: some may come twice, none is missed."""
    if not any(name.startswith(OFFSETS_LOGS) for name in volume.logs()):
        why = " (no __consumer_offsets in the directory: a broker makes it when the first group commits)"
        done.notes.append(_left([reader.name for reader in readers], why))
        return
    for reader in readers:
        volume.write_offsets(reader.name, {log: reader.floor + 1})
        done.names.append(reader.name)
        again = reader.delivered - reader.floor - len(reader.pending)
        if again:
            done.notes.append(
                f"{reader.origin}: {again} settled message(s) behind its first open one come again"
            )


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
        name = _NOT_IN_NAME.sub("_", reader.name)
        config = ConsumerConfig(
            durable_name=name,
            name=name,
            description=f"converted from {reader.origin}"[:4096],
            ack_policy="explicit",
            ack_wait=reader.ack_wait_ns,
            max_ack_pending=reader.max_pending if reader.max_pending > 0 else 0,
        ).filled()
        # A delivery a day ago: whoever has the message in hand is gone, so it is due again at once.
        pending = {seq: Pending(seq, now - 86_400 * _SECOND_NS) for seq in reader.pending if seq >= first}
        floor = min(pending, default=reader.delivered + 1) - 1
        try:
            known = name in store.consumers.names()  # an interrupted conversion made it
            made = store.consumers.get(name) if known else store.consumers.create(name, config, now)
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
        done.names.append(name)
    store.consumers.commit()


def _to_channel(readers: list[Found], channel: Channel, done: Carried) -> None:
    for reader in readers:
        name = reader.name
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
            there = [
                one.state.id
                for one in channel.subscriptions.subscriptions()
                if one.reader == f"{name}/{name}"
            ]
            number = there[0] if there else channel.subscriptions.create(state)
            channel.subscriptions.sent(number, reader.pending)
        except HeadraceError as problem:
            done.notes.append(f"{reader.origin}: {problem}")
            continue
        done.names.append(reader.name)
        done.notes += [f"{reader.origin}: {note}" for note in reader.notes]
    channel.subscriptions.commit()
