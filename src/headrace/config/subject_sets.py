"""Sets of subjects: what a stream needs to take, and which streams cannot be beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.config.names import subjects_overlap
from headrace.errors import BadInput

SUBJECTS_LISTED_MAX = 256


def subjects_in_use(subjects: Iterable[str]) -> tuple[str, ...]:
    """What a stream with messages on these subjects takes: all of them, or patterns where they are many."""
    found = sorted(subjects)
    if len(found) > SUBJECTS_LISTED_MAX:
        found = sorted({f"{subject.partition('.')[0]}.>" for subject in found if "." in subject}) + sorted(
            subject for subject in found if "." not in subject
        )
    if len(found) > SUBJECTS_LISTED_MAX:
        found = ["*", "*.>"]  # `>` would need a stream that acknowledges nothing
    return tuple(found)


def refuse_overlaps(streams: Mapping[str, tuple[str, ...]]) -> None:
    """As a server does when the second one is made; accounts know nothing of each other."""
    literal: dict[tuple[str, str], str] = {}
    patterns: list[tuple[tuple[str, str], str]] = []
    for name, subjects in streams.items():
        account = name.rpartition("/")[0]
        for subject in subjects:
            if {"*", ">"}.isdisjoint(subject.split(".")):
                other = literal.setdefault((account, subject), name)
                if other != name:
                    raise _overlap(other, name, subject)
            else:
                patterns.append(((account, subject), name))
    every = [*patterns, *literal.items()]
    for (account, pattern), name in patterns:
        for (place, subject), other in every:
            if other != name and place == account and subjects_overlap(pattern, subject):
                raise _overlap(name, other, pattern if pattern == subject else f"{pattern} and {subject}")


def _overlap(one: str, other: str, subject: str) -> BadInput:
    return BadInput(
        f"streams {one} and {other} would both take {subject}: subjects overlap, and a server refuses the second. Give each its "
        "own (--subject '{topic}.{partition}', '{queue}.{subject}'), or join them (--map)"
    )
