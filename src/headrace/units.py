"""Sizes, durations and times: one way to read and to print each."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headrace.errors import BadInput

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_CYCLE_S = 146_097 * 86_400  # 400 years
_YEAR_1_S, _YEAR_9999_S = -62_135_596_800, 253_402_300_799
_RFC3339 = re.compile(r"^(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?\s*([Zz]|[+-]\d\d:?\d\d)?$")


def parse_size(text: str) -> int:
    """`512`, `64kb`, `8MiB`, `1.5GB` → bytes. `kb` and `KiB` both mean 1024, as nats-server's."""
    match = _SIZE.match(text)
    if match is None:
        raise BadInput(f"{text!r} is not a size; write 512, 64KB, 8MiB or 2GB")
    number, unit, _ = match.groups()
    return int(float(number) * 1024 ** _POWER[unit.lower()])


def format_size(count: int) -> str:
    """Bytes for people: 1.4 MiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def parse_duration_ns(text: str) -> int:
    """`90s`, `1h30m`, `250ms`, `2d` → nanoseconds."""
    parts = _DURATION_PART.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise BadInput(f"{text!r} is not a duration; write 90s, 1h30m, 250ms or 2d")
    return sum(int(float(number) * _NS[unit]) for number, unit in parts)


def parse_time_ns(text: str) -> int:
    """RFC 3339 (date alone allowed) → nanoseconds since 1970; without a zone it is UTC."""
    candidate = text.strip()
    if re.fullmatch(r"\d{4}-\d\d-\d\d", candidate):
        candidate += "T00:00:00Z"
    match = _RFC3339.match(candidate)
    if match is None:
        raise BadInput(f"{text!r} is not a time; write 2026-11-15T18:23:36.5Z")
    day, clock, fraction, zone = match.groups()
    if day.startswith("0000"):  # a year that Python does not have: the calendar is the same 400 years later
        later = parse_time_ns(f"0400{candidate[4:]}")
        return later - _CYCLE_S * _NS["s"]
    moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in (None, 'Z', 'z') else zone}")
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def clamp_time_ns(time_ns: int) -> int:
    """A moment that fits into 64 bits, as messages carry theirs: years 1677 to 2262, and the ends for all others."""
    return min(max(time_ns, -(1 << 63)), (1 << 63) - 1)


def format_time_ns(time_ns: int | None) -> str:
    """RFC 3339 UTC as nats-server prints it: up to nine digits, trailing zeros dropped.

    `None` is "no time": 0001-01-01T00:00:00Z. Years are 0 to 9999.
    """
    if time_ns is None:
        return "0001-01-01T00:00:00Z"
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    if seconds < _YEAR_1_S:
        shifted = max(seconds, _YEAR_1_S - 366 * 86_400) + _CYCLE_S
        return f"0000{format_time_ns(shifted * _NS['s'] + nanos)[4:]}"
    if seconds > _YEAR_9999_S:
        seconds, nanos = _YEAR_9999_S, 999_999_999
    moment = datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{moment}{fraction}Z"


def plural(count: int, word: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
