"""What an append does: encode, roll when a rule says so, write, remember for the sync.

Rolls before an append when (as the broker): the segment would grow beyond segment.bytes; the incoming messages are
more than segment.ms newer than its first batch; an index is full; an offset would not fit in 32 bits. A segment that
ends is synced with its indexes before the next one gets its first byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import BadInput
from headrace.layouts.base import Frames, Ticket
from headrace.layouts.kafka import checkpoints
from headrace.layouts.kafka._kernels import Batch, KafkaEncoded, KafkaWriter, kafka_encode, kafka_frames
from headrace.layouts.kafka.names import SNAPSHOT, TXN, parse_file, put_file, segment_file
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.producer_files import encode_aborted, encode_snapshot
from headrace.layouts.kafka.segments import Segment, Summary
from headrace.randomness import sample_below

if TYPE_CHECKING:
    from headrace.layouts.kafka.log import KafkaLog

SEGMENT_SPAN_MAX = 2**31 - 1
NS_PER_MS = 1_000_000


def jitter(options: KafkaOptions) -> int:
    """What is taken off segment.ms, drawn anew for each segment."""
    most = min(options.segment_jitter_ms, options.segment_ms)
    return sample_below(most) if most else 0


def leader_epoch(log: KafkaLog) -> int:
    """The epoch that new batches carry: the last one that the partition has seen."""
    return log.epochs[-1][0] if log.epochs else 0


def append(log: KafkaLog, batch: Batch, keep_positions: bool) -> Ticket:
    """Messages → batches of the log's format → the active segment."""
    options = log.options
    encoded = kafka_encode(
        batch,
        log.next,
        keep_positions,
        log.clock() // NS_PER_MS,
        options.message_format,
        options.codec,
        options.level,
        options.batch_size,
        options.max_message_bytes,
        leader_epoch(log),
        options.message_timestamp_type == "LogAppendTime",
    )
    return write(log, encoded)


def append_frames(log: KafkaLog, frames: Frames, keep_positions: bool) -> Ticket:
    """Batches that are encoded already."""
    if frames.format != "kafka":
        raise BadInput(f"frames in the encoding {frames.format!r}; this log takes 'kafka'")
    encoded = kafka_frames(
        frames.data, log.next, keep_positions, leader_epoch(log), log.options.decompressed_bytes_max
    )
    return write(log, encoded)


def write(log: KafkaLog, encoded: KafkaEncoded) -> Ticket:
    """Into the active segment, rolling as often as needed."""
    if not len(encoded):
        return Ticket(log.name, log.next, log.next, log.mark)
    if must_roll(log, encoded):
        roll(log, max(log.next, encoded.first))
    taken, total = 0, len(encoded)
    while taken < total:
        writer = log.writer
        assert writer is not None
        before = writer.size
        count = writer.append(encoded, taken, log.options.segment_bytes)
        if count == 0:
            piece = encoded.piece(taken)
            roll(log, piece.first if piece else log.next)
            continue
        _written(log, encoded, taken, count, writer.size - before)
        taken += count
    if log.durability == "interval" and log.unsynced_messages >= log.options.flush_messages:
        log.commit()
    return Ticket(log.name, encoded.first, encoded.next, log.mark)


def _written(log: KafkaLog, encoded: KafkaEncoded, start: int, count: int, size: int) -> None:
    last = encoded.piece(start + count - 1)
    assert last is not None
    log.next, log.mark = last.last + 1, log.mark + size
    segment = log.segments[-1]
    segment.size += size
    _count(log, segment, encoded, start, count)
    aborted = log.producers.apply(encoded, start, count)
    if aborted:
        file = log.disk.open(segment.path(TXN), "write")
        file.write_at(len(file), encode_aborted(aborted))
        log.names_unsynced, log.aborted_cache = True, None


def _count(log: KafkaLog, segment: Segment, encoded: KafkaEncoded, start: int, count: int) -> None:
    messages, control = encoded.counts(start, count)
    if not log.unsynced_messages:
        log.unsynced_since_ns = log.clock()
    log.unsynced_messages += messages + control
    summary = segment.summary
    if summary is not None:
        summary.messages += messages
        summary.control += control
        summary.batches += count
        summary.max_time_ms = max(summary.max_time_ms, encoded.max_time_ms)
        summary.last = log.next - 1
        if summary.first is None:
            summary.first, summary.first_time_ns = encoded.first, encoded.max_time_ms * NS_PER_MS


def must_roll(log: KafkaLog, encoded: KafkaEncoded) -> bool:
    """Whether a rule ends the active segment before this append."""
    writer, options = log.writer, log.options
    assert writer is not None
    size = writer.size
    base = log.segments[-1].base
    if encoded.next - 1 - base > SEGMENT_SPAN_MAX:
        return True
    entries, times = writer.entries()
    if size == 0:
        return False
    if size > options.segment_bytes - encoded.size:
        return True
    first_time = writer.first_batch_time_ms
    if first_time >= 0:
        waited = encoded.max_time_ms - first_time
    else:
        waited = (log.clock() - log.created_ns) // NS_PER_MS
    if waited > options.segment_ms - log.jitter_ms:
        return True
    return entries >= options.index_entries_max or times >= options.time_entries_max


def roll(log: KafkaLog, base: int) -> None:
    """The active segment ends; the next begins at `base` with a snapshot of the producers before it."""
    old, writer = log.segments[-1], log.writer
    assert writer is not None
    if writer.size == 0 and old.base == base:
        return
    writer.close()
    if log.disk.entry(old.path(TXN)) is not None:
        log.disk.open(old.path(TXN), "write").sync_data()
    write_snapshot(log, base)
    begin_segment(log, base)
    old.reader = None  # its indexes are complete now, and are mapped when it is read again


def begin_segment(log: KafkaLog, base: int) -> None:
    """New, empty files; their names become durable with the next sync."""
    segment = Segment(base, log.directory, 0, summary=Summary(last=base - 1))
    log.writer = KafkaWriter(log.disk, segment.stem, base, log.options.index_interval_bytes, 0, -1, b"", b"")
    log.segments = (*log.segments, segment)
    log.names_unsynced = True
    log.jitter_ms, log.created_ns = jitter(log.options), log.clock()
    log.next = max(log.next, base)


def write_snapshot(log: KafkaLog, offset: int) -> None:
    """The producers as they are before `offset`. The caller syncs the directory before it relies on it."""
    now_ms, expiry = log.clock() // NS_PER_MS, log.options.producer_id_expiration_ms
    states = [
        state
        for state in log.producers.states()
        for *_, used_ms, _, open_first in (state,)
        if open_first >= 0 or now_ms - used_ms < expiry
    ]
    put_file(log.disk, f"{log.directory}/{segment_file(offset, SNAPSHOT)}", encode_snapshot(states))


def sync(log: KafkaLog) -> None:
    """One round of the group commit: the log's data, then names that are new."""
    with log.lock:
        writer, names, point = log.writer, log.names_unsynced, log.next
        log.names_unsynced, log.unsynced_messages = False, 0
        segment = log.segments[-1]
        size = writer.size if writer is not None else segment.size
        aborts = log.aborted_cache is None and log.disk.entry(segment.path(TXN)) is not None
    if writer is not None:
        writer.sync()
    if aborts:
        log.disk.open(segment.path(TXN), "write").sync_data()
    if names:
        log.disk.sync_dir(log.directory)
    log.recovery_point = max(log.recovery_point, point)
    log.publish(segment.base, size, point)


def finish(log: KafkaLog) -> None:
    """A clean stop: nothing is left to recover."""
    if log.writer is not None:
        log.writer.close()
        log.segments[-1].size = log.writer.size
    txn = log.segments[-1].path(TXN)
    if log.disk.entry(txn) is not None:
        log.disk.open(txn, "write").sync_data()
    write_snapshot(log, log.next)
    _drop_old_snapshots(log)
    _keep_epochs(log)
    log.disk.sync_dir(log.directory)
    log.recovery_point = log.next
    log.publish(log.segments[-1].base, log.segments[-1].size, log.next)
    for _, files in log.leaving:
        for file in files:
            if log.disk.entry(file) is not None:
                log.disk.remove_file(file)
    log.leaving = []


def _keep_epochs(log: KafkaLog) -> None:
    path, right = f"{log.directory}/{checkpoints.EPOCHS}", checkpoints.epochs_text(log.epochs)
    if log.disk.entry(path) is None or log.disk.read(path, checkpoints.FILE_BYTES_MAX) != right:
        put_file(log.disk, path, right)


def _drop_old_snapshots(log: KafkaLog) -> None:
    """Keep those at a segment's base and the one at the end."""
    keep = {segment.base for segment in log.segments} | {log.next}
    for name, is_dir, _ in log.disk.list(log.directory):
        parsed = parse_file(name)
        if not is_dir and parsed and parsed[1] == SNAPSHOT and not parsed[2] and parsed[0] not in keep:
            log.disk.remove_file(f"{log.directory}/{name}")
