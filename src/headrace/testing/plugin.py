"""The pytest plugin: disks that die or refuse, a clock that stands still, seeds that are printed.

    memory_disk     an empty disk in memory
    faulty_disk     the same behind a plan of faults: `faulty_disk.disk`, `faulty_disk.plan`
    fake_clock      a clock that moves by hand
    crash_driver    cuts the power at every sync point of a workload
    headrace_server a server that runs: `headrace_server.url`
    headrace_seed   the seed of this run, for randomness of your own

A run prints its seed at the top; `--headrace-seed N` repeats it. Each test's seed depends on the run's seed
and on the test's name only, so one test alone behaves as it did in the whole run.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

import pytest

from headrace.testing._kernels import Disk, FaultPlan
from headrace.testing.clock import FakeClock
from headrace.testing.crash import CrashDriver
from headrace.testing.server import TestServer

_SEED = pytest.StashKey[int]()


class FaultyDisk(NamedTuple):
    """A disk in memory that fails as its plan says; `memory` is the disk beneath, which does not."""

    disk: Disk
    plan: FaultPlan
    memory: Disk


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--headrace-seed`."""
    group = parser.getgroup("headrace")
    group.addoption("--headrace-seed", type=int, default=None, metavar="N", help="repeat a run with its seed")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the run's seed."""
    given: int | None = config.getoption("--headrace-seed")
    config.stash[_SEED] = given if given is not None else SystemRandom().getrandbits(32)


def pytest_report_header(config: pytest.Config) -> str:
    """Print it, so that a failing run can be repeated."""
    return f"headrace: seed {config.stash[_SEED]} (repeat with --headrace-seed {config.stash[_SEED]})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say the seed beside a failure too: logs are read from their end."""
    report = yield
    if report.failed and "headrace_seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("headrace", f"--headrace-seed {item.config.stash[_SEED]}"))
    return report


@pytest.fixture
def headrace_seed(request: pytest.FixtureRequest) -> int:
    """A seed for this test: from the run's seed and the test's name."""
    name: str = request.node.nodeid
    return zlib.crc32(name.encode(), request.config.stash[_SEED] & 0xFFFFFFFF)


@pytest.fixture
def headrace_server(tmp_path: Path) -> Generator[TestServer]:
    """A server over an empty store of its own, stopped when the test ends."""
    with TestServer(tmp_path / "headrace-store") as server:
        yield server


@pytest.fixture
def memory_disk() -> Disk:
    """An empty disk in memory, which knows what a power cut would leave."""
    return Disk.memory()


@pytest.fixture
def faulty_disk(memory_disk: Disk) -> FaultyDisk:
    """A disk whose plan says which write or sync fails; nothing fails until the plan is changed."""
    plan = FaultPlan()
    return FaultyDisk(Disk.faulty(memory_disk, plan), plan, memory_disk)


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that starts at a fixed time and moves by hand."""
    return FakeClock()


@pytest.fixture
def crash_driver(headrace_seed: int) -> CrashDriver:
    """A crash driver with this test's seed."""
    return CrashDriver(headrace_seed)
