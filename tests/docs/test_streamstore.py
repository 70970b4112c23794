"""docs/reference/streamstore.md has a line for every method of the storage interface's `StreamStore`."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.layouts.stream_store import StreamStore

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/streamstore.md"


def test_every_method_has_a_line() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    methods = {
        name for name in dir(StreamStore) if not name.startswith("_") and callable(getattr(StreamStore, name))
    }
    assert methods - named == set()
