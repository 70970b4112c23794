"""Other processes, as /proc shows them: whether the real product has a directory open."""

from __future__ import annotations

from pathlib import Path


def has_open(pid: int, directory: Path) -> bool:
    """Whether the process has a file below the directory open; False where that may not be seen."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if link.readlink().is_relative_to(directory):
                return True
        except OSError:
            continue
    return False
