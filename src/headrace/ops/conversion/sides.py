"""What each layout has a place for, as far as a conversion must know it."""

from __future__ import annotations

from dataclasses import dataclass, replace

MS = 1_000_000
NO_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Side:
    """A layout as the source or the target of a conversion."""

    layout: str
    codec: str
    """The headers that its encoder takes."""
    origin: int
    """The first position of a log that was never emptied."""
    tick_ns: int
    """What its times are counted in; 0 where the time read back is the store's, not the message's."""
    keys: bool
    nulls: bool
    headers: bool
    holes: bool
    """Whether positions may be left out."""
    subjects: bool
    """Whether each message has a subject (or routing key) of its own."""
    subject_max: int = NO_LIMIT
    position: str = "sequence"
    log: str = "log"
    filters: bool = False
    """Whether a reader may read some subjects of a log only."""
    claims_subjects: bool = False
    """Whether a log has subjects that no other may have."""


SIDES = {
    side.layout: side
    for side in (
        Side(
            *("jetstream", "nats", 1, 1, False, False, True, True, True, 0xFFFF, "sequence", "stream"),
            filters=True,
            claims_subjects=True,
        ),
        Side("nats_streaming", "nats", 1, 1, False, False, False, True, False, log="channel"),
        Side("kafka", "kafka", 0, MS, True, True, True, True, False, position="offset", log="partition"),
        Side("rocketmq", "rocketmq", 0, 0, True, False, True, False, False, position="offset", log="queue"),
        Side("rabbitmq", "nats", 0, 1, True, True, True, True, True, 255, "sequence id", "queue"),
    )
}


def sides(source: str, target: str) -> tuple[Side, Side]:
    """Both sides. From RabbitMQ to RabbitMQ the properties stay as they are."""
    into = SIDES[target]
    if source == target == "rabbitmq":
        into = replace(into, codec="amqp")
    return SIDES[source], into
