"""What a reader sees of a stream: what a server that opens the directory would serve, found out in memory.

Limits evict without a mark in the blocks, so a scan finds evicted messages again. On work-queue and interest streams
an ack is in the consumer's journal before the message's tombstone is written. A server that starts applies both to the
files; a reader applies them to its own view and writes nothing.

Age (`max_age`, `Nats-TTL`) is counted up to now beside a live writer. A directory at rest is read as of its newest
message: a backup does not become empty because it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.config.model import StreamConfig
from headrace.errors import BadInput
from headrace.layouts.jetstream._kernels import Batch, BlockLog
from headrace.layouts.jetstream.consumers.consumers import Consumers
from headrace.units import parse_duration_ns

TTL = b"Nats-TTL"
_AT_ONCE = 16_384
_BYTES_AT_ONCE = 64 << 20


def hide_what_is_gone(
    log: BlockLog,
    config: StreamConfig,
    consumers: Consumers,
    now_ns: int | None = None,
    *,
    clean: bool = False,
    ages: bool = True,
) -> None:
    """Apply the stream's limits and its retention, in the server's order. `now_ns`: None for a directory at rest.

    After a clean stop (`clean`) the index knows what limits took. Without `ages` nothing is too old.
    """
    if not clean:
        _apply_limits(log, config, now_ns, ages)
    if config.retention != "limits":
        log.forget(sorted(_acked(log, consumers)))


def _apply_limits(log: BlockLog, config: StreamConfig, now_ns: int | None, ages: bool) -> None:
    if config.discard == "old" and (config.max_msgs > 0 or config.max_bytes > 0):
        max_msgs = config.max_msgs if config.max_msgs > 0 else None
        log.evict_front(max_msgs, config.max_bytes if config.max_bytes > 0 else None, None, None)
    if config.max_msgs_per_subject > 0:
        log.trim_all_subjects(config.max_msgs_per_subject)
    as_of_ns = log.last_time_ns if now_ns is None else now_ns
    if config.allow_msg_ttl and ages:
        log.forget(
            sorted(seq for batch in _batches(log) for seq in _expired(batch, config.max_age, as_of_ns))
        )
    elif config.max_age > 0 and ages:
        log.evict_front(None, None, as_of_ns - config.max_age, None)


def _batches(log: BlockLog, below: int | None = None) -> Iterator[Batch]:
    position = 0
    while len(batch := log.read(position, _AT_ONCE, _BYTES_AT_ONCE, None, below)):
        yield batch
        position = batch.last_position + 1


def _expired(batch: Batch, max_age_ns: int, as_of_ns: int) -> Iterable[int]:
    """Each at its own time, all at `max_age`; `never` stays."""
    due: set[int] = set()
    if max_age_ns > 0:
        due.update(batch.filter(None, None, None, as_of_ns - max_age_ns, []).positions())
    for seq, stored_ns, value in batch.with_header(TTL):
        text = value.decode(errors="replace")
        if text.lower() == "never":
            due.discard(seq)
        elif 0 < stored_ns + _ttl_ns(text, as_of_ns) <= as_of_ns:
            due.add(seq)
    return due


def _ttl_ns(text: str, otherwise: int) -> int:
    """Whole seconds or a duration; `otherwise` for what no server would have stored."""
    try:
        return int(text) * 10**9 if text.isdecimal() else parse_duration_ns(text)
    except (BadInput, ValueError):
        return otherwise


def _acked(log: BlockLog, consumers: Consumers) -> Iterator[int]:
    """What every consumer is done with, and one at least was given. Without consumers nothing shows what was wanted,
    and a message that none of them takes may wait for one that does: these are shown."""
    readers = [consumers.get(name) for name in consumers.names()]
    # One that was kept in memory ended with its server.
    known = [(each.state(), each.config.filters) for each in readers if not each.config.mem_storage]
    given_up_to = max((state.delivered.stream for state, _ in known), default=0)
    for batch in _batches(log, given_up_to + 1) if given_up_to else ():
        acked, given = {*batch.positions()}, set[int]()
        for state, filters in known:
            taken = {*batch.filter(None, None, None, None, list(filters)).positions()}
            waiting = {seq for seq in taken if seq > state.delivered.stream or seq in state.pending}
            acked -= waiting
            given |= taken - waiting
        yield from acked & given
