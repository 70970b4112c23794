"""Endpoints about single messages: STREAM.MSG.GET and STREAM.MSG.DELETE."""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import NotFound, NotInMemory
from headrace.record import Record
from headrace.streams.api.calls import Call, Fields, Later, Outcome, when_durable
from headrace.streams.api.json_reader import is_empty, read
from headrace.streams.api.types import MsgDeleteRequest, MsgGetRequest
from headrace.streams.errors import ApiError, api_error
from headrace.streams.stream.loads import memory_only
from headrace.units import format_time_ns, parse_time_ns

if TYPE_CHECKING:
    from headrace.layouts.stream_store import StreamStore
    from headrace.streams.api.endpoints import Api
    from headrace.streams.stream.stream import Stream


def get(api: Api, call: Call) -> Outcome:
    """STREAM.MSG.GET: by sequence, the last of a subject, the next of a subject, the first from a time on."""
    request = read(call.payload, MsgGetRequest, strict=api.facts.strict)
    if not _is_one_message(request):
        raise api_error("JSBadRequestErr")
    stream = call.account.stream(call.args[0])
    try:
        with memory_only():
            record = find(stream.store, request)
    except NotFound as problem:
        raise api_error("JSNoMessageFoundErr") from problem
    except NotInMemory:
        return Later(partial(find_durable, stream, request), partial(_shown_later, request))
    return when_durable(stream, _shown(request, record))


def _shown_later(request: MsgGetRequest, result: Any) -> Fields:
    if isinstance(result, NotFound):
        raise api_error("JSNoMessageFoundErr") from result
    if isinstance(result, Exception):
        raise result
    return _shown(request, result)


def _shown(request: MsgGetRequest, record: Record) -> Fields:
    found: dict[str, Any] = {"subject": record.subject, "seq": record.seq}
    if record.headers and not request.no_hdr:
        found["hdrs"] = base64.b64encode(record.headers).decode()
    if record.data:
        found["data"] = base64.b64encode(record.data).decode()
    return {"message": {**found, "time": format_time_ns(record.time_ns)}}


def _is_one_message(request: MsgGetRequest) -> bool:
    if request.batch or request.max_bytes or request.multi_last or request.up_to_seq:
        return False
    return is_one(request)


def is_one(request: MsgGetRequest) -> bool:
    """Whether the request names one message, and in one way."""
    if request.last_by_subj and (request.seq or request.next_by_subj or request.start_time):
        return False
    if request.seq and request.start_time:
        return False
    return bool(request.seq or request.last_by_subj or request.next_by_subj or request.start_time)


def find(store: StreamStore, request: MsgGetRequest) -> Record:
    """The message that a request names; NotFound if there is none."""
    if request.last_by_subj:
        return store.load_last_msg(request.last_by_subj)
    start = request.seq
    if request.start_time is not None:
        start = store.seq_from_time(parse_time_ns(request.start_time))
    if request.next_by_subj:
        return store.load_next_msg(request.next_by_subj, max(start, 1))
    return store.load_msg(start)


def find_durable(stream: Stream, request: MsgGetRequest) -> Record:
    """The same on a thread that may wait: for blocks, and for the disk."""
    record = find(stream.store, request)
    if stream.engine.sync_needed and not stream.in_memory:
        stream.store.sync()
    return record


def delete(api: Api, call: Call) -> Outcome:
    """STREAM.MSG.DELETE"""
    if is_empty(call.payload):
        raise api_error("JSBadRequestErr")
    request = read(call.payload, MsgDeleteRequest, strict=api.facts.strict)
    stream = call.account.stream(call.args[0])
    if stream.config.sealed:
        raise api_error("JSStreamSealedErr")
    if stream.config.deny_delete:
        raise api_error("JSStreamMsgDeleteFailedF", err="message delete not permitted")
    seq, store = request.seq, stream.store

    def remove() -> None:
        if request.no_erase:
            store.load_msg(seq)
            store.remove([seq])
            store.commit()
        else:
            store.erase_msg(seq)

    def finish(result: Any) -> Fields:
        if isinstance(result, NotFound):
            raise _nothing_there(stream, seq) from result
        if isinstance(result, Exception):
            raise api_error("JSStreamMsgDeleteFailedF", err=result) from result
        stream.removed([seq])
        return {"success": True}

    return Later(remove, finish, stream)


def _nothing_there(stream: Stream, seq: int) -> ApiError:
    """The server's file store says where a sequence lies; its memory store does not."""
    first, last = stream.store.first_seq, stream.store.last_seq
    if stream.in_memory or first <= seq <= last:
        return api_error("JSSequenceNotFoundErrF", seq=seq)
    return api_error("JSStreamMsgDeleteFailedF", err="stream store EOF" if seq > last else "no message found")
