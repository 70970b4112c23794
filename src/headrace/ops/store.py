"""`store open`: open a directory for writing with the options of its product, say what that did, close it again.

Options come from a file and from flags, under the product's own names; flags win. What opening changed (recovery, taken
out damage, applied limits) shows in the report, and in the directory.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace._core import Disk
from headrace.errors import BadInput
from headrace.layouts.base import Damage, Durability, LogState
from headrace.layouts.layout import OpenRequest
from headrace.layouts.places import check_path
from headrace.layouts.plain import plain
from headrace.layouts.registry import detect, layout_named

FILE_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class OpenedLog:
    """One log after opening."""

    name: str
    state: LogState


@dataclass(slots=True)
class OpenReport:
    """What opening found and did. `options` are those in effect, `changed` those that are not the default."""

    path: str
    layout: str
    product: str
    options: dict[str, Any]
    changed: dict[str, Any]
    logs: list[OpenedLog] = field(default_factory=lambda: [])
    damage: list[Damage] = field(default_factory=lambda: [])

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def open_store(
    path: str,
    *,
    layout: str | None = None,
    create: bool = False,
    durability: Durability = "sync",
    options: Mapping[str, Any] | None = None,
    key: str | None = None,
    disk: Disk | None = None,
) -> OpenReport:
    """Open for writing, look, close."""
    checked = check_path(path)
    if durability not in ("sync", "interval"):
        raise BadInput(f"durability {durability!r}; known are sync and interval")
    chosen = layout if create and layout is not None else detect(checked, disk)
    where = layout_named(chosen)
    if layout not in (None, chosen):
        raise BadInput(f"{path}: a {where.label} directory, not {layout}")
    if where.needs_server is not None:
        raise BadInput(f"{path}: {where.needs_server}")
    taken = where.options.of(options or {})
    report = OpenReport(checked, chosen, where.product, taken.spelled(), taken.changed())
    request = OpenRequest(mode="rw", create=create, durability=durability, options=taken, disk=disk, key=key)
    volume = where.open(checked, request)
    with volume:
        for name in volume.logs():
            report.logs.append(OpenedLog(name, volume.open(name).state()))
        report.damage = volume.damage()
    return report


def read_options(path: str) -> dict[str, Any]:
    """Options from a file: JSON, TOML, or lines `name = value` (`:` serves as well) with `#` comments."""
    try:
        raw = Path(path).read_bytes()
        text = raw.decode()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: byte {error.start} is not UTF-8; options are text") from error
    if len(raw) > FILE_BYTES_MAX:
        raise BadInput(f"{path}: {len(raw):,} bytes; a file of options has at most {FILE_BYTES_MAX:,}")
    try:
        if path.endswith(".json"):
            found: Any = json.loads(text)
        elif path.endswith(".toml"):
            found = tomllib.loads(text)
        else:
            return _lines(path, text)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path}: options are an object of names and values")
    return _flat("", found)  # pyright: ignore[reportUnknownArgumentType]


def _flat(prefix: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """TOML reads `log.segment.bytes = 1` as nested tables: back to the dotted name, unless the option is a table."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and prefix + name not in ("channels",):
            found |= _flat(f"{prefix}{name}.", value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[prefix + name] = value
    return found


def _lines(path: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith(("#", "!")):
            continue
        at = min((bare.index(mark) for mark in "=:" if mark in bare), default=-1)
        if at < 1:
            raise BadInput(f"{path}:{number}: {bare!r}: write name = value")
        found[bare[:at].strip()] = bare[at + 1 :].strip()
    return found
