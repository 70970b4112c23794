"""Streams and consumers as the API shows them: fields and order of nats-server 2.15.2.

Configurations are shown with notes about the server in `metadata` (`_nats.ver`, `_nats.level`), except in lists; what is
stored has only the level that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from headrace.config.meta_json import encode_config
from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.layouts.base import LogState
from headrace.streams.api.types import SUBJECTS_PAGE, StreamInfoRequest
from headrace.streams.limits import ServerFacts
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer
    from headrace.streams.stream.stream import Stream

DELETED_LISTED_MAX = 1_000_000


def config_json(
    config: StreamConfig | ConsumerConfig, facts: ServerFacts, *, notes: bool = True
) -> msgspec.Raw:
    """A configuration, ready to be put into an answer."""
    if notes:
        config = replace(config, metadata={**config.metadata, **_notes(facts)})
    return msgspec.Raw(encode_config(config))


def _shown_config(owner: Stream | Consumer, facts: ServerFacts, notes: bool) -> msgspec.Raw:
    """The same, made once for each configuration: a list shows hundreds."""
    config, known = owner.config, owner.shown.get(notes)
    if known is None or known[0] is not config:
        known = owner.shown[notes] = (config, config_json(config, facts, notes=notes))
    return known[1]


def _notes(facts: ServerFacts) -> dict[str, str]:
    return {"_nats.level": str(facts.level), "_nats.ver": facts.version}


def stream_info(
    stream: Stream,
    facts: ServerFacts,
    *,
    notes: bool = True,
    state: dict[str, Any] | None = None,
    leader: bool = False,
) -> dict[str, Any]:
    """A stream: in answers to create and update, in lists (without `notes`) and, with `leader`, in its info."""
    found: dict[str, Any] = {
        "config": _shown_config(stream, facts, notes),
        "created": format_time_ns(stream.created_ns),
        "state": state if state is not None else stream_state(stream),
    }
    if facts.domain:
        found["domain"] = facts.domain
    if leader:
        found["cluster"] = {"leader": facts.name}
    if stream.origins is not None:
        origins = stream.origins.info()
        found |= {"mirror": origins[0]} if stream.origins.mirror else {"sources": origins}
    found["ts"] = format_time_ns(stream.engine.clock())
    return found


def stream_state(stream: Stream, *, deleted: bool = False, subjects: bytes = b"") -> dict[str, Any]:
    """`state` of a stream; the sequences of holes and counts per subject only where they were asked for."""
    store = stream.store
    state: LogState = store.fast_state()
    first = state.first_seq
    if state.last_seq == 0 and (stream.config.first_seq == 1 or store.was_purged):
        first = 1  # asked for, or purged (it has another block then): shown even before the first message
    found: dict[str, Any] = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": first,
        "first_ts": format_time_ns(state.first_time_ns if state.messages else None),
        "last_seq": state.last_seq,
        "last_ts": format_time_ns(state.last_time_ns),
    }
    if state.num_subjects:
        found["num_subjects"] = state.num_subjects
    if subjects:
        found["subjects"] = msgspec.Raw(subjects)
    if state.num_deleted:
        found["num_deleted"] = state.num_deleted
    if deleted and state.num_deleted:
        found["deleted"] = msgspec.Raw(store.deleted_json(DELETED_LISTED_MAX))
    if state.lost_messages or state.lost_bytes:
        found["lost"] = {"msgs": _lost(stream), "bytes": state.lost_bytes}
    found["consumer_count"] = len(stream.consumers)
    return found


def _lost(stream: Stream) -> list[int] | None:
    found = [each.first_seq for each in stream.store.damage() if each.kind == "bad-record"]
    return sorted(seq for seq in found if seq is not None) or None


def subject_details(stream: Stream, request: StreamInfoRequest) -> tuple[dict[str, int], bytes]:
    """(the page of the answer, messages per subject on that page as JSON)"""
    page = {"total": 0, "offset": 0, "limit": 0}
    if not request.subjects_filter:
        return page, b""
    offset = max(request.offset, 0)
    found = stream.store.subjects_page(request.subjects_filter, offset, SUBJECTS_PAGE)
    if not found.total:
        return page, b""
    shown = found.counts if found.counts != b"{}" else b""
    return {"total": found.total, "offset": offset, "limit": SUBJECTS_PAGE}, shown


def consumer_info(consumer: Consumer, facts: ServerFacts, *, notes: bool = True) -> dict[str, Any]:
    """A consumer: what it says of itself, with its configuration as it is shown."""
    return {**consumer.info(), "config": _shown_config(consumer, facts, notes)}
