"""For tests of what you build on Headrace: a server, disks that die or refuse, a crash driver, a clock that stands still.

The pytest fixtures (`memory_disk`, `faulty_disk`, `crash_driver`, `fake_clock`, `headrace_server`) are there as soon as Headrace is
installed; see `headrace.testing.plugin`.
"""

from headrace.testing._kernels import Disk, FaultPlan
from headrace.testing.clock import FakeClock
from headrace.testing.crash import CrashDriver, CrashFailure, CrashPoint, CrashReport, live_until
from headrace.testing.server import ServerFailed, TestServer

__all__ = [
    "CrashDriver",
    "CrashFailure",
    "CrashPoint",
    "CrashReport",
    "Disk",
    "FakeClock",
    "FaultPlan",
    "ServerFailed",
    "TestServer",
    "live_until",
]
