"""For tests of what you build on Headrace: disks that die or refuse, a crash driver, a clock that stands still.

The pytest fixtures (`memory_disk`, `faulty_disk`, `crash_driver`, `fake_clock`) are there as soon as Headrace is
installed; see `headrace.testing.plugin`.
"""

from headrace.testing._kernels import Disk, FaultPlan
from headrace.testing.clock import FakeClock
from headrace.testing.crash import CrashDriver, CrashFailure, CrashPoint, CrashReport, live_until

__all__ = [
    "CrashDriver",
    "CrashFailure",
    "CrashPoint",
    "CrashReport",
    "Disk",
    "FakeClock",
    "FaultPlan",
    "live_until",
]
