"""What every benchmark here does the same way: fresh directories, alternating runs, medians with their spread.

CPU is of the whole process (all threads), user and system. Absolute rates of a shared machine move from hour
to hour: read the ratios.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Sample:
    """One run: how many messages, how long, how much CPU."""

    messages: int
    wall_s: float
    cpu_s: float
    extra: dict[str, Any] = field(default_factory=lambda: {})

    @property
    def rate(self) -> float:
        return self.messages / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.messages * 1e6


@dataclass
class Figure:
    """One line of the report."""

    name: str
    required: str
    samples: dict[str, list[Sample]]
    verdict: str = ""
    met: bool | None = None

    def median(self, who: str, value: Callable[[Sample], float]) -> float:
        return statistics.median(value(sample) for sample in self.samples[who])

    def ratio(self, who: str, floor: str, value: Callable[[Sample], float]) -> float:
        return self.median(who, value) / self.median(floor, value)

    def as_json(self) -> dict[str, Any]:
        samples = {
            who: [asdict(sample) | {"rate": sample.rate, "cpu_us": sample.cpu_us} for sample in runs]
            for who, runs in self.samples.items()
        }
        return {
            "name": self.name,
            "required": self.required,
            "verdict": self.verdict,
            "met": self.met,
            "runs": samples,
        }


@contextmanager
def scratch() -> Iterator[Path]:
    """A fresh directory on the disk of HEADRACE_BENCH_DIR (default: the temporary directory)."""
    base = os.environ.get("HEADRACE_BENCH_DIR")
    path = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def timed(messages: int) -> Iterator[Sample]:
    """Measure a block of code of this process."""
    sample = Sample(messages, 0.0, 0.0)
    cpu, wall = time.process_time(), time.perf_counter()
    yield sample
    sample.wall_s = time.perf_counter() - wall
    sample.cpu_s = time.process_time() - cpu


def alternate(runs: int, contestants: dict[str, Callable[[], Sample]]) -> dict[str, list[Sample]]:
    """Run everybody in turn, `runs` times."""
    found: dict[str, list[Sample]] = {name: [] for name in contestants}
    for _ in range(runs):
        for name, run in contestants.items():
            found[name].append(run())
    return found


def process_cpu_s(pid: int) -> float:
    """User and system time of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def spread(values: list[float]) -> str:
    """Median and range, for people."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
