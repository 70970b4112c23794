"""What the reports of `inspect` and `verify` on a JetStream store have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.layouts.base import Damage
from headrace.layouts.plain import plain
from headrace.layouts.report import Nouns, Report
from headrace.layouts.unread import Unread

NAME = "jetstream"
PRODUCT = "NATS JetStream"
NOUNS = Nouns("store", "stream", "block", "record")


@dataclass(slots=True, repr=False)
class StoreReport(Report):
    """A store; nothing in it belongs to no stream."""

    path: str
    layout: str = NAME
    product: str = PRODUCT
    complete: bool = True
    seconds: float = 0.0
    writer: str | None = None
    unread: list[Unread] = field(default_factory=lambda: [])
    nouns: Nouns = NOUNS

    @property
    def damage(self) -> list[Damage]:
        return [each for stream in self.logs for each in stream.findings]

    @property
    def notes(self) -> list[str]:
        return [f"{stream.name}: {note}" for stream in self.logs for note in stream.notes]

    @property
    def problems(self) -> list[str]:
        return [f"{stream.name}: {problem}" for stream in self.logs for problem in stream.problems]

    def plain(self, *names: str) -> dict[str, Any]:
        """What both show, and these fields."""
        shown = {name: plain(getattr(self, name)) for name in ("path", "layout", "product", "unread", *names)}
        return shown | {"sound": self.sound}
