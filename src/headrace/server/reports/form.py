"""How nats-server writes durations, and how a request's values are read from a query or from JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import BadInput
from headrace.units import format_time_ns

LIMIT_DEFAULT = 1024
LIMIT_MAX = 100_000
UNLIMITED_U64 = (1 << 64) - 1  # how nats-server shows "no limit" where it counts without a sign
_TRUE = {"1", "true", "yes", "on", "t"}


def now() -> str:
    return format_time_ns(time.time_ns())


def uptime(since_ns: int, until_ns: int) -> str:
    """`1y2d3h4m5s`, without leading zeros' units."""
    seconds = max(until_ns - since_ns, 0) // 1_000_000_000
    minutes, s = divmod(seconds, 60)
    hours, m = divmod(minutes, 60)
    all_days, h = divmod(hours, 24)
    years, d = divmod(all_days, 365)
    shown = [(years, "y"), (d, "d"), (h, "h"), (m, "m"), (s, "s")]
    first = next((at for at, (count, _) in enumerate(shown) if count), len(shown) - 1)
    return "".join(f"{count}{unit}" for count, unit in shown[first:])


def short_duration(ns: int) -> str:
    """As Go prints it: 473µs, 1.25ms, 2s."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            return f"{ns / size:.9f}".rstrip("0").rstrip(".") + unit
    return f"{ns}ns"


class QueryParams:
    """The values of one request: a query string's (texts) or a JSON body's (their own types)."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = values or {}

    def text(self, *names: str) -> str:
        for name in names:
            value = self._values.get(name)
            if value not in (None, ""):
                return str(value)
        return ""

    def flag(self, *names: str) -> bool:
        return any(
            value is True or (isinstance(value, str) and value.lower() in _TRUE)
            for value in map(self._values.get, names)
        )

    def number(self, name: str, default: int, high: int) -> int:
        value = self._values.get(name, default)
        if isinstance(value, str):
            if not value.lstrip("-").isdecimal() or len(value) > 20:
                raise BadInput(f"Error decoding int for '{name}': {value!r} is not a number")
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(f"Error decoding int for '{name}': {value!r} is not a number")
        return min(max(value, 0), high)

    def page(self) -> tuple[int, int]:
        """(offset, limit)"""
        offset, limit = self.number("offset", 0, 1 << 62), self.number("limit", 0, LIMIT_MAX)
        return offset, limit or LIMIT_DEFAULT
