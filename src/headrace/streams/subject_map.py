"""Subject transforms, checked and applied as nats-server 2.15.2 does: `orders.*.*` to `shard.{{partition(3,1)}}.$2`.

    shift = compile_map("orders.*", "o.{{wildcard(1)}}")
    shift.apply("orders.7")     "o.7"
    shift.apply("other")        None: it does not match

A destination is a list of parts, made once: fixed tokens, and functions of the subject's tokens. `$1` is short for
`{{wildcard(1)}}`. What cannot be compiled raises BadTransform with the real server's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.randomness import sample_below
from headrace.streams.subjects import is_subject, matches

_CALL = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}")
_DOLLAR = re.compile(r"\$(-?\d+)")
_NUMBER = re.compile(r"[+-]?\d+")
_FNV_START, _FNV_STEP, _WORD = 2_166_136_261, 16_777_619, 0xFFFFFFFF

Tokens = Sequence[str]
Part = Callable[[Tokens, str], str]


class BadTransform(ValueError):
    """Source and destination do not make a transform. `place` is where: "source" or "destination"."""

    def __init__(self, place: str, text: str) -> None:
        self.place = place
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class SubjectMap:
    """A compiled transform."""

    source: str
    parts: tuple[Part, ...]

    def apply(self, subject: str) -> str | None:
        """The new subject; None if the source does not match."""
        if not matches(self.source, subject):
            return None
        if not self.parts:
            return subject
        tokens = subject.split(".")
        return ".".join(part(tokens, subject) for part in self.parts)


def compile_map(source: str, destination: str) -> SubjectMap:
    """Check and compile. An empty source is `>`, an empty destination changes nothing."""
    source = source or ">"
    if not is_subject(source):
        raise BadTransform("source", f"invalid subject {source}")
    if not destination:
        return SubjectMap(source, ())
    wildcards = [at for at, token in enumerate(source.split(".")) if token == "*"]
    _check_shape(destination)
    parts = tuple(_part(token, wildcards, source) for token in destination.split("."))
    tail = destination.rpartition(".")[2] == ">"
    if tail != (source.rpartition(".")[2] == ">") or "*" in destination.split("."):
        raise BadTransform("destination", "invalid subject")
    return SubjectMap(source, parts)


def _check_shape(destination: str) -> None:
    tokens = destination.split(".")
    plain = [token for token in tokens if not token.startswith("{{")]
    if "" in tokens or any(c in token for token in plain for c in " \t\r\n\f"):
        raise _bad("invalid transform")
    if ">" in tokens[:-1]:
        raise _bad(f"invalid transform in {tokens[tokens.index('>') + 1]}")


def _bad(text: str) -> BadTransform:
    return BadTransform("destination", f"invalid mapping destination: {text}")


def _part(token: str, wildcards: list[int], source: str) -> Part:
    if token == ">":
        fixed = len(source.split(".")) - 1
        return lambda tokens, subject: ".".join(tokens[fixed:])
    short = _DOLLAR.fullmatch(token)
    if short is not None:
        return _token(_position(int(short[1]), wildcards, token))
    call = _CALL.fullmatch(token)
    if call is not None:
        name = call[1][0].lower() + call[1][1:]
        if name in _FUNCTIONS:
            arguments = [each.strip() for each in call[2].split(",")]
            return _FUNCTIONS[name](arguments, wildcards, token)
    if token.startswith("{{") and token.endswith("}}") and len(token) > 4:
        raise _bad(f"unknown function in {token}")
    return lambda tokens, subject: token


def _position(index: int, wildcards: list[int], token: str) -> int:
    """Where the wildcard of that number stands in the source; what is below 1 means the first token."""
    if index > len(wildcards):
        shown = f": [{index}]" if wildcards or token.startswith("{{") else ""
        raise _bad(f"wildcard index out of range in {token}{shown}")
    return wildcards[index - 1] if index > 0 else 0


def _number(text: str, token: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise _bad(f"function argument is invalid or in the wrong format in {token}")
    return int(text)


def _expect(arguments: list[str], count: int, token: str) -> None:
    given = 0 if arguments == [""] else len(arguments)
    if given != count:
        many = "too many" if given > count else "not enough"
        raise _bad(f"{many} arguments passed to the function in {token}")


def _token(position: int) -> Part:
    return lambda tokens, subject: tokens[position]


def _wildcard(arguments: list[str], wildcards: list[int], token: str) -> Part:
    _expect(arguments, 1, token)
    return _token(_position(_number(arguments[0], token), wildcards, token))


def _partition(arguments: list[str], wildcards: list[int], token: str) -> Part:
    count, *indexes = (_number(each, token) for each in arguments)
    count &= _WORD
    positions = [_position(index, wildcards, token) for index in indexes]

    def choose(tokens: Tokens, subject: str) -> str:
        key = "".join(tokens[at] for at in positions) if positions else subject
        return str(_fnv1a(key.encode()) % count) if count else "0"

    return choose


def _random(arguments: list[str], wildcards: list[int], token: str) -> Part:
    if len(arguments) != 1:
        raise _bad(f"not enough arguments passed to the function in {token}")
    count = _number(arguments[0], token)
    return lambda tokens, subject: str(sample_below(count)) if count > 0 else "0"


def _split(arguments: list[str], wildcards: list[int], token: str) -> Part:
    _expect(arguments, 2, token)
    position, mark = _position(_number(arguments[0], token), wildcards, token), arguments[1]

    def cut(tokens: Tokens, subject: str) -> str:
        pieces = tokens[position].split(mark) if mark else list(tokens[position])
        return ".".join(piece for piece in pieces if piece)

    return cut


def _by_length(cut: Callable[[str, int], str]) -> Callable[[list[str], list[int], str], Part]:
    """A function of a token and a length; a length that does not fit leaves the token as it is."""

    def make(arguments: list[str], wildcards: list[int], token: str) -> Part:
        _expect(arguments, 2, token)
        position = _position(_number(arguments[0], token), wildcards, token)
        length = _number(arguments[1], token)

        def part(tokens: Tokens, subject: str) -> str:
            text = tokens[position]
            return cut(text, length) if 0 < length < len(text) else text

        return part

    return make


def _slices(text: str, first: int, length: int) -> str:
    head = [text[:first]] if first else []
    return ".".join([*head, *(text[at : at + length] for at in range(first, len(text), length))])


def _fnv1a(data: bytes) -> int:
    found = _FNV_START
    for each in data:
        found = (found ^ each) * _FNV_STEP & _WORD
    return found


_split_left = _by_length(lambda text, length: f"{text[:length]}.{text[length:]}")
_split_right = _by_length(lambda text, length: f"{text[:-length]}.{text[-length:]}")
_slice_left = _by_length(lambda text, length: _slices(text, 0, length))
_slice_right = _by_length(lambda text, length: _slices(text, len(text) % length, length))
_FUNCTIONS: dict[str, Callable[[list[str], list[int], str], Part]] = {
    "wildcard": _wildcard,
    "partition": _partition,
    "random": _random,
    "split": _split,
    **dict.fromkeys(("splitFromLeft", "splitfromleft"), _split_left),
    **dict.fromkeys(("splitFromRight", "splitfromright"), _split_right),
    **dict.fromkeys(("sliceFromLeft", "slicefromleft"), _slice_left),
    **dict.fromkeys(("sliceFromRight", "slicefromright"), _slice_right),
    "left": _by_length(lambda text, length: text[:length]),
    "right": _by_length(lambda text, length: text[-length:]),
}
