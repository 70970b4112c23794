r"""Which names and subjects are allowed.

A stream's or consumer's name becomes the name of a directory and the text of hash keys. It is checked
here before any path is built from it: 1 to 255 bytes of UTF-8, none of space tab . * > / \, no control
characters. So "..", "a/b" or a name with a line break never reaches the disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core import first_overlapping_pair, subject_filter_valid
from headrace.errors import BadInput

__all__ = ["check_name", "check_no_overlap", "check_subject", "first_overlapping_pair", "subjects_overlap"]

NAME_BYTES_MAX = 255
SUBJECT_BYTES_MAX = 0xFFFF  # the record has two bytes for its length
_NOT_IN_NAMES = frozenset(" \t.*>/\\")
_NOT_IN_SUBJECTS = frozenset(" \t\r\n\f\0")


def check_name(kind: str, name: str) -> None:
    """Raise BadInput unless `name` can be a stream's or consumer's (`kind`) name."""
    rule = f"{kind} name is required and can not contain '.', '*', '>', '\\', '/'"
    if not name:
        raise BadInput(rule)
    bad = next((c for c in name if c in _NOT_IN_NAMES or _is_control(c)), None)
    if bad is not None:
        raise BadInput(f"{rule}; {name!r} has {bad!r}")
    if len(_utf8(kind, name)) > NAME_BYTES_MAX:
        raise BadInput(f"{kind} name is too long, maximum allowed is {NAME_BYTES_MAX}: {name[:40]!r}…")


def check_subject(subject: str, *, wildcards: bool = True) -> None:
    """Raise BadInput unless `subject` is well formed (and literal, without `wildcards`)."""
    if wildcards and len(subject) < SUBJECT_BYTES_MAX // 4 and subject_filter_valid(subject):
        return  # nearly all; what follows finds out why not
    tokens = subject.split(".")
    if not subject or "" in tokens:
        raise BadInput(f"invalid subject {subject!r}: empty, or with an empty token")
    if any(c in _NOT_IN_SUBJECTS for c in subject):
        raise BadInput(f"invalid subject {subject!r}: no spaces, tabs or line breaks")
    if ">" in tokens[:-1]:
        raise BadInput(f"invalid subject {subject!r}: '>' is only allowed as the last token")
    if len(_utf8("subject", subject)) > SUBJECT_BYTES_MAX:
        raise BadInput(f"invalid subject {subject[:40]!r}…: longer than {SUBJECT_BYTES_MAX} bytes")
    if not wildcards and not {"*", ">"}.isdisjoint(tokens):
        raise BadInput(f"invalid subject {subject!r}: wildcards are not allowed here")


def check_no_overlap(subjects: Sequence[str]) -> None:
    """Raise BadInput when a message could match two of the subjects."""
    pair = first_overlapping_pair(subjects)
    if pair is not None:
        earlier, later = pair
        raise BadInput(f'subject "{subjects[earlier]}" overlaps with "{subjects[later]}"')


def subjects_overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(left) == len(right)


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def _utf8(kind: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{kind} {text!r} is not valid Unicode text") from error
