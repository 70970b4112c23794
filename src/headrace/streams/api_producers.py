"""Endpoints about producers, below `$HEADRACE.API.PRODUCER.`: this server's own, no NATS server has them.

INFO.<stream>     {"producer": "app", "offset": 0}     what is done; both fields may be left out
SETTLE.<stream>   {"producer": "app", "below": 1000}   everything below is done
DELETE.<stream>   {"producer": "app"}                  forget it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.streams.api_types import (
    ProducerDeleteRequest,
    ProducerInfoRequest,
    ProducerSettleRequest,
    paged,
)
from headrace.streams.calls import Call, Fields, Later, Outcome, when_durable
from headrace.streams.errors import ApiError, api_error
from headrace.streams.json_reader import is_structured, read
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.api import Api
    from headrace.streams.stream import Stream

PAGE = 256
RANGES_IN_PAGE = 20
RANGES_OF_ONE = 10_000


def info(api: Api, call: Call) -> Outcome:
    """PRODUCER.INFO"""
    request = ProducerInfoRequest()
    if is_structured(call.payload):
        request = read(call.payload, ProducerInfoRequest, strict=api.facts.strict)
    stream = call.account.stream(call.args[0])
    known = stream.marks.known()
    if request.producer:
        found = [_shown(each, RANGES_OF_ONE) for each in known if each[0] == request.producer]
        if not found:
            raise api_error("HRProducerNotFoundErr")
        return when_durable(stream, found[0])
    page, some = paged(known, request.offset, PAGE)
    return when_durable(stream, {**page, "producers": [_shown(each, RANGES_IN_PAGE) for each in some]})


def _shown(of: tuple[str, int, list[tuple[int, int]]], shown_max: int) -> dict[str, Any]:
    name, used_ns, ranges = of
    settled = bool(ranges) and ranges[0][0] == 0
    above = ranges[1:] if settled else ranges
    return {
        "producer": name,
        "floor": ranges[0][1] + 1 if settled else 0,
        "ranges": above[:shown_max],
        "num_ranges": len(above),
        "last_used": format_time_ns(used_ns),
    }


def settle(api: Api, call: Call) -> Outcome:
    """PRODUCER.SETTLE"""
    request = read(call.payload, ProducerSettleRequest, strict=api.facts.strict)
    stream = _own(call)
    marks = stream.marks
    marks.check_room(request.producer)
    now_ns = stream.engine.clock()

    def work() -> Fields:
        marks.settle(request.producer, request.below, now_ns)
        found = next(each for each in stream.marks.known() if each[0] == request.producer)
        return {"success": True, **_shown(found, RANGES_IN_PAGE)}

    return Later(stream, work, _finish)


def delete(api: Api, call: Call) -> Outcome:
    """PRODUCER.DELETE"""
    request = read(call.payload, ProducerDeleteRequest, strict=api.facts.strict)
    stream = _own(call)

    def work() -> Fields:
        if not stream.marks.delete(request.producer):
            raise api_error("HRProducerNotFoundErr")
        return {"success": True}

    return Later(stream, work, _finish)


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
