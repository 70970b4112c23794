"""What waits for the same syncs: marks of stores and journals, and whoever is answered when they are durable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.engine._kernels import CommitHandle
from headrace.errors import HeadraceError
from headrace.layouts.stream_store import Committable

Release = Callable[[], None]
Refused = Callable[[Exception], None]

ALL_SO_FAR = (1 << 64) - 1
"""A mark beyond every other."""


@dataclass(slots=True)
class Group:
    """What waits for the same syncs."""

    marks: dict[int, tuple[Committable, int]] = field(default_factory=dict[int, tuple[Committable, int]])
    releases: list[tuple[int, Release, Refused | None]] = field(
        default_factory=list[tuple[int, Release, Refused | None]]
    )
    errors: dict[int, Exception] = field(default_factory=dict[int, Exception])

    def handles(self) -> list[tuple[CommitHandle, int]]:
        """What is to be committed, for the core."""
        return [(target.commit_handle, mark) for target, mark in self.marks.values()]

    def commit(self) -> None:
        """Make everything durable on this thread."""
        for place, (handle, mark) in enumerate(self.handles()):
            try:
                handle.commit(mark)
            except HeadraceError as error:
                self.failed(place, error)

    def failed(self, place: int, error: Exception) -> None:
        """One of the handles could not be committed."""
        self.errors[list(self.marks)[place]] = error

    def add(self, target: Committable, mark: int, release: Release, refused: Refused | None) -> None:
        """`release` waits for a mark of a target; `refused` gets the error if its sync fails."""
        key = id(target)
        known = self.marks.get(key)
        if known is None:
            self.marks[key] = (target, mark)
        else:
            _, before = known
            if before < mark:
                self.marks[key] = (target, mark)
        self.releases.append((key, release, refused))
