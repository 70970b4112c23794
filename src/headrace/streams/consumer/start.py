"""Where a new consumer begins, by its deliver policy.

all                 the first message            new                  behind the last one
last                the newest that matches      last_per_subject     the newest of each subject, then what is newer
by_start_sequence   that one, or the nearest     by_start_time        the first that is not older
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from headrace.config.model import ConsumerConfig
from headrace.errors import EndOfStream
from headrace.layouts.stream_store import StreamStore
from headrace.streams.consumer.pending import Count, count
from headrace.streams.subjects import covers
from headrace.units import parse_time_ns


class Start(NamedTuple):
    """The first sequence to look at; or those to deliver before everything from `resume` on (8 bytes for each)."""

    first: int
    skip_list: bytes = b""
    resume: int = 0
    counted: Count | None = None
    """What waits for it, where that may have taken a while to count."""


def start_of(config: ConsumerConfig, store: StreamStore) -> Start:
    """The start of a consumer that is made now, on whatever thread."""
    start = _start(config, store)
    if not config.filters and not start.skip_list:
        return start
    first = start.resume if start.skip_list else start.first
    shown = store.durability == "sync" and store.type() == "file"
    end = store.durable_next if shown else store.last_seq + 1
    return start._replace(counted=count(store, first, end, config.filters, start.skip_list))


def _start(config: ConsumerConfig, store: StreamStore) -> Start:
    first, last = store.first_seq, store.last_seq
    if config.deliver_policy == "last_per_subject":
        newest = store.last_per_subject(list(config.filters or (">",)))
        first = int.from_bytes(newest[:8], sys.byteorder)
        return Start(first, newest, last + 1) if newest else Start(last + 1)
    if config.deliver_policy == "last":
        wanted = _last_match(config, store, last)
    elif config.deliver_policy == "new":
        wanted = last + 1
    elif config.deliver_policy == "by_start_sequence":
        wanted = config.opt_start_seq
    elif config.deliver_policy == "by_start_time" and config.opt_start_time is not None:
        wanted = store.seq_from_time(parse_time_ns(config.opt_start_time))
    else:
        wanted = first
    if config.deliver_policy == "by_start_sequence":
        return Start(max(wanted, first))  # also one that is still to come
    return Start(min(max(wanted, first), last + 1))


def front_after_purge(filters: Sequence[str], purged: str, store: StreamStore) -> int:
    """What a consumer is done with after a purge of a subject ("" for any): everything below this; 0 for nothing.

    As nats-server 2.15.2 does it: a consumer of purged subjects only goes on at the first message that the purge
    left of them, one that takes more at the stream's first, one that takes others stays where it is.
    """
    if not purged or not filters or any(covers(each, purged) and each != purged for each in filters):
        return store.first_seq
    if not all(covers(purged, each) for each in filters):
        return 0
    try:
        return store.load_next_msg(purged, 1).seq
    except EndOfStream:
        return store.last_seq + 1


def _last_match(config: ConsumerConfig, store: StreamStore, last: int) -> int:
    if not config.filters:
        return last
    return max(store.last_seq_of(each) for each in config.filters)
