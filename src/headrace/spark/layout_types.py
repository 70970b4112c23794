"""Columns that only one product has (`layoutColumns=true`, or by name in `columns=`): made only when they are asked for.

JetStream        stream · msg_id (the header Nats-Msg-Id)
NATS Streaming   channel · reply
Kafka            topic · partition · leader_epoch · timestamp_type (of the record batch that holds the message)
RocketMQ         topic · queue_id · commit_log_offset · tags
RabbitMQ         vhost · queue · exchange · routing_key · persistent
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pyarrow as pa

from headrace.layouts.layout import Layout
from headrace.layouts.registry import LAYOUTS, detect, layout_named
from headrace.spark.columns import Columns

_KINDS: Columns = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "bool": pa.bool_()}


def _columns(layouts: Sequence[Layout]) -> Columns:
    return {name: _KINDS[kind] for layout in layouts for name, kind in layout.columns.items()}


@cache
def own_types() -> Columns:
    """Of all products. Loads every layout: a worker that shows none of these columns does without."""
    return _columns([layout_named(name) for name in LAYOUTS])


def layout_columns(paths: Sequence[str]) -> Columns:
    """What the directories have, in all."""
    return _columns([layout_named(name) for name in dict.fromkeys(detect(path) for path in paths)])
