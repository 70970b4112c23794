"""Deleting from the front: whole segments by age and size, as the broker; and the log's start by request.

A segment goes in three steps, so that nobody who still reads it is cut off: the log's start moves, its files are
renamed to `.deleted` (and the directory is synced), and file.delete.delay.ms later they are unlinked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.layouts.kafka import appending, checkpoints
from headrace.layouts.kafka.names import DELETED, SEGMENT_ENDINGS, SNAPSHOT

if TYPE_CHECKING:
    from headrace.layouts.kafka.log import KafkaLog

NS_PER_MS = 1_000_000


def apply(log: KafkaLog) -> int:
    """Delete what retention no longer keeps, oldest first; returns how many segments went."""
    options = log.options
    doomed = _below_start(log)
    if options.deletes and doomed == 0:
        doomed = max(doomed, _by_size(log, options.retention_bytes), _by_time(log, options.retention_ms))
    return _delete(log, doomed)


def explain(log: KafkaLog) -> list[str]:
    """For each segment, why it is still here."""
    now_ms = log.clock() // NS_PER_MS
    reasons: list[str] = []
    total = sum(segment.size for segment in log.segments)
    for at, segment in enumerate(log.segments):
        newest = log.summary(at, log.segments).max_time_ms
        age = f"its newest message is {(now_ms - newest) // 1000} s old" if newest >= 0 else "it has no times"
        reasons.append(
            f"{segment.base:020d}: {segment.size} of {total} bytes; {age}; retention.ms={log.options.retention_ms}, "
            f"retention.bytes={log.options.retention_bytes}"
            + ("; active" if at == len(log.segments) - 1 else "")
        )
    return reasons


def _below_start(log: KafkaLog) -> int:
    segments = log.segments
    return sum(1 for at in range(len(segments) - 1) if segments[at + 1].base <= log.start)


def _by_size(log: KafkaLog, limit: int) -> int:
    """At least `limit` bytes stay."""
    if limit < 0:
        return 0
    excess, count = sum(segment.size for segment in log.segments) - limit, 0
    for segment in log.segments:
        if excess - segment.size < 0 or segment.size == 0:
            break
        excess -= segment.size
        count += 1
    return count


def _by_time(log: KafkaLog, limit_ms: int) -> int:
    """Until the first whose newest message is young enough. A segment without times has no age and stays."""
    if limit_ms < 0:
        return 0
    now_ms, count = log.clock() // NS_PER_MS, 0
    for at, segment in enumerate(log.segments):
        newest = log.writer.max_time_ms if segment is log.segments[-1] and log.writer else None
        if newest is None:
            newest = segment.largest_time_ms(log.disk)
        if newest is None:
            newest = log.summary(at, log.segments).max_time_ms
        if segment.size == 0 or newest < 0 or now_ms - newest <= limit_ms:
            break
        count += 1
    return count


def _delete(log: KafkaLog, count: int) -> int:
    if count <= 0:
        return 0
    if count >= len(log.segments):
        # The active one goes too: an empty one takes its place first.
        appending.roll(log, log.next)
        count = len(log.segments) - 1
    log.commit()
    doomed, kept = log.segments[:count], log.segments[count:]
    log.start = max(log.start, kept[0].base)
    log.segments = kept
    files: list[str] = []
    for segment in doomed:
        endings = (*SEGMENT_ENDINGS, SNAPSHOT)
        for path in (segment.path(ending) for ending in endings):
            if log.disk.entry(path) is not None:
                log.disk.rename(path, path + DELETED)
                files.append(path + DELETED)
    log.disk.sync_dir(log.directory)
    log.leaving.append((log.clock() + log.options.file_delete_delay_ms * NS_PER_MS, files))
    log.epochs = clipped(log.epochs, log.start)
    checkpoints.write_epochs(log.disk, f"{log.directory}/{checkpoints.EPOCHS}", log.epochs)
    return count


def clipped(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """Leader epochs from the log's start on: the one that covers it begins there."""
    below = [epoch for epoch, first in epochs if first <= start]
    above = [(epoch, first) for epoch, first in epochs if first > start]
    return [(below[-1], start), *above] if below else above


def unlink_due(log: KafkaLog, now_ns: int) -> None:
    """Remove files whose delay is over."""
    due = [files for when, files in log.leaving if when <= now_ns]
    log.leaving = [(when, files) for when, files in log.leaving if when > now_ns]
    for file in (file for files in due for file in files):
        if log.disk.entry(file) is not None:
            log.disk.remove_file(file)


def drop_front(log: KafkaLog, offset: int) -> int:
    """The log starts at `offset` from now on, durably; returns how many messages went."""
    offset = min(offset, log.next)
    if offset <= log.start:
        return 0
    before = log.state().messages
    log.commit()
    path = f"{log.directory.rpartition('/')[0]}/{checkpoints.LOG_START}"
    offsets = checkpoints.read_offsets(log.disk, path)
    checkpoints.write_offsets(log.disk, path, offsets | {log.name: offset})
    log.start = offset
    _delete(log, _below_start(log))
    return before - log.state().messages
