"""The columns of `layout_types`, made from batches and tasks: only when they are asked for."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.layouts.base import Batch, ScanTask
from headrace.layouts.jetstream.scan_task import BlockTask
from headrace.layouts.kafka.names import split_name as split_partition
from headrace.layouts.kafka.scan_task import SegmentTask
from headrace.layouts.nats_streaming.scan_task import SliceTask
from headrace.layouts.places import disk_at, is_remote
from headrace.layouts.rabbitmq.scan_task import SegmentTask as QueueSegment
from headrace.layouts.rocketmq.log import QueueTask
from headrace.spark.columns import arrow, one_column
from headrace.spark.kernels import kernels
from headrace.spark.layout_types import TYPES

_LOG_APPEND_TIME = 8
_ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])


def layout_column(name: str, batch: Batch, task: ScanTask) -> Any:
    """One of them for the messages of a batch; null where the product of the task has no such thing."""
    for kind, makers in _MAKERS.items():
        if isinstance(task, kind) and name in makers:
            return kernels.cast(makers[name](batch, task), TYPES[name])
    return arrow.nulls(len(batch), TYPES[name])


def _header(name: str) -> Callable[[Batch, ScanTask], Any]:
    def found(batch: Batch, task: ScanTask) -> Any:
        headers = one_column(batch, "headers")
        return kernels.list_element(_first_value(kernels.map_lookup(headers, name, "first")), 0)

    return found


def _first_value(lists: Any) -> Any:
    """Lists with at least one element: an empty one has a null."""
    return kernels.if_else(
        kernels.equal(kernels.list_value_length(lists), 0), arrow.scalar([None], lists.type), lists
    )


def _same(value: Callable[[Any], object]) -> Callable[[Batch, Any], Any]:
    def found(batch: Batch, task: Any) -> Any:
        return arrow.repeat(value(task), len(batch))

    return found


def _persistent(batch: Batch, task: ScanTask) -> Any:
    return kernels.fill_null(kernels.equal(_header("delivery-mode")(batch, task), "2"), False)


def _subject(batch: Batch, task: ScanTask) -> Any:
    return one_column(batch, "subject")


def _positions(batch: Batch) -> Any:
    return one_column(batch, "seq").to_numpy()


def _commit_log_offset(batch: Batch, task: QueueTask) -> Any:
    at = _positions(batch)
    if not len(at):
        return arrow.array([], pa.int64())
    entries = np.frombuffer(task.entries(int(at[0]), int(at[-1]) + 1), _ENTRY)
    return arrow.array(entries["offset"][at - at[0]].astype(np.int64))


@contextmanager
def _bytes_of(path: str) -> Generator[Any]:
    """All of a file: mapped, or read at once where that cannot be."""
    if is_remote(path):
        yield disk_at(path).read(path)
        return
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        yield view


@lru_cache(maxsize=4)
def _record_batches(path: str, size: int) -> tuple[Any, Any, Any]:
    """(first offset, leader epoch or −1, attributes) of every record batch, by their heads alone; ends at what is none."""
    heads: list[tuple[int, int, int]] = []
    with _bytes_of(path) as view:
        at = following = 0
        while at + 27 <= min(size, len(view)):
            first, length, epoch, magic = struct.unpack_from(">qiib", view, at)
            if length <= 0 or not 0 <= magic <= 2:
                break
            if magic == 2:
                attributes, last = struct.unpack_from(">hi", view, at + 21)
                heads.append((first, epoch, attributes))
                following = first + last + 1
            else:
                # An older set has the offset of its last message: it begins behind the one before.
                heads.append((min(following, first), -1, view[at + 17] if magic == 1 else 0))
                following = first + 1
            at += 12 + length
    made = np.array(heads, np.int64).reshape(-1, 3)
    return made[:, 0], made[:, 1], made[:, 2]


def _of_record_batch(batch: Batch, task: SegmentTask) -> tuple[Any, Any]:
    first, epochs, attributes = _record_batches(task.path, task.size_bytes)
    if not len(first):
        nothing = arrow.nulls(len(batch), pa.int64())
        return nothing, nothing
    at = cast("Any", np).clip(np.searchsorted(first, _positions(batch), "right") - 1, 0, None)
    return arrow.array(epochs[at]), arrow.array(attributes[at])


def _leader_epoch(batch: Batch, task: SegmentTask) -> Any:
    epochs = _of_record_batch(batch, task)[0]
    return kernels.if_else(kernels.less(epochs, 0), arrow.scalar(None, pa.int64()), epochs)


def _timestamp_type(batch: Batch, task: SegmentTask) -> Any:
    attributes = _of_record_batch(batch, task)[1]
    appended = kernels.not_equal(kernels.bit_wise_and(attributes, _LOG_APPEND_TIME), 0)
    return kernels.if_else(appended, "LogAppendTime", "CreateTime")


_MAKERS: dict[type[ScanTask], dict[str, Callable[[Batch, Any], Any]]] = {
    BlockTask: {"stream": _same(lambda task: task.stream), "msg_id": _header("Nats-Msg-Id")},
    SliceTask: {"channel": _same(lambda task: task.log), "reply": _header("Nats-Streaming-Reply")},
    SegmentTask: {
        "topic": _same(lambda task: task.topic),
        "partition": _same(lambda task: split_partition(task.log)[1]),
        "leader_epoch": _leader_epoch,
        "timestamp_type": _timestamp_type,
    },
    QueueTask: {
        "topic": _same(lambda task: task.topic),
        "queue_id": _same(lambda task: task.queue),
        "commit_log_offset": _commit_log_offset,
        "tags": _header("TAGS"),
    },
    QueueSegment: {
        "vhost": _same(lambda task: task.log.rpartition("/")[0] or "/"),
        "queue": _same(lambda task: task.log.rpartition("/")[2]),
        "exchange": _header("amqp-exchange"),
        "routing_key": _subject,
        "persistent": _persistent,
    },
}
