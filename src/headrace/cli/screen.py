"""How answers look: styled lines on a terminal, plain lines elsewhere; progress on stderr, on a terminal only.

Names, subjects and payloads come from files that anybody may have written: control characters are shown as
escapes, so that a message cannot move the cursor or set the window's title.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from headrace.layouts.base import Damage
from headrace.layouts.layout import Progress as OnProgress
from headrace.layouts.report import describe, describe_unread
from headrace.layouts.unread import Unread

BAR_WIDTH = 32
_DAMAGE_LISTED_MAX = 200


class Screen:
    """Stdout for people."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True, emoji=False)
        self.is_terminal = self._console.is_terminal
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
        self.full, self.empty = ("█", "░") if encoding.startswith("utf") else ("#", ".")

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line; `style` shows on a terminal only."""
        self.parts((text, style))

    def parts(self, *parts: tuple[str, str | None]) -> None:
        """One line of differently styled pieces."""
        line = Text()
        for text, style in parts:
            line.append(safe(text), style or "")
        self._console.print(line)

    def damage(self, found: list[Damage]) -> None:
        """Findings, one per line, red; a great many are cut off with a word."""
        for each in found[:_DAMAGE_LISTED_MAX]:
            self.line(f"  {describe(each)}", "red")
        if len(found) > _DAMAGE_LISTED_MAX:
            self.line(f"  … and {len(found) - _DAMAGE_LISTED_MAX:,} more; --json lists all", "red")

    def unread(self, found: list[Unread]) -> None:
        """What is there and not read, one per line."""
        for each in found:
            self.line(f"  {describe_unread(each)}", "bold yellow" if each.may_hold_messages else "dim")

    def bar(
        self, size: int, largest: int, live: float, damage: list[tuple[float, float]]
    ) -> list[tuple[str, str | None]]:
        """A block: its length by its size, filled as far as it is live, `!` where it is damaged."""
        width = max(1, round(BAR_WIDTH * size / largest)) if largest else 1
        cells = [self.full] * round(width * live) + [self.empty] * (width - round(width * live))
        for begin, end in damage:
            for cell in range(int(begin * width), max(int(begin * width) + 1, int(end * width))):
                cells[min(cell, width - 1)] = "!"
        styles = {"!": "bold red", self.full: "green", self.empty: "dim"}
        parts: list[tuple[str, str | None]] = [("".join(run), styles[cell]) for cell, run in groupby(cells)]
        return [*parts, (" " * (BAR_WIDTH - width), None)]


def safe(text: str) -> str:
    """Control characters as escapes; everything else as it is."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=True))


def warn(text: str) -> None:
    """A line on stderr."""
    print(f"headrace: {safe(text)}", file=sys.stderr)


@contextmanager
def progress(what: str, *, in_bytes: bool = True) -> Generator[OnProgress | None]:
    """A bar with speed and time left on stderr; None when nobody would see it. Steps that are no bytes: a percentage."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    amounts = (
        (DownloadColumn(binary_units=True), TransferSpeedColumn())
        if in_bytes
        else (TextColumn("{task.percentage:>3.0f} %"),)
    )
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=1)

        def report_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=max(total, 1))

        yield report_progress
