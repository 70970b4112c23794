"""The crash driver: cut the power at every sync point of a workload and look at what is left.

    def workload(disk, notes):                  # writes; gives `notes` what was acknowledged
        volume = headrace.open("/store", "rw", create=True, disk=disk, maintenance=False)
        stream = volume.create("S", subjects=["a"])
        for n in range(10):
            ticket = stream.append(headrace.batch("a", [b"%d" % n]))
            volume.commit([ticket])
            notes.append(n)

    def check(disk, notes, point):              # opens what the power cut left, asserts
        ...

    CrashDriver(seed=1).run(workload, check, notes=list)

The workload runs once to its end to count its sync points (every `sync_data` and `sync_dir`). Then, for each
point k, it runs again on a fresh memory disk that dies at k: the k-th sync fails and so does everything
after it. What was not synced survives by `keep`: "none" of it, "all" of it (the process died, the machine
did not), or "random" pages, lengths and names, by a seed. So the workload must do the same each time: no
threads (`maintenance=False`), no wall clock (`FakeClock`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from headrace.errors import HeadraceError
from headrace.testing._kernels import Disk

Keep = Literal["none", "all", "random"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One power cut: `sync_point` syncs had succeeded; `keep` and `seed` say what else survived."""

    sync_point: int
    keep: Keep
    seed: int = 0

    def __str__(self) -> str:
        chance = f", seed={self.seed}" if self.keep == "random" else ""
        return f"power cut at sync point {self.sync_point} (keep={self.keep}{chance})"


@dataclass(frozen=True, slots=True)
class CrashReport:
    """How much was tried."""

    sync_points: int
    crashes: int


class CrashFailure(AssertionError):
    """A check failed after a crash; `point` replays it with `CrashDriver.replay`."""

    def __init__(self, point: CrashPoint, problem: BaseException) -> None:
        super().__init__(f"after a {point}: {type(problem).__name__}: {problem}")
        self.point = point


class CrashDriver:
    """Runs workloads against disks that die. The same seed gives the same crashes."""

    def __init__(
        self,
        seed: int = 0,
        *,
        keeps: Sequence[Keep] = ("none", "all", "random"),
        random_per_point: int = 2,
    ) -> None:
        self.seed, self.keeps, self.random_per_point = seed, tuple(keeps), random_per_point

    def sync_points(self, workload: Callable[[Disk, T], object], notes: Callable[[], T]) -> int:
        """How many sync points the whole workload has. It must run to its end on a sound disk."""
        disk = Disk.memory()
        workload(disk, notes())
        return disk.sync_points()

    def points(self, total: int, *, first: int = 0, step: int = 1) -> Iterable[CrashPoint]:
        """Every crash of a run: each sync point from `first` on, each way to lose what was not synced."""
        chance = random.Random(self.seed)
        for k in range(first, total + 1, step):
            for keep in self.keeps:
                if keep != "random":
                    yield CrashPoint(k, keep)
                    continue
                for _ in range(self.random_per_point):
                    yield CrashPoint(k, keep, chance.getrandbits(32))

    def run(
        self,
        workload: Callable[[Disk, T], object],
        check: Callable[[Disk, T, CrashPoint], object],
        *,
        notes: Callable[[], T],
        first: int = 0,
        step: int = 1,
    ) -> CrashReport:
        """Crash everywhere, check everywhere. Raises CrashFailure at the first check that fails.

        `notes()` makes what the workload writes its acknowledgements into; `check` gets it together with the
        disk as found after the crash. With `step` only every so many sync points are tried.
        """
        total = self.sync_points(workload, notes)
        lives = _Lives(workload, notes)
        crashes = 0
        for point in self.points(total, first=first, step=step):
            lives.check(point, check)
            crashes += 1
        return CrashReport(total, crashes)

    def replay(
        self,
        point: CrashPoint,
        workload: Callable[[Disk, T], object],
        check: Callable[[Disk, T, CrashPoint], object],
        *,
        notes: Callable[[], T],
    ) -> None:
        """One crash again."""
        _Lives(workload, notes).check(point, check)


class _Lives(Generic[T]):
    """The workload's lives, one per sync point; the crashes of one point share it."""

    def __init__(self, workload: Callable[[Disk, T], object], notes: Callable[[], T]) -> None:
        self._workload, self._new_notes = workload, notes
        self._life: tuple[int, Disk, T] | None = None

    def check(self, point: CrashPoint, check: Callable[[Disk, T, CrashPoint], object]) -> None:
        disk, notes = self._until(point.sync_point)
        try:
            check(disk.crash(point.seed, point.keep), notes, point)
        except Exception as problem:
            raise CrashFailure(point, problem) from problem

    def _until(self, sync_point: int) -> tuple[Disk, T]:
        if self._life is None or self._life[0] != sync_point:
            self._life = (sync_point, *live_until(sync_point, self._workload, self._new_notes()))
        return self._life[1], self._life[2]


def live_until(sync_point: int, workload: Callable[[Disk, T], object], notes: T) -> tuple[Disk, T]:
    """Run a workload on a disk that dies at `sync_point`; the dead disk and what was acknowledged."""
    disk = Disk.memory()
    disk.power_cut_at(sync_point)
    try:
        workload(disk, notes)
    except HeadraceError:
        if is_alive(disk):
            raise  # the workload's own mistake, not the power cut
    return disk, notes


def is_alive(disk: Disk) -> bool:
    """Whether the power of a memory disk is still on."""
    try:
        disk.entry("/")
    except HeadraceError:
        return False
    return True
