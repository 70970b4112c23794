"""Results as plain data: dataclasses to dicts, times beside their nanoseconds, nothing that JSON cannot say."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from headrace.units import format_time_ns

HIDDEN = frozenset({"last_hash", "gaps", "absent", "deleted"})
"""Long or of use to programs here only; counts of them are shown."""


def plain(value: Any) -> Any:
    """Dicts, lists, texts and numbers. A field `x_time_ns` also gives `x_time` as RFC 3339."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for field in fields(value):
            if field.name in HIDDEN:
                continue
            content = getattr(value, field.name)
            found[field.name] = plain(content)
            if field.name.endswith("_ns") and (content is None or isinstance(content, int)):
                found[field.name.removesuffix("_ns")] = None if content is None else format_time_ns(content)
        return found
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
