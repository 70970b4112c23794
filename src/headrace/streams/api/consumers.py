"""Endpoints about consumers.

The same request reaches three endpoints, by age: `CREATE.<S>` makes ephemerals, `DURABLE.CREATE.<S>.<C>` durables,
`CREATE.<S>.<C>[.<filter>]` either. Names in the subject win or must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.config.model import ConsumerConfig
from headrace.errors import BadInput
from headrace.streams.api.advisories import short_id
from headrace.streams.api.calls import Call, Durable, Fields, Later, Outcome
from headrace.streams.api.info import consumer_info
from headrace.streams.api.json_reader import invalid, is_empty, is_structured, read
from headrace.streams.api.types import (
    DETAILS_PAGE,
    NAMES_PAGE,
    NO_TIME,
    ConsumerPauseRequest,
    ConsumerResetRequest,
    ConsumersRequest,
    ConsumerUnpinRequest,
    CreateConsumerRequest,
    paged,
)
from headrace.streams.consumer.changes import paused
from headrace.streams.consumer.pending import Count
from headrace.streams.consumer.rules import check_name
from headrace.streams.errors import api_error, bad_stream
from headrace.streams.limits import DURATION_NS_MAX
from headrace.units import format_time_ns, parse_time_ns

if TYPE_CHECKING:
    from headrace.streams.api.endpoints import Api
    from headrace.streams.consumer.consumer import Consumer
    from headrace.streams.stream.stream import Stream


def create_ephemeral(api: Api, call: Call) -> Outcome:
    """CONSUMER.CREATE.<S>"""
    request = _read(api, call)
    if request.config.durable_name:
        raise api_error("JSConsumerEphemeralWithDurableNameErr")
    return _create(api, call, request, request.config.name)


def create_durable(api: Api, call: Call) -> Outcome:
    """CONSUMER.DURABLE.CREATE.<S>.<C>"""
    request, name = _read(api, call), call.args[1]
    if not request.config.durable_name:
        raise api_error("JSConsumerDurableNameNotSetErr")
    if request.config.durable_name != name:
        raise api_error("JSConsumerDurableNameNotMatchSubjectErr")
    return _create(api, call, request, name)


def create_named(api: Api, call: Call) -> Outcome:
    """CONSUMER.CREATE.<S>.<C>[.<filter>]"""
    request, name = _read(api, call), call.args[1]
    config = request.config
    if config.durable_name and config.durable_name != name:
        raise api_error("JSConsumerDurableNameNotMatchSubjectErr")
    if len(call.args) > 2:
        if config.filter_subjects:
            raise api_error("JSConsumerMultipleFiltersNotAllowed")
        if config.filter_subject != ".".join(call.args[2:]):
            raise api_error("JSConsumerCreateFilterSubjectMismatchErr")
    return _create(api, call, request, name)


def _read(api: Api, call: Call) -> CreateConsumerRequest:
    request = read(call.payload, CreateConsumerRequest, strict=api.facts.strict)
    if request.stream_name != call.args[0]:
        raise api_error("JSStreamMismatchErr")
    return request


def _create(api: Api, call: Call, request: CreateConsumerRequest, name: str) -> Outcome:
    check_name(name)
    stream = call.account.stream(call.args[0])
    config: ConsumerConfig = replace(request.config, name=name)
    if not name:
        name = _free_name(stream)
    account = call.account
    existing, config = account.check_consumer(
        stream, name, config, action=request.action, pedantic=request.pedantic
    )
    if existing is None:

        def created(result: Any) -> Fields:
            consumer = account.serve_consumer(stream, name, result)
            api.advisories.consumer_action(account, stream.name, name, "create")
            return consumer_info(consumer, api.facts)

        return Later(partial(stream.make_consumer, name, config), created)
    if config == existing.config:
        return _when_counted([existing], lambda: consumer_info(existing, api.facts))
    count = existing.count_with(config)

    def save() -> Count | None:
        existing.store.save_config(config)
        return count() if count is not None else None

    def updated(result: Any) -> Fields:
        _check_saved(result)
        existing.updated(config)
        if result is not None:
            existing.pending.take_first(result)
        return consumer_info(existing, api.facts)

    return Later(save, updated)


def _check_saved(result: Any) -> None:
    if isinstance(result, BadInput):
        raise bad_stream(str(result)) from result
    if isinstance(result, Exception):
        raise api_error("JSConsumerStoreFailedErrF", err=result) from result


def _free_name(stream: Stream) -> str:
    while (name := short_id()) in stream.consumers:
        pass
    return name


def names(api: Api, call: Call) -> Outcome:
    """CONSUMER.NAMES"""
    stream, offset = _page(api, call)
    page, found = paged(sorted(stream.consumers), offset, NAMES_PAGE)
    return {**page, "consumers": found}


def listing(api: Api, call: Call) -> Outcome:
    """CONSUMER.LIST"""
    stream, offset = _page(api, call)
    page, found = paged(sorted(stream.consumers), offset, DETAILS_PAGE)
    consumers = [stream.consumers[name] for name in found]

    def show() -> Fields:
        shown = [consumer_info(each, api.facts, notes=False) for each in consumers]
        return {**page, "consumers": shown}

    return _when_counted(consumers, show)


def _page(api: Api, call: Call) -> tuple[Stream, int]:
    request = ConsumersRequest()
    if is_structured(call.payload):
        request = read(call.payload, ConsumersRequest, strict=api.facts.strict)
    return call.account.stream(call.args[0]), request.offset


def _consumer(call: Call) -> tuple[Stream, Consumer]:
    stream = call.account.stream(call.args[0])
    consumer = stream.consumers.get(call.args[1])
    if consumer is None:
        raise api_error("JSConsumerNotFoundErr")
    return stream, consumer


def info(api: Api, call: Call) -> Outcome:
    """CONSUMER.INFO"""
    if not is_empty(call.payload):
        raise api_error("JSNotEmptyRequestErr")
    consumer = _consumer(call)[1]
    return _when_counted([consumer], lambda: consumer_info(consumer, api.facts))


def _when_counted(consumers: Sequence[Consumer], show: Callable[[], Fields]) -> Outcome:
    """What is shown of consumers, once it is known how much waits for each."""
    unknown = [each for each in consumers if not each.pending.known(each.end)]
    if not unknown:
        return show()
    work = [each.pending.work(each.end) for each in unknown]
    takers = [each.pending.taker(shown=True) for each in unknown]

    def finish(counts: Any) -> Fields:
        if isinstance(counts, Exception):
            raise counts
        for take, counted in zip(takers, counts, strict=True):
            take(counted)
        return show()

    return Later(lambda: [count() for count in work], finish)


def delete(api: Api, call: Call) -> Outcome:
    """CONSUMER.DELETE"""
    if not is_empty(call.payload):
        raise api_error("JSNotEmptyRequestErr")
    stream, consumer = _consumer(call)
    remove = consumer.delete()

    def finish(result: Any) -> Fields:
        _check_saved(result)
        api.advisories.consumer_action(call.account, stream.name, consumer.name, "delete")
        return {"success": True}

    return Later(remove, finish)


def pause(api: Api, call: Call) -> Outcome:
    """CONSUMER.PAUSE: until a time, or on again with none."""
    request = ConsumerPauseRequest()
    if is_structured(call.payload):
        request = read(call.payload, ConsumerPauseRequest, strict=api.facts.strict)
    stream, consumer = _consumer(call)
    until_ns = None if request.pause_until in (None, NO_TIME) else parse_time_ns(request.pause_until)
    before = consumer.config.pause_until
    config = paused(consumer.config, None if until_ns is None else format_time_ns(until_ns))

    def finish(result: Any) -> Fields:
        _check_saved(result)
        consumer.paused(config)
        left = min(max((until_ns or 0) - stream.engine.clock(), 0), DURATION_NS_MAX)
        if until_ns is not None or before is not None:
            api.advisories.consumer_paused(
                call.account, stream.name, consumer.name, paused=left > 0, until_ns=until_ns
            )
        said: dict[str, Any] = {"paused": left > 0, "pause_until": format_time_ns(until_ns)}
        return {**said, "pause_remaining": left} if left else said

    return Later(partial(consumer.store.save_config, config), finish)


def unpin(api: Api, call: Call) -> Outcome:
    """CONSUMER.UNPIN: the next client of a priority group gets its turn."""
    request = read(call.payload, ConsumerUnpinRequest, strict=False, plain=True)
    if not request.group:
        raise invalid("consumer group not specified")
    stream, consumer = _consumer(call)
    if request.group not in consumer.config.priority_groups:
        raise api_error("JSConsumerInvalidPriorityGroupErr")
    consumer.unpin(request.group)
    api.advisories.unpinned(call.account, stream.name, consumer.name, request.group, "admin")
    return {}


def reset(api: Api, call: Call) -> Outcome:
    """CONSUMER.RESET: back to the ack floor, or to a sequence. Served by the consumer: without one, silence."""
    stream = call.account.streams.get(call.args[0])
    consumer = stream.consumers.get(call.args[1]) if stream is not None else None
    if stream is None or consumer is None:
        return None
    request = ConsumerResetRequest()
    if call.payload:
        request = read(call.payload, ConsumerResetRequest, strict=False, plain=True)
    config, seq = consumer.config, request.seq
    if seq:
        if config.deliver_policy not in ("all", "by_start_sequence", "by_start_time"):
            raise api_error("JSConsumerInvalidResetErr", err="not allowed")
        if seq < _start(stream, config):
            raise api_error("JSConsumerInvalidResetErr", err="below start seq")
    first = consumer.reset(seq or None)
    said = {**consumer_info(consumer, api.facts), "reset_seq": first}
    return Durable(consumer.store.journal, consumer.store.mark(), said, stream.in_memory)


def _start(stream: Stream, config: ConsumerConfig) -> int:
    """The first sequence that the consumer was made for."""
    if config.opt_start_time is not None:
        return stream.store.seq_from_time(parse_time_ns(config.opt_start_time))
    return config.opt_start_seq
