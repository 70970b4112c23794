"""Writing index segments: `N.idx` beside each other, a bounded number open at once, all synced in the end."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.layouts.rabbitmq._kernels import Disk, DiskFile, RabbitQueue

OPEN_SEGMENTS_MAX = 64
"""A flush writes so many segments before it syncs them: for new files the first sync does most of the others' work."""


def append(disk: Disk, directory: str, kernel: RabbitQueue, sizes: dict[int, int]) -> dict[int, int]:
    """What is new goes behind the present sizes of the segments; returns the new ones, when they are on disk."""
    written: dict[int, int] = {}
    opened: list[DiskFile] = []
    for number, size in sizes.items():
        file, written[number] = _append_one(disk, directory, kernel, number, size)
        opened.append(file)
        if len(opened) == OPEN_SEGMENTS_MAX:
            _sync_all(opened)
    _sync_all(opened)
    return written


def _append_one(
    disk: Disk, directory: str, kernel: RabbitQueue, number: int, size: int
) -> tuple[DiskFile, int]:
    file = disk.open(f"{directory}/{number}.idx", "write")
    if len(file) > size:
        file.set_len(size)  # of a flush that failed half way: it is all in the journal
    try:
        written = kernel.flush_segment(number, file, size)
    except HeadraceError:
        file.set_len(size)
        raise
    return file, size + written


def _sync_all(opened: list[DiskFile]) -> None:
    for file in opened:
        file.sync_data()
    opened.clear()
