"""What time does to a consumer: pauses end, the unused ones go, deadlines come.

A consumer with an inactivity threshold goes when nobody has used it for so long: a push consumer without a subscriber,
a pull consumer without requests and acknowledgements. After a restart the clock begins anew: that is the grace in which
the subscriber of an ephemeral consumer may come back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.config.model import ConsumerConfig
from headrace.streams.limits import DURATION_NS_MAX
from headrace.units import parse_time_ns

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer

LOG = logging.getLogger("headrace.streams")
_NEVER = 1 << 63


def pause_end(config: ConsumerConfig) -> int | None:
    """When a pause ends, in wall time."""
    return None if config.pause_until is None else parse_time_ns(config.pause_until)


def pause_left_ns(consumer: Consumer) -> int:
    """How long it is still paused."""
    if consumer.pause_until_ns is None:
        return 0
    return min(max(consumer.pause_until_ns - consumer.engine.clock(), 0), DURATION_NS_MAX)


def is_paused(consumer: Consumer, now: int) -> bool:
    """Whether it is paused; when a pause has just ended, that is reported."""
    if pause_left_ns(consumer) > 0:
        return True
    until, consumer.pause_until_ns = consumer.pause_until_ns, None
    if until is not None and until > consumer.created_ns:
        where = (consumer.stream.account, consumer.stream.name, consumer.name)
        consumer.advisories.consumer_paused(*where, paused=False, until_ns=until)
    return False


def next_due(consumer: Consumer, now: int, flush_at: int | None) -> int | None:
    """When to look at it again, on the monotonic clock."""
    due = flush_at if flush_at is not None else _NEVER
    if (deadline := consumer.ledger.next_deadline()) is not None:
        due = min(due, deadline - consumer.wall_offset)
    if (deadline := consumer.delivery.next_due(now)) is not None:
        due = min(due, deadline)
    if consumer.config.inactive_threshold > 0 and (deadline := _inactive_at(consumer, now)) is not None:
        due = min(due, deadline)
    if consumer.pause_until_ns is not None:
        due = min(due, now + pause_left_ns(consumer))
    return None if due == _NEVER else max(due, now)


def _inactive_at(consumer: Consumer, now: int) -> int | None:
    """When it has been unused for too long, as things are now."""
    threshold = consumer.config.inactive_threshold
    if threshold <= 0:
        return None
    used = consumer.delivery.used_at(now)
    if used is None:
        return None
    if not consumer.config.deliver_subject and consumer.config.ack_policy != "none":
        used = max(used, consumer.acked_at)
    return used + threshold


def ended(consumer: Consumer, now: int) -> bool:
    """Whether it was unused for too long; then it is deleted."""
    if consumer.config.inactive_threshold <= 0:
        return False
    consumer.delivery.num_waiting()  # those that nobody listens for do not count as use
    due = _inactive_at(consumer, now)
    if due is None or due > now:
        return False
    account, where = consumer.stream.account, (consumer.stream.name, consumer.name)
    remove = consumer.delete()
    consumer.advisories.consumer_action(account, *where, "delete")

    def removed(result: object) -> None:
        if isinstance(result, Exception):
            LOG.warning("the files of %r are still there: %s", consumer, result)
        account.calls.end(where)

    account.calls.begin(where)  # one of the same name can be made when the files are gone
    consumer.engine.off_loop(remove, removed)
    return True
