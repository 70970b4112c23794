"""Logs by name and pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from headrace.errors import NotFound
from headrace.layouts.base import Volume


def chosen(volume: Volume, patterns: Sequence[str]) -> list[str]:
    """Those that are asked for, all without patterns. NotFound for a plain name that is not there."""
    names = volume.logs()
    if not patterns:
        return names
    for pattern in patterns:
        if not set(pattern) & set("*?[") and pattern not in names:
            known = ", ".join(names[:20]) or "none"
            raise NotFound(f"{volume.path}: no log {pattern!r}; there are: {known}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, each) for each in patterns)]
