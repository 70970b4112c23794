"""Subjects as the API reasons about them: well formed, literal, matching, overlapping.

Patterns against patterns, a few per request. What happens per message is the core's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.config.names import first_overlapping_pair, subjects_overlap
from headrace.errors import BadInput
from headrace.streams.errors import bad_stream

__all__ = ["is_literal", "is_subject", "matches", "overlapping_pair", "subjects_overlap", "touches"]

_SPACES = frozenset(" \t\r\n\f")


def is_subject(subject: str) -> bool:
    """Whether it can be subscribed to: no empty token, no spaces, `>` only at the end."""
    tokens = subject.split(".")
    return "" not in tokens and ">" not in tokens[:-1] and _SPACES.isdisjoint(subject)


def overlapping_pair(patterns: Sequence[str]) -> tuple[str, str] | None:
    """The first pattern that overlaps an earlier one: (the earlier one, that one)."""
    try:
        pair = first_overlapping_pair(patterns)
    except BadInput as problem:
        raise bad_stream(str(problem)) from problem
    if pair is None:
        return None
    earlier, later = pair
    return patterns[earlier], patterns[later]


def is_literal(subject: str) -> bool:
    """Whether there is no wildcard in it."""
    return {"*", ">"}.isdisjoint(subject.split("."))


def matches(pattern: str, subject: str) -> bool:
    """Whether everything that `subject` stands for is matched by `pattern`; `subject` may have wildcards itself."""
    wanted, given = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(given) > at
        if at >= len(given) or given[at] == ">":
            return False
        if token != "*" and (given[at] == "*" or token != given[at]):
            return False
    return len(given) == len(wanted)


def covers(pattern: str, other: str) -> bool:
    """Whether a pattern takes every subject that another one takes."""
    wide, narrow = pattern.split("."), other.split(".")
    for at, token in enumerate(wide):
        if token == ">":
            return len(narrow) > at
        if at >= len(narrow) or narrow[at] == ">" or token not in ("*", narrow[at]):
            return False
    return len(wide) == len(narrow)


def touches(pattern: str, subjects: Iterable[str]) -> bool:
    """Whether the pattern overlaps any of the subjects."""
    return any(subjects_overlap(pattern, each) for each in subjects)
