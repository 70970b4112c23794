"""Logs by name, topic and pattern."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.layouts.base import Volume
from headrace.layouts.registry import log_names_of


def chosen(volume: Volume, patterns: Sequence[str], kind: str = "log") -> list[str]:
    """Those that are meant; without patterns all but the broker's own. NotFound for a plain name that is not there."""
    return log_names_of(volume.origin).choose(volume.logs(), patterns, path=volume.path, kind=kind)
