"""What this process takes: memory, and CPU in per cent of one core since the last look."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path

_STATM = Path("/proc/self/statm")
_LOOK_AGAIN_S = 1.0


def memory_bytes() -> int:
    """What is resident; where the system does not say, the most that ever was."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


class CpuGauge:
    """Several readers ask at any time; the number is renewed once a second at most."""

    def __init__(self) -> None:
        self._at, self._used, self._percent = time.monotonic(), cpu_seconds(), 0.0

    def percent(self) -> float:
        passed = time.monotonic() - self._at
        if passed >= _LOOK_AGAIN_S:
            used = cpu_seconds()
            self._percent = round(100 * (used - self._used) / passed, 1)
            self._at, self._used = self._at + passed, used
        return self._percent


CPU = CpuGauge()  # one per process, as the process is


def thread_stacks() -> str:
    """Where every thread is at this moment."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for number, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        parts.append(f"thread {number} [{names.get(number, '?')}]:\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
