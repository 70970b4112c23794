"""Limits of one channel: the store's own, changed by the entries that match its name, widest first.

    >  →  *.bar  →  foo.>  →  foo.*  →  foo.bar        the last one applies; what it leaves out it has from the one before

In an entry 0 (or less) means "no limit", a missing key "as before".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import BadInput
from headrace.layouts.nats_streaming.names import check_channel
from headrace.layouts.nats_streaming.options import ALIASES, StreamingOptions, read_value


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """0 is "no limit". Durations are ns."""

    max_subs: int = 0
    max_msgs: int = 0
    max_bytes: int = 0
    max_age: int = 0
    max_inactivity: int = 0


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """When a new slice begins; 0 is "no limit"."""

    max_msgs: int = 0
    max_bytes: int = 0
    max_age: int = 0


_KEYS = tuple(field.name for field in fields(ChannelLimits))


class LimitTable:
    """All entries of the configuration, checked."""

    def __init__(self, options: StreamingOptions) -> None:
        self._base = {key: getattr(options, key) for key in _KEYS}
        self._entries = {name: _entry(name, given) for name, given in options.channels.items()}
        literal = [name for name in self._entries if not is_wild(name)]
        if options.max_channels and len(literal) > options.max_channels:
            raise BadInput(
                f"too many channels defined ({len(literal)}). "
                f"The max channels limit is set to {options.max_channels}"
            )

    def of(self, channel: str) -> ChannelLimits:
        """The limits of a channel of that name."""
        matching = self._matching(channel)
        values = self._resolved(matching[-1]) if matching else self._base
        return ChannelLimits(**{key: max(value, 0) for key, value in values.items()})

    def _matching(self, name: str) -> list[str]:
        return [
            entry
            for _, entry in sorted((_order(entry), entry) for entry in self._entries if _matches(entry, name))
        ]

    def _resolved(self, entry: str) -> dict[str, int]:
        """An entry has what it leaves out from the one before it in its own list, not in the channel's."""
        wider = [other for other in self._matching(entry) if other != entry]
        return (self._resolved(wider[-1]) if wider else self._base) | self._entries[entry]


def slice_limits(options: StreamingOptions, channel: ChannelLimits) -> SliceLimits:
    """The slices of a channel. Without any slice limit they follow from the channel's: a quarter of each."""
    given = SliceLimits(options.file_slice_max_msgs, options.file_slice_max_bytes, options.file_slice_max_age)
    if given != SliceLimits():
        return given
    return SliceLimits(
        max(channel.max_msgs // 4, 1) if channel.max_msgs else 0,
        max(channel.max_bytes // 4, 1) if channel.max_bytes else 0,
        max(channel.max_age // 4, 1_000_000_000) if channel.max_age else 0,
    )


def is_wild(name: str) -> bool:
    """Whether an entry stands for more than one channel."""
    return not {"*", ">"}.isdisjoint(name.split("."))


def _entry(name: str, given: dict[str, Any]) -> dict[str, int]:
    tokens = name.split(".")
    try:
        if ">" in tokens[:-1]:
            raise BadInput("'>' must be last")
        check_channel(".".join("x" if token in ("*", ">") else token for token in tokens))
    except BadInput:
        raise BadInput(f'invalid channel name "{name}"') from None
    found: dict[str, int] = {}
    for key, value in given.items():
        known = ALIASES.get(key, key)
        if known not in _KEYS:
            raise BadInput(f"channel {name}: no limit {key!r}; known are: {', '.join(_KEYS)}")
        number = read_value(known, value)
        if isinstance(number, str):
            if not number.strip().lstrip("-").isdecimal():
                raise BadInput(f'parameter "{key}" value is expected to be int64, got string')
            number = int(number)
        found[known] = number
    return found


def _matches(pattern: str, name: str) -> bool:
    """Whether every channel that `name` stands for is one of `pattern`'s."""
    wide, narrow = pattern.split("."), name.split(".")
    for at, token in enumerate(wide):
        if token == ">":
            return len(narrow) > at
        if at >= len(narrow) or narrow[at] == ">":
            return False
        if token != narrow[at] and token != "*":
            return False
    return len(wide) == len(narrow)


def _order(name: str) -> list[tuple[int, str]]:
    """At each level first `>`, then `*`, then the word itself."""
    return [({">": 0, "*": 1}.get(token, 2), token) for token in name.split(".")]
