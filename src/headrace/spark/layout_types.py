"""Columns that only one product has (`layoutColumns=true`, or by name in `columns=`): made only when they are asked for.

JetStream        stream · msg_id (the header Nats-Msg-Id)
NATS Streaming   channel · reply
Kafka            topic · partition · leader_epoch · timestamp_type (of the record batch that holds the message)
RocketMQ         topic · queue_id · commit_log_offset · tags
RabbitMQ         vhost · queue · exchange · routing_key · persistent
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.layouts.detect import JETSTREAM, detect
from headrace.spark.columns import Columns

BY_LAYOUT: dict[str, Columns] = {
    JETSTREAM: {"stream": pa.string(), "msg_id": pa.string()},
    "nats_streaming": {"channel": pa.string(), "reply": pa.string()},
    "kafka": {
        "topic": pa.string(),
        "partition": pa.int32(),
        "leader_epoch": pa.int32(),
        "timestamp_type": pa.string(),
    },
    "rocketmq": {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "commit_log_offset": pa.int64(),
        "tags": pa.string(),
    },
    "rabbitmq": {
        "vhost": pa.string(),
        "queue": pa.string(),
        "exchange": pa.string(),
        "routing_key": pa.string(),
        "persistent": pa.bool_(),
    },
}
TYPES: Columns = {name: kind for columns in BY_LAYOUT.values() for name, kind in columns.items()}


def layout_columns(paths: Sequence[str]) -> Columns:
    """What the directories have, in all."""
    found = dict.fromkeys(detect(path) for path in paths)
    return {name: kind for layout in found for name, kind in BY_LAYOUT[layout].items()}
