"""Columns that only RocketMQ has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace._core import Batch
from headrace.layouts.own_columns import arrow, header, positions, same

if TYPE_CHECKING:
    from headrace.layouts.rocketmq.log import QueueTask

_ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])


def own_column(task: QueueTask, name: str, batch: Batch) -> Any:
    """One of them for the messages of a batch."""
    if name == "topic":
        return same(task.topic, batch)
    if name == "queue_id":
        return same(task.queue, batch)
    if name == "tags":
        return header("TAGS", batch)
    if name == "commit_log_offset":
        return _commit_log_offset(batch, task)
    return None


def _commit_log_offset(batch: Batch, task: QueueTask) -> Any:
    at = positions(batch)
    if not len(at):
        return arrow.array([], pa.int64())
    entries = np.frombuffer(task.entries(int(at[0]), int(at[-1]) + 1), _ENTRY)
    return arrow.array(entries["offset"][at - at[0]].astype(np.int64))
