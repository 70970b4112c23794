"""Where work on blocks runs. An engine takes a function and items, and gives results as they come, with the item's number.

`Threads` is the engine without a JVM; `headrace.spark.pipelines` has the one over a cluster. Both run the same functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkEngine(Protocol):
    """Spreads work."""

    name: str

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Results in the order in which they are ready. The first error ends everything."""
        ...


class Threads:
    """In threads of this process: the core and Arrow work outside the interpreter's lock."""

    name = "local"

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or os.cpu_count() or 1

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Memory: as many items at once as there are threads."""
        with ThreadPoolExecutor(self.threads, thread_name_prefix="headrace-pipeline") as pool:
            running = {pool.submit(work, item): number for number, item in enumerate(items)}
            try:
                for future in as_completed(running):
                    yield running[future], future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


@dataclass(slots=True)
class Done:
    """How far a pipeline is: what its progress line shows."""

    blocks: int = 0
    blocks_all: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_all: int = 0


OnProgress = Callable[[Done], None]
"""Called after each piece of work, from the calling thread only."""
