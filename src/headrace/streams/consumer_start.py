"""Where a new consumer begins, by its deliver policy.

all                 the first message            new                  behind the last one
last                the newest that matches      last_per_subject     the newest of each subject, then what is newer
by_start_sequence   that one, or the nearest     by_start_time        the first that is not older
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.layouts.jetstream.config import ConsumerConfig
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.streams.subjects import covers
from headrace.units import parse_time_ns


class Start(NamedTuple):
    """The first sequence to look at; or those to deliver before everything from `resume` on."""

    first: int
    skip_list: tuple[int, ...] = ()
    resume: int = 0


def start_of(config: ConsumerConfig, store: FileStreamStore) -> Start:
    """The start of a consumer that is made now."""
    log = store.log
    first, last = log.first_seq(), log.totals()[2]
    if config.deliver_policy == "last_per_subject":
        newest = log.last_per_subject(list(config.filters or (">",)))
        return Start(newest[0], tuple(newest), last + 1) if newest else Start(last + 1)
    if config.deliver_policy == "last":
        wanted = _last_match(config, store, last)
    elif config.deliver_policy == "new":
        wanted = last + 1
    elif config.deliver_policy == "by_start_sequence":
        wanted = config.opt_start_seq
    elif config.deliver_policy == "by_start_time" and config.opt_start_time is not None:
        wanted = log.seq_from_time(parse_time_ns(config.opt_start_time))
    else:
        wanted = first
    if config.deliver_policy == "by_start_sequence":
        return Start(max(wanted, first))  # also one that is still to come
    return Start(min(max(wanted, first), last + 1))


def front_after_purge(filters: Sequence[str], purged: str, store: FileStreamStore) -> int:
    """What a consumer is done with after a purge of a subject ("" for any): everything below this; 0 for nothing.

    As nats-server 2.15.2 does it: a consumer of purged subjects only goes on at the first message that the purge
    left of them, one that takes more at the stream's first, one that takes others stays where it is.
    """
    log = store.log
    if not purged or not filters or any(covers(each, purged) and each != purged for each in filters):
        return log.first_seq()
    if not all(covers(purged, each) for each in filters):
        return 0
    left = log.next_match(purged, 1)
    return left[0] if left is not None else log.totals()[2] + 1


def _last_match(config: ConsumerConfig, store: FileStreamStore, last: int) -> int:
    if not config.filters:
        return last
    found = (store.log.last_match(each) for each in config.filters)
    return max((each[0] for each in found if each is not None), default=0)
