"""`headrace.testing` as its users meet it: the plugin's seed, its fixtures, the clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.testing import FakeClock

A_TEST = """
def test_it(headrace_seed, crash_driver, memory_disk, faulty_disk, fake_clock):
    assert crash_driver.seed == headrace_seed
    assert faulty_disk.plan.writes == 0 and memory_disk.sync_points() == 0
    assert fake_clock() < fake_clock()
    print(f"my seed is {headrace_seed}")
    assert False
"""


def run(directory: Path, *options: str) -> str:
    (directory / "test_it.py").write_text(A_TEST)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_it.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def seed_in(output: str) -> str:
    return output.split("my seed is ")[-1].split()[0]


def test_the_printed_seed_repeats_a_run(tmp_path: Path) -> None:
    first = run(tmp_path)
    printed = first.split("--headrace-seed ")[1].split(")")[0]
    assert first.count(f"--headrace-seed {printed}") == 2, "at the top, and beside the failure"
    again = run(tmp_path, "--headrace-seed", printed)
    assert seed_in(again) == seed_in(first)
    assert seed_in(run(tmp_path, "--headrace-seed", str(int(printed) + 1))) != seed_in(first)


def test_the_clock_moves_only_by_hand() -> None:
    clock = FakeClock(1000, step_ns=2)
    assert (clock(), clock()) == (1002, 1004)
    assert clock.advance(1.5) == 1004 + 1_500_000_000
