"""Logs by name, topic and pattern."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.layouts.base import Volume
from headrace.layouts.log_names import choose_logs


def chosen(volume: Volume, patterns: Sequence[str], kind: str = "log") -> list[str]:
    """Those that are asked for; without patterns all but the broker's own. NotFound for a plain name that is not there."""
    return choose_logs(volume.origin, volume.logs(), patterns, path=volume.path, kind=kind)
