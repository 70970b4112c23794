"""The JSON inside a NATSARC1 archive: the stream's state, and each consumer's configuration and state.

state.json        {"messages":3,"bytes":…,"first_seq":1,"first_ts":"…","last_seq":3,"last_ts":"…",
                   "num_subjects"?,"num_deleted"?,"lost"?,"consumer_count":1}
consumers/<name>  {"config":{…},"state":{"delivered":{"consumer_seq","stream_seq"},"ack_floor":{…},
                   "pending"?:{"<stream seq>":{"Sequence","Timestamp"}},"redelivered"?:{"<seq>":n}}}
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from headrace.config.meta_json import encode_config
from headrace.config.model import ConsumerConfig
from headrace.errors import Damaged
from headrace.layouts.base import ConsumerState, LogState, Pending, SequencePair
from headrace.units import format_time_ns, parse_time_ns

_NO_TIME = format_time_ns(None)
_T = TypeVar("_T")


class _Lost(msgspec.Struct):
    msgs: list[int] | None = None
    bytes: int = 0


class _State(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: str = _NO_TIME
    last_seq: int = 0
    last_ts: str = _NO_TIME
    num_subjects: int = 0
    num_deleted: int = 0
    lost: _Lost | None = None
    consumer_count: int = 0


class _Pair(msgspec.Struct):
    consumer_seq: int = 0
    stream_seq: int = 0


class _Pending(msgspec.Struct):
    sequence: int = msgspec.field(name="Sequence", default=0)
    timestamp: int = msgspec.field(name="Timestamp", default=0)


class _ConsumerState(msgspec.Struct):
    delivered: _Pair = msgspec.field(default_factory=_Pair)
    ack_floor: _Pair = msgspec.field(default_factory=_Pair)
    pending: dict[int, _Pending] | None = None
    redelivered: dict[int, int] | None = None


class _Consumer(msgspec.Struct):
    config: ConsumerConfig = msgspec.field(default_factory=ConsumerConfig)
    state: _ConsumerState = msgspec.field(default_factory=_ConsumerState)


def encode_log_state(state: LogState) -> bytes:
    """The content of state.json. Deleted sequences are not listed: they follow from the messages."""
    document: dict[str, Any] = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "first_ts": format_time_ns(state.first_time_ns),
        "last_seq": state.last_seq,
        "last_ts": format_time_ns(state.last_time_ns),
    }
    for key in ("num_subjects", "num_deleted"):
        if getattr(state, key):
            document[key] = getattr(state, key)
    if state.lost_messages or state.lost_bytes:
        document["lost"] = {"msgs": None, "bytes": state.lost_bytes}
    return msgspec.json.encode(document | {"consumer_count": state.consumers})


def decode_log_state(data: bytes) -> LogState:
    """Read state.json. Damaged if it is not one."""
    found = _decode(data, _State, "state.json")
    state = LogState(
        found.messages,
        found.bytes,
        found.first_seq,
        found.last_seq,
        num_subjects=found.num_subjects,
        num_deleted=found.num_deleted,
        consumers=found.consumer_count,
    )
    try:
        first, last = (_time(text) for text in (found.first_ts, found.last_ts))
    except ValueError as error:
        raise Damaged("state.json", 0, str(error), "times as RFC 3339", "take the snapshot again") from error
    return replace(state, first_time_ns=first, last_time_ns=last)


def encode_snapshot_consumer(config: ConsumerConfig, state: ConsumerState, last_seq: int) -> bytes:
    """A consumer's document; nothing in it reaches beyond `last_seq`, the end of the snapshot."""
    document: dict[str, Any] = {
        "config": msgspec.Raw(encode_config(config)),
        "state": {
            "delivered": _pair(state.delivered, last_seq),
            "ack_floor": _pair(state.ack_floor, last_seq),
        },
    }
    pending = {
        str(seq): {"Sequence": entry.sequence, "Timestamp": entry.time_ns}
        for seq, entry in state.pending.items()
        if seq <= last_seq
    }
    redelivered = {str(seq): count for seq, count in state.redelivered.items() if seq <= last_seq}
    for key, table in (("pending", pending), ("redelivered", redelivered)):
        if table:
            document["state"][key] = dict(sorted(table.items()))
    return msgspec.json.encode(document)


def decode_snapshot_consumer(name: str, data: bytes) -> tuple[ConsumerConfig, ConsumerState]:
    """A consumer's configuration and state."""
    found = _decode(data, _Consumer, f"consumers/{name}")
    state = ConsumerState(
        SequencePair(found.state.delivered.consumer_seq, found.state.delivered.stream_seq),
        SequencePair(found.state.ack_floor.consumer_seq, found.state.ack_floor.stream_seq),
        {s: Pending(p.sequence, p.timestamp) for s, p in sorted((found.state.pending or {}).items())},
        dict(found.state.redelivered or {}),
    )
    return found.config, state


def _pair(pair: SequencePair, last_seq: int) -> dict[str, int]:
    return {"consumer_seq": pair.consumer, "stream_seq": min(pair.stream, last_seq)}


def _time(text: str) -> int | None:
    return None if text.startswith("0001-01-01T00:00:00") else parse_time_ns(text)


def _decode(data: bytes, shape: type[_T], name: str) -> _T:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        seen, remedy = repr(data[:40]), f"take the snapshot again ({error})"
        raise Damaged(f"snapshot: {name}", 0, seen, "JSON of a snapshot", remedy) from error
