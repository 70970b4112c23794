"""The error for a directory that nobody here knows: what it is, and what would be one."""

from __future__ import annotations

from headrace.errors import UnknownFormat

EXPECTED = "a directory of NATS JetStream, NATS Streaming, Kafka, RocketMQ or RabbitMQ, or an archive"
REMEDY = (
    "give the product's data directory (for NATS the one that holds `jetstream`, for Kafka one of log.dirs), or a "
    "stream's own"
)


def unknown(path: str, seen: str) -> UnknownFormat:
    """To be raised."""
    return UnknownFormat(path, 0, seen, EXPECTED, REMEDY)
