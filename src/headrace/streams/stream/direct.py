"""Direct get: messages straight from the store, raw, with headers that say where they come from.

    DIRECT.GET.<S>            {seq} {last_by_subj} {next_by_subj, seq?} {start_time}      one message
    DIRECT.GET.<S>.<subject>  the last one of a subject
    … with batch              messages one after the other, then `204 EOB`
    … with multi_last         the newest of each subject, then `204 EOB`

`answers` gives (headers, data) of every message to be sent to the one who asked, in order, and `PAUSE` wherever others
may have their turn before it goes on: a client can ask for the whole stream. What is not in memory is looked for on a
thread: it gives the function to be called there, and gets its result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import NotFound, NotInMemory
from headrace.record import Record
from headrace.streams.api.endpoints import level_is_served
from headrace.streams.api.json_reader import read
from headrace.streams.api.messages import find, find_durable, is_one
from headrace.streams.api.types import MsgGetRequest
from headrace.streams.errors import ApiError
from headrace.streams.limits import ServerFacts
from headrace.streams.stream.loads import memory_only
from headrace.units import format_time_ns, parse_time_ns

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream

PAUSE = None
SUBJECTS_MAX = 1024
_READ_AT_ONCE = 64
_LOADED_AT_ONCE = 16
"""Each of them may lie in another block."""
_READ_BYTES = 4 << 20

_T = TypeVar("_T")
Answer = tuple[bytes | None, bytes]
Work = Callable[[], Any]
Steps = Generator[Answer | Work | None, Any, None]


def answers(stream: Stream, subject: str, payload: bytes, headers: bytes | None, facts: ServerFacts) -> Steps:
    """What is sent to one who asked; `subject` is "" or the subject behind the stream's name."""
    if headers is not None and not level_is_served(headers, facts.level):
        yield _status("412 Required Api Level")
        return
    try:
        request = read(payload, MsgGetRequest, strict=False, plain=True) if payload else MsgGetRequest()
    except ApiError:
        yield _status("408 Malformed Request")
        return
    if subject:
        if _asks(request):
            yield _status("408 Bad Request")
            return
        yield from _one(stream, MsgGetRequest(last_by_subj=subject, no_hdr=request.no_hdr))
    elif request.multi_last:
        yield from _newest_of_each(stream, request, facts)
    elif not _asks(request):
        yield _status("408 Empty Request")
    elif not is_one(request) or (request.batch and request.last_by_subj):
        yield _status("408 Bad Request")
    elif request.batch:
        yield from _batch(stream, request, facts)
    else:
        yield from _one(stream, request)


def _asks(request: MsgGetRequest) -> bool:
    return bool(
        request.seq
        or request.last_by_subj
        or request.next_by_subj
        or request.start_time
        or request.multi_last
    )


def _status(line: str, pairs: str = "") -> Answer:
    return f"NATS/1.0 {line}\r\n{pairs}\r\n".encode(), b""


def _with_origin(stream: Stream, record: Record, more: str = "") -> bytes:
    """The message's own headers, then where it is stored."""
    stored = record.headers[:-2] if record.headers else b"NATS/1.0\r\n"
    origin = (
        f"Nats-Stream: {stream.name}\r\nNats-Subject: {record.subject}\r\nNats-Sequence: {record.seq}\r\n"
        f"Nats-Time-Stamp: {format_time_ns(record.time_ns)}\r\n{more}\r\n"
    )
    return stored + origin.encode()


def _found(act: Callable[[], _T], later: Callable[[], _T] | None = None) -> Generator[Work, Any, _T]:
    """The result of a look-up: at once if all that it needs is in memory, else from a thread (perhaps in another way)."""
    try:
        with memory_only():
            return act()
    except NotInMemory:
        result = yield later or act
    if isinstance(result, Exception):
        raise result
    return result


def _one(stream: Stream, request: MsgGetRequest) -> Steps:
    try:
        record = yield from _found(
            partial(find, stream.store, request), partial(find_durable, stream, request)
        )
    except NotFound:
        yield _status("404 Message Not Found")
        return
    yield None if request.no_hdr else _with_origin(stream, record), record.data or b""


def _batch(stream: Stream, request: MsgGetRequest, facts: ServerFacts) -> Steps:
    store, wanted = stream.store, request.next_by_subj
    start, end = request.seq or 1, stream.store.last_seq + 1  # what comes later is not on disk yet
    if request.start_time is not None:
        start = yield from _found(partial(store.seq_from_time, parse_time_ns(request.start_time)))
    filters = [wanted] if wanted else []
    left = yield from _found(partial(store.count_matching, start, end, filters))
    yield PAUSE
    if left == 0:
        yield _status("404 Message Not Found")
        return
    last, size, wants, allowed = 0, 0, max(request.batch, 0), _bytes_allowed(request, facts)
    while wants and size < allowed:
        at_once = min(wants, _READ_AT_ONCE)
        batch, start = yield from _found(
            partial(store.read_matching, start, at_once, _READ_BYTES, filters, end, 1)
        )
        for record in batch:
            if request.no_hdr:
                yield None, record.data or b""
            else:
                left -= 1
                yield _with_origin(stream, record, _progress(left, last)), record.data or b""
            last, size, wants = record.seq, size + _size(record), wants - 1
            if size >= allowed:
                break
        if not len(batch) and start >= end:
            break
        yield PAUSE
    yield _status("204 EOB", _progress(left, last))


def _newest_of_each(stream: Stream, request: MsgGetRequest, facts: ServerFacts) -> Steps:
    if request.last_by_subj or request.next_by_subj or (request.up_to_seq and request.up_to_time):
        yield _status("408 Bad Request")
        return
    store = stream.store
    newest = store.last_seq
    up_to = request.up_to_seq or newest
    if request.up_to_time is not None:
        beyond = yield from _found(partial(store.seq_from_time, parse_time_ns(request.up_to_time)))
        up_to = min(beyond - 1, newest)
    nothing: tuple[list[int], list[bytes]] = ([], [])
    known = store.newest_of_each(request.multi_last, up_to, SUBJECTS_MAX) if up_to <= newest else nothing
    if known is None:
        yield _status("413 Too Many Results")
        return
    found: list[int]
    unsure: list[bytes]
    found, unsure = known
    below = up_to + 1
    while unsure and below:
        more, below = yield from _found(partial(store.newest_below, unsure, below, 1))
        found += [sequence for _, sequence in more]
        gone = {index for index, _ in more}
        unsure = [subject for at, subject in enumerate(unsure) if at not in gone]
        yield PAUSE
    if not found:
        yield _status("404 No Results")
        return
    last, size, allowed, left = 0, 0, _bytes_allowed(request, facts), len(found)
    wanted = sorted(found)[: request.batch] if request.batch > 0 else sorted(found)
    for at in range(0, len(wanted), _LOADED_AT_ONCE):
        batch = yield from _found(partial(store.load_msgs, wanted[at : at + _LOADED_AT_ONCE]))
        for record in batch:
            left -= 1
            yield _with_origin(stream, record, _progress(left, last)), record.data or b""
            last, size = record.seq, size + _size(record)
            if size >= allowed:
                break
        if size >= allowed:
            break
        yield PAUSE
    yield _status("204 EOB", f"{_progress(left, last)}Nats-UpTo-Sequence: {up_to}\r\n")


def _progress(left: int, last: int) -> str:
    return f"Nats-Num-Pending: {left}\r\nNats-Last-Sequence: {last}\r\n"


def _size(record: Record) -> int:
    return len(record.subject) + len(record.headers or b"") + len(record.data or b"")


def _bytes_allowed(request: MsgGetRequest, facts: ServerFacts) -> int:
    """A client that says nothing gets at most a quarter of what may wait for it."""
    return request.max_bytes if request.max_bytes > 0 else facts.max_pending // 4
