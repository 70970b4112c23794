"""Reading one map of the configuration key by key: types, ranges, sizes, durations, and what is left over.

Problems are collected, not raised, so that a person sees all of them at once. A key that nobody asked for is a
problem too, with file and line; with `ignore_unsupported` it is listed in `skipped` instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.errors import BadInput
from headrace.server.config.problems import ConfigPosition
from headrace.server.config.text import Entries, Node
from headrace.units import parse_duration_ns, parse_size

T = TypeVar("T")
SECOND_NS = 1_000_000_000
_MINUTES_OR_MONSTERS = re.compile(r"\d+[mM]")


@dataclass
class ConfigFindings:
    """What reading a configuration brought up beside its options."""

    ignore_unsupported: bool = False
    problems: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])

    def problem(self, place: ConfigPosition, text: str) -> None:
        self.problems.append(f"{place}: {text}")

    def warning(self, place: ConfigPosition, text: str) -> None:
        self.warnings.append(f"{place}: {text}")

    def unsupported(self, place: ConfigPosition, key: str, reason: str | None) -> None:
        """A key that the real server has and this one has not (`reason` says why), or that nobody knows."""
        said = f"unknown key {key!r}" if reason is None else f"{key!r} is not supported: {reason}"
        (self.skipped if self.ignore_unsupported else self.problems).append(f"{place}: {said}")


class Section:
    """One map. Keys are found in any case and under any of the names given; `finish` looks at the rest."""

    def __init__(
        self, findings: ConfigFindings, entries: Entries, place: ConfigPosition, name: str = ""
    ) -> None:
        self.findings, self.place, self.name = findings, place, name
        self._left: dict[str, tuple[str, Node]] = {key.lower(): (key, node) for key, node in entries.items()}

    def finish(self, unsupported: Mapping[str, str]) -> None:
        """Every key that was not taken is refused, or skipped and listed."""
        for key, node in self._left.values():
            if not node.is_variable:
                full = f"{self.name}.{key}" if self.name else key
                self.findings.unsupported(node.place, full, unsupported.get(key.lower()))
        self._left.clear()

    def take(self, *names: str) -> Node | None:
        """The node under any of these names; the last one written wins."""
        found: Node | None = None
        for name in names:
            if entry := self._left.pop(name, None):
                found = entry[1]
        return found

    def peek(self, name: str) -> Node | None:
        """The node under a name, which stays."""
        entry = self._left.get(name)
        return entry[1] if entry is not None else None

    # One key of a type

    def flag(self, *names: str, default: bool = False) -> bool:
        node = self.take(*names)
        if node is None:
            return default
        if isinstance(node.value, bool):
            return node.value
        self.wrong(node, names[0], "true or false")
        return default

    def integer(self, *names: str, default: T, low: int = 0, high: int = (1 << 63) - 1) -> int | T:
        node = self.take(*names)
        if node is None:
            return default
        if not isinstance(node.value, int) or isinstance(node.value, bool):
            self.wrong(node, names[0], "a number")
        elif not low <= node.value <= high:
            self.findings.problem(node.place, f"{names[0]} is {node.value}; it must be {low} to {high}")
        else:
            return node.value
        return default

    def size(self, *names: str, default: T, low: int = 0, high: int = (1 << 63) - 1) -> int | T:
        """A number of bytes: 1048576, 1MB, "1M"."""
        node = self.take(*names)
        if node is None:
            return default
        value = node.value
        if isinstance(value, str):
            try:
                value = parse_size(value)
            except BadInput:
                value = None
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong(node, names[0], "a size such as 1048576, 1MB or 8GB")
        elif not low <= value <= high:
            self.findings.problem(node.place, f"{names[0]} is {value} bytes; it must be {low} to {high}")
        else:
            return value
        return default

    def duration(self, *names: str, default: T, plain_ok: bool = False) -> int | T:
        """A time in ns. A plain number means seconds, as it did in old versions of nats-server."""
        node = self.take(*names)
        if node is None:
            return default
        found = self.as_duration(node, names[0], plain_ok)
        return default if found is None else found

    def as_duration(self, node: Node, name: str, plain_ok: bool = False) -> int | None:
        value = node.value
        if node.raw and _MINUTES_OR_MONSTERS.fullmatch(node.raw):
            self.findings.problem(
                node.place,
                f'{name}: {node.raw} without quotes is the number {value} in this language; write "{node.raw.lower()}"',
            )
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            if not plain_ok:
                self.findings.warning(node.place, f'{name} should have a unit: "{value}s"')
            return int(value * SECOND_NS)
        if isinstance(value, str):
            try:
                return 0 if value == "0" else parse_duration_ns(value)
            except BadInput:
                pass
        self.wrong(node, name, 'a duration such as "90s", "1h30m" or "250ms"')
        return None

    def text(self, *names: str, default: T) -> str | T:
        node = self.take(*names)
        if node is None:
            return default
        found = self.as_text(node, names[0])
        return default if found is None else found

    def as_text(self, node: Node, name: str) -> str | None:
        """A text; an unquoted word that looks like a number or a yes is still that word."""
        if isinstance(node.value, str):
            return node.value
        if node.raw is not None:
            return node.raw
        self.wrong(node, name, "a text")
        return None

    def texts(self, *names: str) -> tuple[str, ...] | None:
        """One text or an array of them."""
        node = self.take(*names)
        return None if node is None else self.as_texts(node, names[0])

    def as_texts(self, node: Node, name: str) -> tuple[str, ...]:
        nodes = node.value if isinstance(node.value, list) else [node]
        found = (self.as_text(each, name) for each in nodes)
        return tuple(text for text in found if text is not None)

    def pairs(self, *names: str) -> tuple[tuple[str, str], ...]:
        """A map of texts."""
        node = self.take(*names)
        if node is None:
            return ()
        if not isinstance(node.value, dict):
            self.wrong(node, names[0], "a map")
            return ()
        found = [(key, self.as_text(each, f"{names[0]}.{key}")) for key, each in node.value.items()]
        return tuple((key, text) for key, text in found if text is not None)

    def section(self, *names: str) -> Section | None:
        """The map under this key."""
        node = self.take(*names)
        return None if node is None else self.as_section(node, names[0])

    def as_section(self, node: Node, name: str) -> Section | None:
        if isinstance(node.value, dict):
            return Section(
                self.findings, node.value, node.place, f"{self.name}.{name}" if self.name else name
            )
        self.wrong(node, name, "a map")
        return None

    def listen(self, *names: str) -> tuple[str | None, int] | None:
        """`4222`, `host:4222`, `:4222`, `[::1]:4222` → (host or None, port)."""
        node = self.take(*names)
        if node is None:
            return None
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            host, port = "", str(node.value)
        else:
            host, _, port = (self.as_text(node, names[0]) or "").rpartition(":")
        if (
            re.fullmatch(r"-1|\d{1,5}", port) is None
            or int(port) > 65_535
            or (":" in host and host[0] != "[")
        ):
            self.wrong(node, names[0], 'a port or "host:port"')
            return None
        return host.strip("[]") or None, int(port)

    def port(self, *names: str, default: T) -> int | T:
        """A port: -1 asks for any free one."""
        return self.integer(*names, default=default, low=-1, high=65_535)

    def wrong(self, node: Node, name: str, expected: str) -> None:
        if isinstance(node.value, dict | list):
            shown = "a map" if isinstance(node.value, dict) else "an array"
        else:
            shown = repr(node.value if node.raw is None else node.raw)
        full = f"{self.name}.{name}" if self.name else name
        self.findings.problem(node.place, f"{full} must be {expected}, found {shown}")
