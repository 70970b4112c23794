"""Endpoints about producers, below `$HEADRACE.API.PRODUCER.`: this server's own, no NATS server has them.

INFO.<stream>     {"producer": "app", "offset": 0}     what is done; both fields may be left out
SETTLE.<stream>   {"producer": "app", "below": 1000}   everything below is done
DELETE.<stream>   {"producer": "app"}                  forget it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.streams.api.calls import Call, Fields, Later, Outcome, when_durable
from headrace.streams.api.json_reader import is_structured, read
from headrace.streams.api.types import (
    ProducerDeleteRequest,
    ProducerInfoRequest,
    ProducerSettleRequest,
    paged,
)
from headrace.streams.errors import ApiError, api_error
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.api.endpoints import Api
    from headrace.streams.stream.producers import KnownProducer
    from headrace.streams.stream.stream import Stream

PAGE = 256
RANGES_IN_PAGE = 20
RANGES_OF_ONE = 10_000


def info(api: Api, call: Call) -> Outcome:
    """PRODUCER.INFO"""
    request = ProducerInfoRequest()
    if is_structured(call.payload):
        request = read(call.payload, ProducerInfoRequest, strict=api.facts.strict)
    stream = call.account.stream(call.args[0])
    marks = stream.marks
    if request.producer:
        found = marks.known([request.producer], RANGES_OF_ONE)
        if not found:
            raise api_error("HRProducerNotFoundErr")
        return when_durable(stream, _shown(found[0]))
    page, names = paged(marks.names(), request.offset, PAGE)
    return when_durable(
        stream, {**page, "producers": [_shown(each) for each in marks.known(names, RANGES_IN_PAGE)]}
    )


def _shown(of: KnownProducer) -> dict[str, Any]:
    return {
        "producer": of.name,
        "floor": of.floor,
        "ranges": of.ranges,
        "numbers": of.numbers,
        "last_used": format_time_ns(of.used_ns),
    }


def raise_floor(api: Api, call: Call) -> Outcome:
    """PRODUCER.SETTLE"""
    request = read(call.payload, ProducerSettleRequest, strict=api.facts.strict)
    stream = _own(call)
    marks = stream.marks
    marks.check_space(request.producer)
    now_ns = stream.engine.clock()

    def work() -> Fields:
        marks.raise_floor(request.producer, request.below, now_ns)
        return {"success": True, **_shown(marks.known([request.producer], RANGES_IN_PAGE)[0])}

    return Later(work, _finish, stream)


def delete(api: Api, call: Call) -> Outcome:
    """PRODUCER.DELETE"""
    request = read(call.payload, ProducerDeleteRequest, strict=api.facts.strict)
    stream = _own(call)

    def work() -> Fields:
        if not stream.marks.delete(request.producer):
            raise api_error("HRProducerNotFoundErr")
        return {"success": True}

    return Later(work, _finish, stream)


def _own(call: Call) -> Stream:
    stream = call.account.stream(call.args[0])
    if stream.config.mirror is not None:
        raise api_error("HRProducerRequestF", err="a mirror keeps no producers; ask its origin")
    return stream


def _finish(result: Any) -> Fields:
    if isinstance(result, ApiError):
        raise result
    if isinstance(result, HeadraceError):
        raise api_error("HRProducerSaveF", err=result)
    return result
