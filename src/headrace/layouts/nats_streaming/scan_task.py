"""Reading one slice by itself: what Spark's tasks and parallel reading are made of. Needs nothing but its two files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import KeyNeeded
from headrace.layouts.base import Damage, Predicate, ScanTask
from headrace.layouts.nats_streaming._kernels import Batch, Disk, stan_index, stan_mend, stan_read
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.seal import channel_key, key_text
from headrace.layouts.nats_streaming.server_info import find_poly
from headrace.layouts.nats_streaming.slices import findings_to_damage, memory_file
from headrace.layouts.places import disk_at

if TYPE_CHECKING:
    from headrace.layouts.nats_streaming.channel import Channel

ROWS_AT_ONCE = 65_536
BYTES_AT_ONCE = 2 << 20


@dataclass(frozen=True, slots=True)
class SliceTask(ScanTask):
    """One slice of a channel; `first` and `next` bound what counts of it."""

    log: str
    data_path: str
    index_path: str
    first: int
    next: int
    size_bytes: int
    poly: int
    strict: bool = True
    mended: bool = False
    """The index file cannot be used: it is made from the data, in memory."""
    key: bytes | None = field(default=None, repr=False)

    def own_column(self, name: str, batch: Batch) -> Any:
        from headrace.layouts.own_columns import header, same

        if name == "channel":
            return same(self.log, batch)
        return header("Nats-Streaming-Reply", batch) if name == "reply" else None

    def batches(
        self, predicate: Predicate | None = None, damage: list[Damage] | None = None
    ) -> Iterator[Batch]:
        """The messages of the slice that match."""
        want, disk = predicate or Predicate(), disk_at(self.data_path)
        data = disk.open(self.data_path)
        if self.mended:
            known = disk.open(self.index_path) if disk.entry(self.index_path) else None
            index = memory_file(
                stan_mend(data, known, self.log, self.poly, self.strict, None, self.next).index
            )
        else:
            index = disk.open(self.index_path)
        known_index = stan_index(index, self.poly, self.strict)
        position = max(self.first, want.first or 0)
        below = min(self.next, want.next) if want.next is not None else self.next
        while position < below:
            batch, reached, findings, not_opened = stan_read(
                data, index, known_index.count, known_index.first.sequence, position, below, ROWS_AT_ONCE, BYTES_AT_ONCE,
                self.poly, self.strict, self.key,
            )  # fmt: skip
            if damage is not None:
                damage += findings_to_damage(self.data_path, self.index_path, findings)
            if not_opened:
                raise KeyNeeded(
                    self.data_path, 0, "cipher: message authentication failed", "the key of this store",
                    "give the server's key",
                )  # fmt: skip
            position = max(reached, position + 1)
            kept = batch.filter(want.first, want.next, want.since_ns, want.until_ns, list(want.subjects))
            if len(kept):
                yield kept


def plan_slices(channel: Channel, want: Predicate, key: bytes | None) -> list[ScanTask]:
    """A task for every slice that may hold a match."""
    tasks: list[ScanTask] = []
    with channel.lock:
        slices = [found for found in channel.slices if found.indexed and found.last >= channel.first]
        for found, later in zip_longest(slices, slices[1:]):
            following = later.first if later else channel.next
            first, below = max(found.first, channel.first), min(found.last + 1, following)
            after = want.first is not None and below <= want.first
            before = want.next is not None and first >= want.next
            older = want.since_ns is not None and found.last_time_ns < want.since_ns
            newer = want.until_ns is not None and found.first_time_ns >= want.until_ns
            if after or before or older or newer:
                continue
            tasks.append(
                SliceTask(
                    log=channel.name,
                    data_path=found.data_path,
                    index_path=found.index_path,
                    first=first,
                    next=below,
                    size_bytes=found.data_end,
                    poly=channel.home.poly,
                    strict=channel.home.options.file_crc,
                    mended=found.index is not None,
                    key=key,
                )
            )
    return tasks


def lone_slice(channel: str, data_path: str, index_path: str, key: str | None) -> SliceTask | None:
    """A slice that its server has given up, by its two files (`.bak`); None when it holds nothing."""
    root = str(Path(data_path).absolute().parent.parent)
    disk = Disk.real(root)
    poly, secret = find_poly(disk, root, StreamingOptions().file_crc_poly), key_text(key or "")
    data, index = disk.open(data_path), disk.open(index_path)
    found = stan_index(index, poly, True)
    mended = found.problem is not None
    if mended:
        index = memory_file(stan_mend(data, index, channel, poly, True, None, None).index)
        found = stan_index(index, poly, True)
    if not found.count:
        return None
    return SliceTask(
        log=channel,
        data_path=data_path,
        index_path=index_path,
        first=found.first.sequence,
        next=found.last.sequence + 1,
        size_bytes=len(data),
        poly=poly,
        mended=mended,
        key=channel_key(secret, channel) if secret else None,
    )
