r"""`meta.inf`: one line of JSON, byte for byte as nats-server of the asked era writes it.

    stream     {"Created":"2026-11-15T18:23:36.5Z","name":"ORDERS","subjects":["o.\u003e"], …}
    consumer   {"Created":"…","Name":"C1","durable_name":"C1", …}

Keys in the server's order; those marked optional are left out when empty; `<`, `>`, `&` and the two
Unicode line separators are escaped; times have no trailing zeros; maps are sorted. nats-server 2.15 takes
a stream offline when it meets a key it does not know, so an era gets only its own keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from headrace.config.model import (
    ConsumerConfig,
    ConsumerLimits,
    External,
    Placement,
    Republish,
    Source,
    SourceConsumer,
    StreamConfig,
    SubjectTransform,
)
from headrace.errors import Damaged
from headrace.units import format_time_ns, parse_time_ns

Era = Literal["2.6", "2.9", "2.15"]
_T = TypeVar("_T")

# "?" behind a key: left out when empty.
_STREAM_KEYS: dict[Era, str] = {
    "2.6": """name description? subjects? retention max_consumers max_msgs max_bytes max_age
        max_msgs_per_subject max_msg_size? discard storage num_replicas no_ack? template_owner?
        duplicate_window? placement? mirror? sources?
        sealed deny_delete deny_purge allow_rollup_hdrs""",
    "2.9": """name description? subjects? retention max_consumers max_msgs max_bytes max_age
        max_msgs_per_subject max_msg_size? discard storage num_replicas no_ack? template_owner?
        duplicate_window? placement? mirror? sources? republish? allow_direct mirror_direct
        discard_new_per_subject? sealed deny_delete deny_purge allow_rollup_hdrs""",
    "2.15": """name description? subjects? retention max_consumers max_msgs max_bytes max_age
        max_msgs_per_subject max_msg_size? discard storage num_replicas no_ack?
        duplicate_window? placement? mirror? sources? compression first_seq? subject_transform?
        republish? allow_direct mirror_direct discard_new_per_subject? sealed deny_delete deny_purge
        allow_rollup_hdrs consumer_limits allow_msg_ttl subject_delete_marker_ttl? allow_msg_counter?
        allow_atomic? allow_msg_schedules? persist_mode? allow_batched? metadata?""",
}
_CONSUMER_KEYS: dict[Era, str] = {
    "2.6": """durable_name? description? deliver_subject? deliver_group? deliver_policy opt_start_seq?
        opt_start_time? ack_policy ack_wait? max_deliver? filter_subject? replay_policy rate_limit_bps?
        sample_freq? max_waiting? max_ack_pending? idle_heartbeat? flow_control? headers_only? direct?""",
    "2.9": """durable_name? name? description? deliver_policy opt_start_seq? opt_start_time? ack_policy
        ack_wait? max_deliver? backoff? filter_subject? replay_policy rate_limit_bps? sample_freq?
        max_waiting? max_ack_pending? idle_heartbeat? flow_control? headers_only? max_batch? max_expires?
        max_bytes? deliver_subject? deliver_group? inactive_threshold? num_replicas mem_storage? direct?""",
    "2.15": """durable_name? name? description? deliver_policy opt_start_seq? opt_start_time? ack_policy
        ack_wait? max_deliver? backoff? filter_subject? filter_subjects? replay_policy rate_limit_bps?
        sample_freq? max_waiting? max_ack_pending? flow_control? headers_only? max_batch? max_expires?
        max_bytes? deliver_subject? deliver_group? idle_heartbeat? inactive_threshold? num_replicas
        mem_storage? direct? sourcing? metadata? pause_until? priority_groups? priority_policy?
        priority_timeout?""",
}
_NESTED: dict[str, type[msgspec.Struct]] = {
    "placement": Placement,
    "mirror": Source,
    "sources": Source,
    "subject_transform": SubjectTransform,
    "subject_transforms": SubjectTransform,
    "republish": Republish,
    "consumer_limits": ConsumerLimits,
    "external": External,
    "consumer": SourceConsumer,
}
_NEWER_THAN_2_9 = ("preferred", "subject_transforms", "consumer")  # members of nested objects
_OLD_ONLY = frozenset({"template_owner"})
_EMPTY_WORDS = {"persist_mode": "default", "priority_policy": "none"}
# Stored by 2.15 beside the configuration proper; an older server does without.
_NOT_MISSED = frozenset({"metadata", "name", "num_replicas"})


class _Head(msgspec.Struct):
    created: str = msgspec.field(name="Created")
    name: str = msgspec.field(name="Name", default="")


@dataclass(frozen=True, slots=True)
class ConsumerMeta:
    """A consumer's meta.inf: `name` is "" in files of 2.6."""

    name: str
    config: ConsumerConfig
    created_ns: int


def encode_stream_meta(config: StreamConfig, created_ns: int, era: Era = "2.15") -> bytes:
    """The bytes of a stream's meta.inf."""
    return _to_json({"Created": format_time_ns(created_ns), **_document(config, _STREAM_KEYS[era], era)})


def encode_consumer_meta(name: str, config: ConsumerConfig, created_ns: int, era: Era = "2.15") -> bytes:
    """The bytes of a consumer's meta.inf."""
    if era == "2.9" and config.durable_name:
        config = msgspec.structs.replace(config, name="")  # 2.9 keeps it only for ephemerals
    head = {"Created": format_time_ns(created_ns), "Name": "" if era == "2.6" else name}
    return _to_json({**head, **_document(config, _CONSUMER_KEYS[era], era)})


def encode_config(config: StreamConfig | ConsumerConfig, era: Era = "2.15") -> bytes:
    """The configuration alone, as the API shows it."""
    keys = _STREAM_KEYS if isinstance(config, StreamConfig) else _CONSUMER_KEYS
    return _to_json(_document(config, keys[era], era))


def decode_stream_meta(raw: bytes, file: str = "meta.inf") -> tuple[StreamConfig, int]:
    """(configuration, creation time in ns) from a meta.inf of any era."""
    return _decode(raw, StreamConfig, file), _created(raw, file)


def decode_consumer_meta(raw: bytes, file: str = "meta.inf") -> ConsumerMeta:
    """A consumer's meta.inf of any era."""
    config = _decode(raw, ConsumerConfig, file)
    return ConsumerMeta(_decode(raw, _Head, file).name, config, _created(raw, file))


def unknown_keys(raw: bytes, kind: Literal["stream", "consumer"]) -> list[str]:
    """Keys that 2.15.2 does not know, nested ones as `mirror.key`: it would take the stream offline."""
    document: object = _decode(raw, object, "meta.inf")
    if not isinstance(document, dict):
        return []
    shape = StreamConfig if kind == "stream" else ConsumerConfig
    return sorted(_unknown_keys(document, shape, {"Created", "Name"}))  # pyright: ignore[reportUnknownArgumentType]


def lost_in(config: StreamConfig | ConsumerConfig, era: Era) -> list[str]:
    """Settings of `config` that mean something and that a server of `era` would not know."""
    keys = (_STREAM_KEYS if isinstance(config, StreamConfig) else _CONSUMER_KEYS)[era]
    known = {key.removesuffix("?") for key in keys.split()} | _NOT_MISSED | _OLD_ONLY
    bare = StreamConfig(name="x") if isinstance(config, StreamConfig) else ConsumerConfig()
    wanted = (key for key in config.__struct_fields__ if key not in known)
    return [
        key
        for key in wanted
        if not _is_empty(key, getattr(config, key)) and getattr(config, key) != getattr(bare, key)
    ]


def _document(config: StreamConfig | ConsumerConfig, keys: str, era: Era) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in keys.split():
        name = key.removesuffix("?")
        value: Any = getattr(config, name)
        if not (key.endswith("?") and _is_empty(name, value)):
            found[name] = _plain(name, value, era)
    return found


def _plain(name: str, value: Any, era: Era) -> Any:
    """What the JSON encoder gets: times normalised, maps sorted, newer members gone for old eras."""
    if name.endswith(("_time", "_until")) and isinstance(value, str) and value[-1:] in "Zz":
        return format_time_ns(parse_time_ns(value))
    built: Any = msgspec.to_builtins(value)
    if name in _NESTED:
        return (
            [_without_newer(each, era) for each in built] if name == "sources" else _without_newer(built, era)
        )
    return dict(sorted(built.items())) if name == "metadata" else built


def _without_newer(item: dict[str, Any], era: Era) -> dict[str, Any]:
    if era == "2.15":
        return item
    return {key: value for key, value in item.items() if key not in _NEWER_THAN_2_9}


def _is_empty(name: str, value: Any) -> bool:
    return not value or value == _EMPTY_WORDS.get(name)


def _to_json(document: dict[str, Any]) -> bytes:
    text = msgspec.json.encode(document)
    for plain, escaped in (
        (b"<", rb"\u003c"),
        (b">", rb"\u003e"),
        (b"&", rb"\u0026"),
        ("\u2028".encode(), rb"\u2028"),
        ("\u2029".encode(), rb"\u2029"),
    ):
        text = text.replace(plain, escaped)
    return text


def _decode(raw: bytes, shape: type[_T], file: str) -> _T:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        seen = repr(raw[:40].decode("utf-8", "replace"))
        remedy = f"restore the file from a backup ({error})"
        raise Damaged(file, 0, seen, "the JSON of a JetStream configuration", remedy) from error


def _created(raw: bytes, file: str) -> int:
    text = _decode(raw, _Head, file).created
    try:
        return parse_time_ns(text)
    except ValueError as error:
        raise Damaged(file, 0, repr(text), "a creation time as RFC 3339", "correct the file") from error


def _unknown_keys(document: dict[str, Any], shape: type[msgspec.Struct], also: set[str]) -> list[str]:
    known = set(shape.__struct_fields__) | also
    found = [key for key in document if key not in known]
    for key in (key for key in document if key in _NESTED):
        value: Any = document[key]
        parts: list[Any] = value if key in ("sources", "subject_transforms") else [value]
        for part in parts:
            if isinstance(part, dict):
                inner = _unknown_keys(part, _NESTED[key], set())  # pyright: ignore[reportUnknownArgumentType]
                found += [f"{key}.{name}" for name in inner]
    return found
