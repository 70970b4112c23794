"""The one progress line of a pipeline, on stderr, on a terminal only: blocks, rows, MB/s, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from headrace.ops.engines import Done, OnProgress

EVERY_S = 0.1


@contextmanager
def line(what: str) -> Generator[OnProgress | None]:
    """A line that is rewritten in place and gone at the end; None when nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    started, shown = time.monotonic(), [0.0]

    def report_progress(done: Done) -> None:
        now = time.monotonic()
        if now - shown[0] >= EVERY_S or done.blocks == done.blocks_all:
            shown[0] = now
            print(f"\r\x1b[K{text(what, done, now - started)}", end="", file=sys.stderr, flush=True)

    try:
        yield report_progress
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def text(what: str, done: Done, seconds: float) -> str:
    """`archive  12/40 blocks  3,200,000 rows  410 MB/s  3 s left`"""
    rate = done.bytes / seconds if seconds > 0 else 0
    left = f"  {(done.bytes_all - done.bytes) / rate:.0f} s left" if rate and done.bytes_all else ""
    return (
        f"{what}  {done.blocks:,}/{done.blocks_all:,} blocks  {done.rows:,} rows  {rate / 1e6:.0f} MB/s{left}"
    )
