"""From a run of publishes to stored messages and answers.

    admit (kernel, by plan) → append what was accepted → … the one message that needs thought → admit the rest
                                                             │
              rollup, TTL, another subject's sequence, a store that may be full: decided here, one by one

Answers leave when the messages are on disk (`Engine.after`); a run that fails is refused, never left hanging.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import DiskFull, HeadraceError
from headrace.streams._kernels import PublishRun
from headrace.streams.errors import ApiError, api_error
from headrace.streams.headers import header_value, parse_ttl_ns
from headrace.streams.plan import SOURCE, encode_refusal
from headrace.streams.producers import NAME as PRODUCER
from headrace.streams.producers import NUMBERS as PRODUCER_NUMBERS

if TYPE_CHECKING:
    from headrace.streams.stream import Stream

ROLLUP = b"Nats-Rollup"
TTL = b"Nats-TTL"
MSG_ID = b"Nats-Msg-Id"
EXPECTED_LAST = b"Nats-Expected-Last-Sequence"
EXPECTED_SEQUENCE = b"Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_ID = b"Nats-Expected-Last-Msg-Id"
NOT_SERVED = {
    b"Nats-Batch-Id": "JSAtomicPublishDisabledErr",
    b"Nats-Incr": "JSMessageIncrDisabledErr",
    b"Nats-Schedule": "JSMessageSchedulesDisabledErr",
    b"Nats-Schedule-Target": "JSMessageSchedulesDisabledErr",
}


def ingest(stream: Stream, run: PublishRun) -> None:
    """Take a run: every message of it gets its answer, sooner or later."""
    start, count, now = 0, len(run), stream.engine.clock()
    store, window, producers = stream.store, stream.window, stream.producers
    if (over := stream.account.over_limits(stream, run)) is not None:
        run.refuse(0, count, encode_refusal(stream.name, over))
    else:
        with store.lock:  # what is admitted and not yet written is not to be saved by somebody else
            begun = _take_in(stream, run, count, now) if stream.unselective and store.takes_at_once else None
            while start < count:
                stop, accepted, for_python = begun or run.admit(
                    stream.plan, window, producers, store.log, start, now
                )
                begun = None
                if accepted:
                    try:
                        _store(stream, run, start, stop, accepted)
                    except HeadraceError as problem:
                        _not_stored(stream, run, start, stop, problem)
                start = stop
                if for_python:
                    _decide(stream, run, stop, now)
                    start = stop + 1
    told = None if stream.config.no_ack else run
    if stream.in_memory or not stream.engine.sync_needed:
        stream.engine.at_end(partial(stream.stored, told))
    elif told is None:
        stream.engine.after(store, None, partial(stream.stored, None))
    else:
        mark = store.log.totals()[3]
        stream.engine.after(store, mark, partial(stream.stored, run), partial(_unsynced, stream, run))


def _take_in(stream: Stream, run: PublishRun, count: int, now: int) -> tuple[int, int, bool]:
    """The everyday case in one step: all are accepted and fit into the newest block. Returns how far it came, how many of
    these are accepted and not stored, and whether the next is to be decided here."""
    store = stream.store
    try:
        stop, accepted, for_python, stored = run.take_in(
            stream.plan, stream.window, stream.producers, store.log, now, store.block_bytes
        )
        if stored is not None:
            store.written(count, *stored)
            accepted = 0
    except HeadraceError as problem:
        _not_stored(stream, run, 0, count, problem)
        return count, 0, False
    return stop, accepted, for_python


def _not_stored(stream: Stream, run: PublishRun, start: int, stop: int, problem: HeadraceError) -> None:
    stream.window.forget_from(stream.store.complete + 1)
    stream.marks.taken_back()
    run.refuse(start, stop, encode_refusal(stream.name, store_error(problem)))


def _store(stream: Stream, run: PublishRun, start: int, stop: int, accepted: int) -> None:
    """Append what was accepted; its sequences are consecutive from the first."""
    if stream.nobody_interested:
        last = stream.store.log.totals()[2]
        stream.store.skip_msg(last + accepted)
        run.settled(start, last + 1)
        return
    batch = run.accepted(start, stop)
    ticket = stream.write(batch) if stream.picky else stream.store.append(batch)
    run.settled(start, ticket.first)
    stream.appended(ticket, batch)


def _unsynced(stream: Stream, run: PublishRun, error: Exception) -> None:
    """The sync failed: nobody is told that anything was stored."""
    refusal = encode_refusal(stream.name, store_error(error))
    for at in range(len(run)):
        run.decided(at, refusal)
    stream.answer(run)


def store_error(problem: Exception) -> ApiError:
    """How the API says what the store said."""
    if isinstance(problem, ApiError):
        return problem
    if isinstance(problem, DiskFull):
        return api_error("JSInsufficientResourcesErr")
    return api_error("JSStreamStoreFailedF", err=str(problem))


def _decide(stream: Stream, run: PublishRun, at: int, now: int) -> None:
    """The one message that a plan cannot decide."""
    subject, headers, _, _ = run.message(at)
    try:
        sequence = _decide_one(stream, run, at, subject, headers or b"", now)
    except ApiError as error:
        run.decided(at, encode_refusal(stream.name, error))
    except HeadraceError as problem:
        stream.marks.taken_back()
        run.decided(at, encode_refusal(stream.name, store_error(problem)))
    else:
        if sequence is not None:
            run.settled(at, sequence)


def _decide_one(
    stream: Stream, run: PublishRun, at: int, subject: str, headers: bytes, now: int
) -> int | None:
    store, config, window = stream.store, stream.config, stream.window
    for name, error in NOT_SERVED.items():
        if header_value(headers, name) is not None:
            raise api_error(error)
    _check_sequences(stream, subject, headers)
    if header_value(headers, SOURCE) is not None:
        raise api_error("JSMessageSourceHdrNotAllowedErr")
    message_id = header_value(headers, MSG_ID)
    if message_id and config.duplicate_window > 0:
        known = window.find(message_id, now)
        if known is not None:
            run.decided(at, stream.ack_body(known, duplicate=True))
            return None
    producer, numbers = header_value(headers, PRODUCER), header_value(headers, PRODUCER_NUMBERS)
    added: tuple[int, int] | None = None
    if (producer is not None or numbers is not None) and config.mirror is None:
        added = stream.marks.judge(producer, numbers)
        if added is None:
            run.decided(at, stream.ack_body(0, duplicate=True))
            return None
    expected_id = header_value(headers, EXPECTED_ID)
    if expected_id is not None and expected_id != window.last_id:
        raise api_error("JSStreamWrongLastMsgIDErrF", id=window.last_id.decode(errors="replace"))
    rollup = header_value(headers, ROLLUP)
    if rollup is not None:
        if not config.allow_rollup_hdrs or config.deny_purge:
            raise api_error("JSStreamRollupFailedF", err="rollup not permitted")
        if rollup.lower() not in (b"sub", b"all"):
            value = rollup.decode(errors="replace")
            raise api_error("JSStreamRollupFailedF", err=f'rollup value invalid: "{value}"')
    ttl_ns = parse_ttl_ns(header_value(headers, TTL))
    if added is not None:
        stream.producers.join(producer or b"", *added, store.log.totals()[2] + 1, now)
    if stream.nobody_interested:
        sequence = store.skip_msg()
    else:
        batch = run.batch.slice(at, at + 1)
        ticket = stream.write(batch)
        sequence = ticket.first
        stream.appended(ticket, batch)
        if ttl_ns:
            stream.ttls.add(sequence, now + ttl_ns)
        if rollup is not None:
            stream.rolled_up(subject if rollup.lower() == b"sub" else "", sequence)
    if added is not None:
        # Remembered by its number.
        window.set_last_id(message_id or b"")
    else:
        window.accepted(message_id or b"", sequence, now)
    return sequence


def _check_sequences(stream: Stream, subject: str, headers: bytes) -> None:
    """The expectation on a subject (perhaps another one, with wildcards), then the one on the stream."""
    wanted = header_value(headers, EXPECTED_SEQUENCE)
    other = header_value(headers, EXPECTED_SUBJECT)
    if wanted is not None:
        where = subject if other is None else other.decode(errors="replace")
        found = stream.store.log.last_match(where)
        _check_sequence(wanted, found[0] if found is not None else 0)
    elif other is not None:
        raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
    wanted = header_value(headers, EXPECTED_LAST)
    if wanted is not None:
        _check_sequence(wanted, stream.store.log.totals()[2])


def _check_sequence(wanted: bytes, seen: int) -> None:
    if not wanted.isdigit() or int(wanted) != seen:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=seen)
