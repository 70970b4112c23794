"""Who reads a log and how far: JetStream's consumers, NATS Streaming's subscriptions, Kafka's groups, RabbitMQ's queues.

    lag         messages that the reader was not given yet
    pending     given, not settled
RocketMQ keeps the readers' offsets outside of its store: nothing is known of them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.layouts.base import ConsumerState, Log, Volume
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.nats_streaming.channel import Channel
from headrace.layouts.rabbitmq.volume import RabbitVolume


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader of one log. Positions are the log's; `delivered` and `ack_floor` are included in what is done."""

    log: str
    consumer: str
    kind: str
    durable: bool
    filter: str
    delivered: int
    ack_floor: int
    pending: int
    redelivered: int
    lag: int
    oldest_pending: int | None


def readers_of(volume: Volume, name: str) -> Iterator[Reader]:
    """Every reader of a log, by name."""
    log = volume.open(name)
    if isinstance(log, FileStreamStore):
        yield from _of_stream(log)
    elif isinstance(log, Channel):
        end = log.state().last_seq
        for reader in log.subscriptions.readers():
            state = log.subscriptions.state_of(reader.name)
            yield _reader(log, reader.name, reader.kind, state, end, durable=reader.is_durable)
    elif isinstance(volume, KafkaVolume):
        cursors, end = volume.cursors(name), log.state().last_seq
        for group in cursors.names():
            yield _reader(log, group, "group", cursors.state_of(group), end)
    elif isinstance(volume, RabbitVolume):
        readers, end = volume.cursors(name), log.state().last_seq
        for reader in readers.names():
            yield _reader(log, reader, "queue", readers.state_of(reader), end)


def _of_stream(store: FileStreamStore) -> Iterator[Reader]:
    for name in store.consumers.names():
        config, state = store.consumers.get(name).config, store.consumers.state_of(name)
        waiting = sum(
            store.filtered_state(state.delivered.stream + 1, each).msgs for each in config.filters or (">",)
        )
        kind = "push" if config.deliver_subject else "pull"
        yield Reader(
            log=store.name,
            consumer=name,
            kind=kind,
            durable=bool(config.durable_name),
            filter=",".join(config.filters),
            delivered=state.delivered.stream,
            ack_floor=state.ack_floor.stream,
            pending=len(state.pending),
            redelivered=len(state.redelivered),
            lag=waiting,
            oldest_pending=min(state.pending, default=None),
        )


def _reader(
    log: Log, name: str, kind: str, state: ConsumerState, end: int, *, durable: bool = True
) -> Reader:
    return Reader(
        log=log.name,
        consumer=name,
        kind=kind,
        durable=durable,
        filter="",
        delivered=state.delivered.stream,
        ack_floor=state.ack_floor.stream,
        pending=len(state.pending),
        redelivered=len(state.redelivered),
        lag=max(end - state.delivered.stream, 0),
        oldest_pending=min(state.pending, default=None),
    )
