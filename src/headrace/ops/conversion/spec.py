"""What a conversion is to do: everything that `convert` takes beside the two directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import BadInput
from headrace.layouts.registry import LAYOUTS
from headrace.ops.conversion.joining import ORDERS

CARRIES = ("header", "key", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSpec:
    """Read and checked before anything is opened. Can be pickled."""

    rules: Sequence[str] = ()
    """Which log becomes which, `FROM=TO`; the first that fits decides."""
    subject: str | None = None
    """The subject of the messages; `{subject}` is each one's own."""
    carry: str = "header"
    """Where subjects go that the target has no place for: header, key, no."""
    log: str | None = None
    """Only this log, or a pattern."""
    order: str = "time"
    """Of logs that become one: time (a merge), log (one after the other)."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the target, under its own names."""
    key: str | None = field(default=None, repr=False)
    """Of an encrypted source; it shows in no log."""
    dry_run: bool = False
    restart: bool = False
    """Throw away what an interrupted conversion has built."""
    unread_ok: bool = False
    """Go on without what the source holds and no reader here reads."""
    threads: int | None = None
    """Logs side by side; None: one after the other, or, on a worker of its own, as many as it has cores."""

    def check(self, to: str) -> None:
        """BadInput for what no layout or no order is called."""
        if to not in LAYOUTS:
            raise BadInput(f"--to {to!r}; known are: {', '.join(LAYOUTS)}")
        if self.carry not in CARRIES:
            raise BadInput(f"subjects in {self.carry!r}; known are: {', '.join(CARRIES)}")
        if self.order not in ORDERS:
            raise BadInput(f"--order {self.order!r}; known are: {', '.join(ORDERS)}")
