"""Golden NATS Streaming directories for tests, and short ways to open stores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from headrace._core import Disk
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.volume import StreamingVolume
from tests.support.vectors import ROOT

VERSION = "0.25.6"
FOLDER = ROOT / "nats_streaming" / VERSION
CASES: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text())["cases"]


def copy(case: str, target: Path) -> str:
    """A fresh, writable copy of a case."""
    return str(shutil.copytree(FOLDER / case, target / case))


def open_rw(path: str, disk: Disk | None = None, **options: Any) -> StreamingVolume:
    """For writing, made if it is not there, without a thread."""
    settings = {
        key: options.pop(key) for key in ("durability", "clock", "key", "archive_runner") if key in options
    }
    return StreamingVolume(
        path,
        mode="rw",
        create=True,
        disk=disk,
        options=StreamingOptions.of(options),
        maintenance=False,
        **settings,
    )


def content(volume: StreamingVolume, channel: str) -> dict[int, bytes]:
    """Sequence → payload of everything that can be read."""
    return {record.seq: record.data or b"" for record in volume.open(channel)}


def snapshot(path: str) -> dict[str, bytes]:
    """Every file below a directory."""
    root = Path(path)
    return {
        str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()
    }
