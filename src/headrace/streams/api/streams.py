"""Endpoints about the account and its streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import NotInMemory
from headrace.streams.api.calls import Call, Fields, Later, Outcome
from headrace.streams.api.info import stream_info, stream_state, subject_details
from headrace.streams.api.json_reader import is_empty, is_structured, read
from headrace.streams.api.types import (
    DETAILS_PAGE,
    NAMES_PAGE,
    StreamConfigRequest,
    StreamInfoRequest,
    StreamListRequest,
    StreamNamesRequest,
    StreamPurgeRequest,
    paged,
)
from headrace.streams.errors import api_error, bad_stream
from headrace.streams.limits import FIRST_SEQ_MAX
from headrace.streams.stream.loads import memory_only
from headrace.streams.stream.rules import NAME_RULE, NOT_IN_NAMES
from headrace.streams.stream.stream import Stream

if TYPE_CHECKING:
    from headrace.streams.api.endpoints import Api


def account_info(api: Api, call: Call) -> Outcome:
    """What the account holds, may hold, and how often it was asked."""
    account = call.account
    used = account.usage()
    found: dict[str, Any] = {
        "memory": used.memory,
        "storage": used.storage,
        "reserved_memory": used.reserved_memory,
        "reserved_storage": used.reserved_storage,
        "streams": len(account.streams),
        "consumers": sum(len(stream.consumers) for stream in account.streams.values()),
        "limits": account.limits.as_json(),
    }
    if api.facts.domain:
        found["domain"] = api.facts.domain
    return {
        **found,
        "api": {"level": api.facts.level, "total": account.api_total, "errors": account.api_errors},
    }


def create(api: Api, call: Call) -> Outcome:
    """STREAM.CREATE"""
    request = read(call.payload, StreamConfigRequest, strict=api.facts.strict)
    _check_name(request.name, call.args[0])
    if request.sealed:
        raise bad_stream("stream configuration for create can not be sealed")
    account = call.account
    creation = account.begin_create(request, pedantic=request.pedantic)
    if isinstance(creation, Stream):
        return {**stream_info(creation, api.facts), "did_create": True}

    def finish(result: Any) -> Fields:
        stream = creation.finish(result)
        api.advisories.stream_action(account, stream.name, "create")
        return {**stream_info(stream, api.facts), "did_create": True}

    return Later(creation.work, finish)


def update(api: Api, call: Call) -> Outcome:
    """STREAM.UPDATE"""
    request = read(call.payload, StreamConfigRequest, strict=api.facts.strict)
    if not request.name or not NOT_IN_NAMES.isdisjoint(request.name):
        raise bad_stream(NAME_RULE)
    _check_name(request.name, call.args[0])
    account = call.account
    stream, config = account.check_update(request, pedantic=request.pedantic)

    def finish(result: Any) -> Fields:
        account.finish_update(stream, result)
        api.advisories.stream_action(account, stream.name, "modify")
        return stream_info(stream, api.facts)

    return Later(partial(stream.save_config, config), finish, stream)


def _check_name(in_body: str, in_subject: str) -> None:
    if in_body != in_subject:
        raise api_error("JSStreamMismatchErr")
    if "/" in in_body or "\\" in in_body:
        raise api_error("JSStreamNameContainsPathSeparatorsErr")


def names(api: Api, call: Call) -> Outcome:
    """STREAM.NAMES"""
    request = StreamNamesRequest()
    if is_structured(call.payload):
        request = read(call.payload, StreamNamesRequest, strict=api.facts.strict)
    page, found = paged(call.account.names(request.subject), request.offset, NAMES_PAGE)
    return {**page, "streams": found or None}


def listing(api: Api, call: Call) -> Outcome:
    """STREAM.LIST"""
    request = StreamListRequest()
    if is_structured(call.payload):
        request = read(call.payload, StreamListRequest, strict=api.facts.strict)
    account = call.account
    page, found = paged(account.names(request.subject), request.offset, DETAILS_PAGE)
    shown = [account.streams[name] for name in found]

    def show() -> Fields:
        streams = [stream_info(stream, api.facts, notes=False) for stream in shown]
        answer: dict[str, Any] = {**page, "streams": streams}
        if account.offline:
            answer["offline"] = account.offline
        return answer

    def look() -> None:
        for stream in shown:
            if not stream.closed:
                stream.store.fast_state()

    def looked(result: Any) -> Fields:
        if isinstance(result, Exception):
            raise result
        return show()

    try:
        with memory_only():
            return show()
    except NotInMemory:
        return Later(look, looked)


def info(api: Api, call: Call) -> Outcome:
    """STREAM.INFO"""
    request = StreamInfoRequest()
    if is_structured(call.payload):
        request = read(call.payload, StreamInfoRequest, strict=api.facts.strict)
    stream = call.account.stream(call.args[0])

    def look() -> tuple[dict[str, int], dict[str, Any]]:
        page, subjects = subject_details(stream, request)
        return page, stream_state(stream, deleted=request.deleted_details, subjects=subjects)

    def shown(result: Any) -> Fields:
        if isinstance(result, Exception):
            raise result
        page, state = result
        return {**page, **stream_info(stream, api.facts, state=state, leader=True)}

    # A hundred thousand subjects, or a million gaps, are not gathered while others wait.
    if request.subjects_filter or request.deleted_details:
        return Later(look, shown)
    try:
        with memory_only():
            return shown(look())
    except NotInMemory:
        return Later(look, shown)


def delete(api: Api, call: Call) -> Outcome:
    """STREAM.DELETE"""
    if not is_empty(call.payload):
        raise api_error("JSNotEmptyRequestErr")
    account, name = call.account, call.args[0]
    consumers: list[str] = []
    if name in account.offline:
        work = partial(account.delete_offline, name)
    else:
        consumers = sorted(account.stream(name).consumers)
        work = account.begin_delete(name)

    def finish(result: Any) -> Fields:
        if isinstance(result, Exception):
            raise api_error("JSStreamDeleteErrF", err=result)
        account.offline.pop(name, None)
        for consumer in consumers:
            api.advisories.consumer_action(account, name, consumer, "delete")
        api.advisories.stream_action(account, name, "delete")
        return {"success": True}

    return Later(work, finish)


def purge(api: Api, call: Call) -> Outcome:
    """STREAM.PURGE"""
    request = StreamPurgeRequest()
    if is_structured(call.payload):
        request = read(call.payload, StreamPurgeRequest, strict=api.facts.strict)
    stream = call.account.stream(call.args[0])
    if request.seq and request.keep:
        raise api_error("JSBadRequestErr")
    if stream.config.sealed:
        raise api_error("JSStreamSealedErr")
    if stream.config.deny_purge:
        raise api_error("JSStreamPurgeFailedF", err="stream purge not permitted")
    if not request.filter and request.seq > max(FIRST_SEQ_MAX, stream.store.last_seq + 1):
        raise api_error(
            "JSStreamPurgeFailedF", err=f"a stream can not begin at a sequence above {FIRST_SEQ_MAX}"
        )

    def finish(purged: Any) -> Fields:
        if isinstance(purged, Exception):
            raise api_error("JSStreamPurgeFailedF", err=purged)
        stream.recount(request.filter)
        return {"success": True, "purged": purged}

    store = stream.store
    if not (request.filter or request.seq or request.keep):
        return Later(store.purge, finish, stream)
    below = store.last_seq + 1

    def work() -> int:
        purged = store.purge_ex(request.filter, request.seq, request.keep, below)
        if request.filter:
            store.filtered_state(0, request.filter)  # where consumers go on: in memory from now on
        return purged

    # Publishes go on between the steps of a purge by subject: they lie behind what it takes. Who refuses messages while it
    # is full has them wait for the place.
    in_steps = request.filter not in ("", ">") and stream.config.discard != "new"
    return Later(work, finish, None if in_steps else stream)
