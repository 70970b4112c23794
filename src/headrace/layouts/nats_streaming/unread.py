"""What a store holds beside channels, and is not read here: Raft logs, folders without a channel's files."""

from __future__ import annotations

from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.names import SIDE, SUBS, channels, raft_logs, slice_numbers
from headrace.layouts.unread import RAFT, UNKNOWN, Unread, unread_entries


def unread(disk: Disk, path: str) -> list[Unread]:
    """All of it, for a store's root."""
    names = set(channels(disk, path))
    no_channel = {name for name in names if not _is_channel(disk, f"{path}/{name}")}
    places = unread_entries(
        disk, path, lambda name, is_dir: UNKNOWN if is_dir and name in no_channel else None
    )
    for name in sorted(names - no_channel):
        folder = f"{path}/{name}"
        places += unread_entries(
            disk, folder, lambda inner, is_dir: UNKNOWN if is_dir and inner != SIDE else None
        )
    return places + unread_entries(
        disk,
        path,
        lambda name, is_dir: RAFT if is_dir and raft_logs(disk, f"{path}/{name}") else None,
        may_hold_messages=False,
    )


def _is_channel(disk: Disk, folder: str) -> bool:
    return disk.entry(f"{folder}/{SUBS}") is not None or bool(slice_numbers(disk, folder)[0])
