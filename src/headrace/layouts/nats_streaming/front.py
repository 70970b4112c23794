"""The front of a channel: limits and age drop the oldest messages.

A drop is a thought, not a write: nothing in the files changes until all messages of the first slice are dropped and
another slice is there; then its files go. So what was dropped comes back when a channel is opened with higher limits,
as with the real server. `drop` (asked for by a user) is kept in `headrace/front`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.layouts.directories import make_dirs
from headrace.layouts.nats_streaming._kernels import stan_front
from headrace.layouts.nats_streaming.opening import FRONT

if TYPE_CHECKING:
    from headrace.layouts.nats_streaming.channel import Channel

LOG = logging.getLogger("headrace")
_NEVER = -(1 << 63)
_ALL = (1 << 64) - 1


def enforce(channel: Channel) -> None:
    """`max_msgs` and `max_bytes`: the oldest go without an error, but never the last one."""
    limits = channel.limits
    msgs = max(channel.messages - limits.max_msgs, 0) if limits.max_msgs else 0
    size = max(channel.counted - limits.max_bytes, 0) if limits.max_bytes else 0
    if not (msgs or size) or channel.messages <= 1:
        return
    if not channel.dropped_noted:
        LOG.warning(
            'Reached limits for store "%s" (msgs=%d/%d bytes=%d/%d), dropping old messages to make room for new ones',
            *(channel.name, channel.messages, limits.max_msgs, channel.counted, limits.max_bytes),
        )
        channel.dropped_noted = True
    move(channel, msgs=msgs, size=size, keep_from=channel.last)


def expire(channel: Channel) -> None:
    """`max_age`: everything older goes; the last slice stays, so that sequences go on."""
    if channel.limits.max_age and channel.messages:
        move(channel, before_ns=channel.home.clock() - channel.limits.max_age)


def drop(channel: Channel, seq: int) -> int:
    """Everything below `seq` is gone, also after the next opening; returns how many messages went."""
    before = channel.messages
    home, path = channel.home, f"{channel.directory}/{FRONT}"
    make_dirs(home.disk, path.rsplit("/", 1)[0], durable=home.syncs)
    home.disk.replace_file(path, str(min(seq, channel.next)).encode())
    move(channel, below=min(seq, channel.next))
    return before - channel.messages


def move(
    channel: Channel,
    *,
    msgs: int = 0,
    size: int = 0,
    before_ns: int = _NEVER,
    below: int = 0,
    keep_from: int = _ALL,
) -> None:
    """Move the front while any of the reasons holds; then let slices go that are wholly before it."""
    for found in list(channel.slices):
        if not found.indexed or found.last < channel.first:
            continue
        with channel.files_of(found) as (_, index):
            first, gone, counted = stan_front(
                index, found.indexed, found.first, channel.first, msgs, size, before_ns, below, keep_from,
                channel.home.poly,
            )  # fmt: skip
        if not gone:
            channel.first = max(channel.first, first) if channel.messages else channel.first
            break
        channel.messages -= gone
        channel.counted -= counted
        msgs, size = max(msgs - gone, 0), max(size - counted, 0)
        channel.first = first
        if first <= found.last or found.indexed < found.count:
            break
    if not channel.messages:
        channel.first = channel.next
    _remove_slices(channel)


def _remove_slices(channel: Channel) -> None:
    """Files of slices before the front; never the last slice, which keeps the last sequence."""
    if channel.home.read_only:
        return
    while (
        len(channel.slices) > 1 and channel.slices[0].last < channel.first and not channel.slices[0].waiting
    ):
        gone = channel.slices.pop(0)
        channel.home.files.forget(gone.data_path, gone.index_path)
        channel.home.archiver.remove(channel.name, channel.directory, gone.number)
