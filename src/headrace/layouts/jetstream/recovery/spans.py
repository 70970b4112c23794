"""Ranges of sequences, half-open, as findings and indexes name them."""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
"""Sequences `[first, next)`."""
_SHOWN_MAX = 3


def without(spans: Iterable[Range], cuts: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges (in order, none in another) minus ranges (in any order, perhaps overlapping). Never counts one by one:
    an index may claim any number of sequences."""
    left: list[Range] = []
    ordered, at = sorted(cuts), 0
    for first, after in spans:
        while at < len(ordered) and ordered[at][1] <= first:
            at += 1
        scan_at = at
        while first < after and scan_at < len(ordered) and ordered[scan_at][0] < after:
            begin, end = ordered[scan_at]
            if begin > first:
                left.append((first, begin))
            first = max(first, end)
            scan_at += 1
        if first < after:
            left.append((first, after))
    return tuple(left)


def count(spans: Iterable[Range]) -> int:
    """How many sequences."""
    return sum(after - first for first, after in spans)


def shown(spans: tuple[Range, ...]) -> str:
    """For people: `3, 5..9 and 2 more ranges`."""
    texts = [
        str(first) if after == first + 1 else f"{first}..{after - 1}" for first, after in spans[:_SHOWN_MAX]
    ]
    more = f" and {len(spans) - _SHOWN_MAX} more ranges" if len(spans) > _SHOWN_MAX else ""
    return ", ".join(texts) + more
