"""What happens while a store is open: age, inactivity, auto_sync, files nobody reads any more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.layouts.nats_streaming import front

if TYPE_CHECKING:
    from headrace.layouts.nats_streaming.channel import Channel
    from headrace.layouts.nats_streaming.volume import StreamingVolume

LOG = logging.getLogger("headrace")
TICK_S = 1.0
IDLE_S = 1.0


def apply_limits_on_open(channel: Channel) -> None:
    """Limits are applied once more when a channel is opened, without a word, as the real server does."""
    channel.dropped_noted = True
    front.enforce(channel)
    front.expire(channel)
    channel.dropped_noted = False


def tick(volume: StreamingVolume) -> None:
    """One round."""
    now = volume.home.clock()
    for channel in volume.opened():
        channel.tick()
        idle = now - channel.active_ns
        limit = channel.limits.max_inactivity
        if limit and idle >= limit:
            if channel.subscriptions.active:
                channel.active_ns = now
            else:
                volume.delete(channel.name)
                LOG.info('Channel "%s" has been deleted', channel.name)
    volume.home.files.close_idle(IDLE_S)


def sync_all(volume: StreamingVolume) -> None:
    """`auto_sync`: whatever is written and not synced yet."""
    for channel in volume.opened():
        channel.subscriptions.flush()
        channel.commit()
    for path in volume.home.files.dirty():
        volume.home.files.sync(path)
