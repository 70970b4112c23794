"""What happens while a store is open: age, inactivity, auto_sync, files nobody reads any more."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from headrace.layouts.nats_streaming import front

if TYPE_CHECKING:
    from headrace.layouts.nats_streaming.channel import Channel
    from headrace.layouts.nats_streaming.volume import StreamingVolume

LOG = logging.getLogger("headrace")
TICK_S = 1.0
IDLE_S = 1.0


def settle(channel: Channel) -> None:
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


class Keeper:
    """The thread that calls `tick` about once a second and syncs every `file_auto_sync`."""

    def __init__(self, volume: StreamingVolume) -> None:
        self._volume, self._stop = volume, threading.Event()
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="headrace-streaming-upkeep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        every = self._volume.options.file_auto_sync / 1e9
        synced = time.monotonic()
        while not self._stop.wait(TICK_S):
            try:
                tick(self._volume)
                if every > 0 and time.monotonic() - synced >= every:
                    synced = time.monotonic()
                    sync_all(self._volume)
            except Exception as error:  # the next round tries again; commits tell it to their callers
                if str(error) != self._last_error:
                    LOG.warning("upkeep of %s: %s", self._volume.path, error)
                self._last_error = str(error)

    def stop(self) -> None:
        """End it and wait."""
        self._stop.set()
        self._thread.join()


def sync_all(volume: StreamingVolume) -> None:
    """`auto_sync`: whatever is written and not synced yet."""
    for channel in volume.opened():
        channel.subscriptions.flush()
        channel.commit()
    for path in volume.home.files.dirty():
        volume.home.files.sync(path)
