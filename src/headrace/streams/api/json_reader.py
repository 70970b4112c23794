"""Requests read as the real server reads them.

It is tolerant in some ways (a key's case does not matter, `null` is "not given", the last of two equal keys counts,
several values after each other are read as one) and strict in others: a key it does not know, a fraction, a number
that does not fit, a word that is none of a policy's are 400/10025 with a text that names the place. The shapes are the
msgspec structs of `api_types.py` and of the layouts; this module walks them, it knows no field by itself except by
the tables below.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from headrace.errors import BadInput
from headrace.streams.api.json_syntax import Malformed, one_value, split_values
from headrace.streams.errors import ApiError, api_error
from headrace.units import parse_time_ns

_T = TypeVar("_T", bound=msgspec.Struct)
_INT = re.compile(rb"-?(0|[1-9][0-9]*)")
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_RANGES = {
    "int64": (-(1 << 63), (1 << 63) - 1),
    "int": (-(1 << 63), (1 << 63) - 1),
    "time.Duration": (-(1 << 63), (1 << 63) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint64": (0, (1 << 64) - 1),
}
# Whole numbers by their width; a field that is not here is int64 in streams and int in all else.
_FIELDS_OF_WIDTH = {
    "int32": "max_msg_size",
    "uint64": "first_seq opt_start_seq rate_limit_bps seq keep up_to_seq below",
    "int": "max_consumers num_replicas max_ack_pending",
    "time.Duration": "max_age duplicate_window subject_delete_marker_ttl inactive_threshold ack_wait backoff "
    "max_expires idle_heartbeat priority_timeout",
}
_WIDTHS = {name: width for width, names in _FIELDS_OF_WIDTH.items() for name in names.split()}
_WIDE = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject"})
_LISTS = {"sources": "[]*server.StreamSource", "subject_transforms": "[]server.SubjectTransformConfig"}
EXPLAINED_BYTES_MAX = 16 << 10
ITEMS_MAX = 1000
"""Of a list whose items are looked at one by one: sources, transforms, waits; not texts."""
_RAW = msgspec.json.Decoder(msgspec.Raw)
_STRINGS = msgspec.json.Decoder(list[str])
_TEXTS = msgspec.json.Decoder(dict[str, str])
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_ABSENT = object()
_LAYOUT = '"2006-01-02T15:04:05Z07:00"'


class _Refused(Exception):
    """A word that no policy knows: this ends the reading, whatever was wrong before."""


def is_empty(payload: bytes) -> bool:
    """Whether a request that takes no arguments is fine: nothing, or an empty object."""
    if not payload:
        return True
    try:
        return msgspec.json.decode(payload) == {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def is_structured(payload: bytes) -> bool:
    """Whether the text begins like an object or array; other text counts as "no request" at some endpoints."""
    return payload.lstrip(b" \t\r\n")[:1] in (b"{", b"[")


def read(payload: bytes, shape: type[_T], *, strict: bool = True, plain: bool = False) -> _T:
    """The request of that shape; 400/10025 if it is none. Nothing at all gives the defaults.

    `plain` is for the few endpoints that read exactly one value and do not tell the offset of an error;
    without `strict` unknown keys are passed over.
    """
    problems: list[str] = []
    members: dict[str, Any] = {}
    try:
        for value in _values(payload, plain):
            members |= _Walk(problems, strict).struct(msgspec.Raw(value), shape, _go_name(shape), "") or {}
    except (Malformed, _Refused) as problem:
        raise invalid(str(problem)) from problem
    if problems:
        raise invalid(problems[0])
    return msgspec.convert({**_zeros(shape), **members}, shape)


def invalid(text: str) -> ApiError:
    """400/10025."""
    return api_error("JSInvalidJSONErr", err=text)


def _values(payload: bytes, plain: bool) -> list[bytes]:
    try:
        payload.decode()
    except UnicodeDecodeError:
        payload = payload.decode("utf-8", "replace").encode()
    if b"\\u" in payload:
        payload = _ESCAPES.sub(_whole_characters, payload)
    try:
        return [_RAW.decode(payload)]
    except (msgspec.DecodeError, RecursionError) as problem:
        if len(payload) > EXPLAINED_BYTES_MAX:  # who searches for the place takes long for it
            raise Malformed(str(problem)) from problem
    return one_value(payload) if plain else split_values(payload)


def _whole_characters(escape: re.Match[bytes]) -> bytes:
    """Half of a pair of surrogates stands for a character that is not known, as in the real server."""
    return rb"\ufffd" if escape["half"] else escape[0]


class _Walk:
    """Turns raw JSON into what `msgspec.convert` takes, along a shape; notes what does not fit."""

    def __init__(self, problems: list[str], strict: bool) -> None:
        self._problems, self._strict = problems, strict

    def struct(self, raw: msgspec.Raw, shape: type[msgspec.Struct], go: str, path: str) -> Any:
        kind = _kind(raw)
        if kind == "null" and path:
            return _ABSENT
        if kind == "null":
            raw = msgspec.Raw(b"{}")
        elif kind != "object":
            place = (
                f"Go value of type server.{go}" if not path else f"Go struct field {path} of type server.{go}"
            )
            self._problems.append(f"json: cannot unmarshal {kind} into {place}")
            return _ABSENT if path else None
        by_name = _fields(shape)
        found: dict[str, Any] = {}
        embedded, own = _EMBEDDED.get(shape.__name__, ("", frozenset[str]()))
        outside = path.partition(".")[2] if path else embedded
        for key, value in _RAW_OBJECT.decode(raw).items():
            field = by_name.get(key) or by_name.get(key.lower())
            if field is None:
                if self._strict:
                    self._problems.append(f"json: unknown field {_text(key)}")
                continue
            middle = "" if field.name in own else outside
            read = self.value(value, field.type, field.name, ".".join(filter(None, (go, middle, field.name))))
            if read is not _ABSENT:
                found[field.name] = read
        return {**_zeros(shape), **found} if path else found

    def value(self, raw: msgspec.Raw, wanted: inspect.Type, name: str, path: str) -> Any:
        if name in _WORDS:
            return _WORDS[name](raw, path, self._problems)
        if isinstance(wanted, inspect.UnionType):
            wanted = next(each for each in wanted.types if not isinstance(each, inspect.NoneType))
        if isinstance(wanted, inspect.StructType):
            return self.struct(raw, wanted.cls, _go_name(wanted.cls), path)
        if isinstance(wanted, inspect.RawType):
            return raw
        kind = _kind(raw)
        if kind == "null":
            return _ABSENT
        if name.endswith(("_time", "_until", "_ts")):
            return _time(raw, kind)
        if isinstance(wanted, inspect.VarTupleType):
            return self.array(raw, kind, wanted.item_type, name, path)
        if isinstance(wanted, inspect.DictType):
            return self.mapping(raw, kind, path)
        if isinstance(wanted, inspect.IntType):
            return self.whole(raw, kind, name, path)
        expected = "bool" if isinstance(wanted, inspect.BoolType) else "string"
        if kind != expected:
            return self._mismatch(kind, path, expected)
        return msgspec.json.decode(raw)

    def array(self, raw: msgspec.Raw, kind: str, item: inspect.Type, name: str, path: str) -> Any:
        if kind != "array":
            inner = _width(name, path) if isinstance(item, inspect.IntType) else "string"
            return self._mismatch(kind, path, _LISTS.get(name, f"[]{inner}"))
        if isinstance(item, inspect.StrType):
            try:
                return _STRINGS.decode(raw)
            except msgspec.DecodeError:  # nulls, or something that is no text: one by one
                pass
        items = _RAW_ARRAY.decode(raw)
        if len(items) > ITEMS_MAX:
            raise _Refused(f"{path} has {len(items)} items, the maximum allowed is {ITEMS_MAX}")
        read = [self.value(each, item, name, path) for each in items]
        empty: Any = 0 if isinstance(item, inspect.IntType) else ""
        if isinstance(item, inspect.StructType):
            empty = _zeros(item.cls)
        return [empty if each is _ABSENT else each for each in read]

    def mapping(self, raw: msgspec.Raw, kind: str, path: str) -> Any:
        if kind != "object":
            return self._mismatch(kind, path, "map[string]string")
        try:
            return _TEXTS.decode(raw)
        except msgspec.DecodeError:  # nulls, or something that is no text: one by one
            pass
        found: dict[str, str] = {}
        for key, each in _RAW_OBJECT.decode(raw).items():
            kind = _kind(each)
            if kind not in ("string", "null"):
                self._mismatch(kind, path, "string")
            else:
                found[key] = msgspec.json.decode(each) or ""
        return found

    def whole(self, raw: msgspec.Raw, kind: str, name: str, path: str) -> Any:
        width = _width(name, path)
        if kind != "number":
            return self._mismatch(kind, path, width)
        text = bytes(raw)
        low, high = _RANGES[width]
        if _INT.fullmatch(text) is None or len(text) > 20 or not low <= int(text) <= high:
            return self._mismatch(f"number {text.decode()}", path, width)
        return int(text)

    def _mismatch(self, kind: str, path: str, wanted: str) -> Any:
        self._problems.append(f"json: cannot unmarshal {kind} into Go struct field {path} of type {wanted}")
        return _ABSENT


# The real server's names of the structures, as its error texts show them; other requests are "JSApi…".
_GO_NAMES = {
    "Source": "StreamSource",
    "External": "ExternalStream",
    "SubjectTransform": "SubjectTransformConfig",
    "Republish": "RePublish",
    "ConsumerLimits": "StreamConsumerLimits",
    "SourceConsumer": "StreamConsumerSource",
    "StreamConfigRequest": "StreamConfigRequest",
    "CreateConsumerRequest": "CreateConsumerRequest",
}
# Structures that embed another one: its name stands in the path of all fields but the own ones.
_EMBEDDED = {
    "StreamConfigRequest": ("StreamConfig", frozenset({"pedantic"})),
    "StreamNamesRequest": ("ApiPagedRequest", frozenset({"subject"})),
    "StreamListRequest": ("ApiPagedRequest", frozenset({"subject"})),
    "StreamInfoRequest": ("ApiPagedRequest", frozenset({"deleted_details", "subjects_filter"})),
    "ConsumersRequest": ("ApiPagedRequest", frozenset[str]()),
}
_NOT_IN_REQUESTS = frozenset({"template_owner"})


def _go_name(shape: type[msgspec.Struct]) -> str:
    name = shape.__name__
    return _GO_NAMES.get(name, f"JSApi{name}" if name.endswith("Request") else name)


def _width(name: str, path: str) -> str:
    of_stream = not {"StreamConfigRequest", "StreamConfig"}.isdisjoint(path.split("."))
    return _WIDTHS.get(name, "int64" if name in _WIDE and of_stream else "int")


@cache
def _fields(shape: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(shape)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields if field.name not in _NOT_IN_REQUESTS}


def _zeros(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Fields that a struct of ours requires (texts, all of them) and that a request may leave out."""
    return {name: "" for name, field in _fields(shape).items() if field.required}


def _kind(raw: msgspec.Raw) -> str:
    first = bytes(raw)[:1]
    names = {b'"': "string", b"{": "object", b"[": "array", b"t": "bool", b"f": "bool", b"n": "null"}
    return names.get(first, "number")


def _text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _time(raw: msgspec.Raw, kind: str) -> str:
    if kind != "string":
        raise _Refused("Time.UnmarshalJSON: input is not a JSON string")
    text: str = msgspec.json.decode(raw)
    try:
        if "T" not in text and "t" not in text:
            raise BadInput(text)
        parse_time_ns(text)
    except ValueError as problem:
        raise _Refused(f'parsing time "{text}" as {_LAYOUT}: cannot parse "{text}" as "2006"') from problem
    return text


def _policy(*words: str, also: dict[str, str] | None = None) -> Callable[[msgspec.Raw, str, list[str]], str]:
    known = {f'"{word}"'.encode(): word for word in words}
    known |= {f'"{word}"'.encode(): meaning for word, meaning in (also or {}).items()}

    def read(raw: msgspec.Raw, path: str, problems: list[str]) -> str:
        text = bytes(raw)
        if text not in known:
            raise _Refused(f"can not unmarshal {_text(text.decode())}")
        return known[text]

    return read


def _compression(raw: msgspec.Raw, path: str, problems: list[str]) -> Any:
    kind = _kind(raw)
    if kind in ("string", "null"):
        if bytes(raw) in (b'"none"', b'"s2"'):
            return msgspec.json.decode(raw)
        raise _Refused("unknown compression algorithm")
    problems.append(f"json: cannot unmarshal {kind} into Go struct field {path} of type string")
    return _ABSENT


def _named(label: str, *words: str) -> Callable[[msgspec.Raw, str, list[str]], str]:
    known = {f'"{word}"'.encode(): word for word in words}

    def read(raw: msgspec.Raw, path: str, problems: list[str]) -> str:
        text = bytes(raw)
        if text not in known:
            raise _Refused(f"unknown {label}: {text.decode()}")
        return known[text]

    return read


_WORDS: dict[str, Callable[[msgspec.Raw, str, list[str]], Any]] = {
    "retention": _policy("limits", "interest", "workqueue"),
    "discard": _policy("old", "new"),
    "storage": _policy("file", "memory"),
    "persist_mode": _policy("", "default", "async"),
    "compression": _compression,
    "ack_policy": _policy("none", "all", "explicit", "flow_control"),
    "deliver_policy": _policy(
        "all",
        "last",
        "new",
        "by_start_sequence",
        "by_start_time",
        "last_per_subject",
        also={"undefined": "all"},
    ),
    "replay_policy": _policy("instant", "original"),
    "priority_policy": _named("priority policy", "none", "overflow", "pinned_client", "prioritized"),
    "action": _named("consumer action", "", "create", "update"),
}
