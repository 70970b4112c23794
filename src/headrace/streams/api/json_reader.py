"""Requests read with the tolerance of the real server.

Tolerant: a key's case does not matter, `null` is "not given", the last of two equal keys counts, several values after
each other are read as one. Strict: an unknown key, a fraction, a number out of range, a word that is none of a
policy's. What is refused is 400/10025, as there; the text is ours and names the field.

The shapes are the msgspec structs of `types.py` and of the configurations; this module walks them, and knows by
itself only the fields of the tables below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from headrace.errors import BadInput
from headrace.streams.errors import ApiError, api_error
from headrace.units import parse_time_ns

SEVERAL_VALUES_BYTES_MAX = 16 << 10
"""Of a text with several values: each costs a walk, so a long text of short ones would hold up the loop."""
ITEMS_MAX = 1000
"""Of a list whose items are looked at one by one: sources, transforms, waits; not texts."""
_SHOWN_MAX = 40
_INT64 = (-(1 << 63), (1 << 63) - 1)
_RANGES = {"max_msg_size": (-(1 << 31), (1 << 31) - 1)} | dict.fromkeys(
    ("first_seq", "opt_start_seq", "rate_limit_bps", "seq", "keep", "up_to_seq", "below"), (0, (1 << 64) - 1)
)
_TIMES = ("_time", "_until", "_ts")
# Where a request may say another word than the configuration keeps, or not say one that it keeps.
_MORE_WORDS = {"deliver_policy": {"undefined": "all"}}
_FEWER_WORDS = {"priority_policy": frozenset({""})}
_NOT_IN_REQUESTS = frozenset({"template_owner"})

_T = TypeVar("_T", bound=msgspec.Struct)
_INT = re.compile(rb"-?(0|[1-9][0-9]{0,19})")
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_SPACE = re.compile(r"[ \t\r\n]*")
_SPLITTER = json.JSONDecoder()
_RAW = msgspec.json.Decoder(msgspec.Raw)
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_BOOL = msgspec.json.Decoder(bool)
_TEXT_ARRAY = msgspec.json.Decoder(list[str])
_TEXT_OBJECT = msgspec.json.Decoder(dict[str, str])
_EMPTY_OBJECT = msgspec.Raw(b"{}")
_ABSENT = object()


class _Invalid(Exception):
    """Why a text is no such request."""


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

    `plain` is for the few endpoints that read exactly one value; without `strict` unknown keys are passed over.
    """
    reader = _Reader(strict)
    members = _zeros(shape)
    try:
        for value in _values(payload, plain):
            members |= reader.members(_EMPTY_OBJECT if _is_null(value) else value, shape, "request")
    except _Invalid as problem:
        raise invalid(str(problem)) from problem
    except RecursionError as problem:
        raise invalid("nested too deeply") from problem
    return msgspec.convert(members, shape)


def invalid(text: str) -> ApiError:
    """400/10025."""
    return api_error("JSInvalidJSONErr", err=text)


def _values(payload: bytes, plain: bool) -> list[msgspec.Raw]:
    try:
        payload.decode()
    except UnicodeDecodeError:
        payload = payload.decode("utf-8", "replace").encode()
    if b"\\u" in payload:
        payload = _ESCAPES.sub(_whole_characters, payload)
    try:
        return [_RAW.decode(payload)]
    except msgspec.DecodeError as problem:
        if not plain and len(payload) <= SEVERAL_VALUES_BYTES_MAX:
            try:
                return list(_split(payload.decode()))
            except ValueError:  # not several values: the first complaint is the better one
                pass
        raise _Invalid(str(problem).removeprefix("JSON is malformed: ")) from problem


def _split(text: str) -> Iterator[msgspec.Raw]:
    """The values of the text. The splitter takes more than JSON allows, so each is decoded once more."""
    at = _end_of_space(text, 0)
    while at < len(text):
        _, end = _SPLITTER.raw_decode(text, at)
        yield _RAW.decode(text[at:end])
        at = _end_of_space(text, end)


def _end_of_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _whole_characters(escape: re.Match[bytes]) -> bytes:
    """Half of a pair of surrogates stands for a character that is not known, as in the real server."""
    return rb"\ufffd" if escape["half"] else escape[0]


class _Reader:
    """Turns raw JSON into what `msgspec.convert` takes, along a shape. `place` names a value in errors."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def members(self, raw: msgspec.Raw, shape: type[msgspec.Struct], place: str) -> dict[str, Any]:
        """The fields that are given."""
        try:
            items = _RAW_OBJECT.decode(raw).items()
        except msgspec.DecodeError as problem:
            raise _unexpected(raw, place, "an object") from problem
        by_name, found = _fields(shape), dict[str, Any]()
        for key, value in items:
            field = by_name.get(key) or by_name.get(key.lower())
            if field is not None:
                read = self.value(value, field.type, field.name, field.name)
                if read is not _ABSENT:
                    found[field.name] = read
            elif self._strict:
                raise _Invalid(f"{place} has an unknown field {_clipped(msgspec.json.encode(key))}")
        return found

    def value(self, raw: msgspec.Raw, wanted: inspect.Type, name: str, place: str) -> Any:
        if isinstance(wanted, inspect.LiteralType):
            return _word(raw, wanted, name)
        if isinstance(wanted, inspect.RawType):
            return raw
        if _is_null(raw):
            return _ABSENT
        match wanted:
            case inspect.UnionType():  # with None: that is `null`, which was seen above
                inner = next(each for each in wanted.types if not isinstance(each, inspect.NoneType))
                return self.value(raw, inner, name, place)
            case inspect.StructType():
                return _zeros(wanted.cls) | self.members(raw, wanted.cls, place)
            case inspect.VarTupleType():
                return self.array(raw, wanted.item_type, name)
            case inspect.DictType():
                return _texts(raw, name)
            case inspect.IntType():
                return _whole(raw, name, place)
            case inspect.BoolType():
                return _scalar(_BOOL, raw, place, "true or false")
            case _:
                return _time(raw, name) if name.endswith(_TIMES) else _scalar(_TEXT, raw, place, "a string")

    def array(self, raw: msgspec.Raw, item: inspect.Type, name: str) -> list[Any]:
        if isinstance(item, inspect.StrType):
            try:
                return _TEXT_ARRAY.decode(raw)
            except msgspec.DecodeError:  # nulls, or something that is no text: one by one
                pass
        try:
            items = _RAW_ARRAY.decode(raw)
        except msgspec.DecodeError as problem:
            raise _unexpected(raw, name, "an array") from problem
        if len(items) > ITEMS_MAX:
            raise _Invalid(f"{name} has {len(items)} items, the maximum is {ITEMS_MAX}")
        read = [self.value(each, item, name, f"{name}[{number}]") for number, each in enumerate(items)]
        return [_zero(item) if each is _ABSENT else each for each in read]


@cache
def _fields(shape: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(shape)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields if field.name not in _NOT_IN_REQUESTS}


def _zeros(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Fields that a struct of ours requires (texts, all of them) and that a request may leave out."""
    return {name: "" for name, field in _fields(shape).items() if field.required}


def _zero(wanted: inspect.Type) -> Any:
    if isinstance(wanted, inspect.StructType):
        return _zeros(wanted.cls)
    return 0 if isinstance(wanted, inspect.IntType) else ""


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"


def _scalar(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw, place: str, wanted: str) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as problem:
        raise _unexpected(raw, place, wanted) from problem


def _whole(raw: msgspec.Raw, name: str, place: str) -> int:
    text = bytes(raw)
    if _INT.fullmatch(text) is None:
        raise _unexpected(raw, place, "a whole number")
    low, high = _RANGES.get(name, _INT64)
    if not low <= int(text) <= high:
        raise _unexpected(raw, place, f"a number from {low} to {high}")
    return int(text)


def _texts(raw: msgspec.Raw, place: str) -> dict[str, str]:
    try:
        return _TEXT_OBJECT.decode(raw)
    except msgspec.DecodeError:  # nulls, or something that is no text: one by one
        pass
    try:
        items = _RAW_OBJECT.decode(raw).items()
    except msgspec.DecodeError as problem:
        raise _unexpected(raw, place, "an object") from problem
    return {
        key: "" if _is_null(each) else _scalar(_TEXT, each, f"a value of {place}", "a string")
        for key, each in items
    }


def _time(raw: msgspec.Raw, place: str) -> str:
    text: str = _scalar(_TEXT, raw, place, "a time")
    try:
        if "T" not in text.upper():
            raise BadInput(text)
        parse_time_ns(text)
    except ValueError as problem:
        raise _unexpected(raw, place, "a time such as 2006-01-02T15:04:05Z") from problem
    return text


def _word(raw: msgspec.Raw, wanted: inspect.LiteralType, name: str) -> Any:
    known = _words(name, wanted.values)
    if bytes(raw) not in known:
        raise _unexpected(raw, name, f"one of {', '.join(word.decode() for word in known)}")
    return known[bytes(raw)]


@cache
def _words(name: str, kept: tuple[Any, ...]) -> dict[bytes, Any]:
    """By the JSON of a word what it means."""
    words = {word: word for word in kept if word not in _FEWER_WORDS.get(name, ())} | _MORE_WORDS.get(
        name, {}
    )
    return {f'"{word}"'.encode(): meaning for word, meaning in words.items()}


def _unexpected(raw: msgspec.Raw, place: str, wanted: str) -> _Invalid:
    text = bytes(raw)
    # The text of a container may hold line ends, and an error may become a header line.
    seen = {b"{": "an object", b"[": "an array"}.get(text[:1]) or _clipped(text)
    return _Invalid(f"{place}: expected {wanted}, got {seen}")


def _clipped(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
