"""Columns that only Kafka has: of the record batch that holds a message, by the heads of the batches alone."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from headrace._core import Batch
from headrace.layouts.kafka.names import split_name
from headrace.layouts.own_columns import arrow, kernels, positions, same
from headrace.layouts.places import disk_at, is_remote

if TYPE_CHECKING:
    from headrace.layouts.kafka.scan_task import SegmentTask

_LOG_APPEND_TIME = 8


def own_column(task: SegmentTask, name: str, batch: Batch) -> Any:
    """One of them for the messages of a batch."""
    if name == "topic":
        return same(task.topic, batch)
    if name == "partition":
        return same(split_name(task.log)[1], batch)
    if name == "leader_epoch":
        epochs = _of_record_batch(batch, task)[0]
        return kernels.if_else(kernels.less(epochs, 0), arrow.scalar(None, pa.int64()), epochs)
    if name == "timestamp_type":
        attributes = _of_record_batch(batch, task)[1]
        appended = kernels.not_equal(kernels.bit_wise_and(attributes, _LOG_APPEND_TIME), 0)
        return kernels.if_else(appended, "LogAppendTime", "CreateTime")
    return None


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
    at = cast("Any", np).clip(np.searchsorted(first, positions(batch), "right") - 1, 0, None)
    return arrow.array(epochs[at]), arrow.array(attributes[at])
