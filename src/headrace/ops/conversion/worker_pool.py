"""Several hands for one conversion: logs that have nothing to do with each other go side by side.

    thread 1   log a: read, recast ─┐ append   log c: read, recast ─┐ append
    thread 2   log b: read, recast ─────┐ append   log d: …
                                        one writer at a time: the lock

Every thread reads by volumes of its own. A product's directory has one writer, so the target is shared and locked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from headrace.layouts.base import Volume
from headrace.ops.engines import Threads

Item = TypeVar("Item")
Opener = Callable[[], AbstractContextManager[Volume]]


def independent(
    items: Sequence[Item], touches: Callable[[Item], tuple[Hashable, Hashable]]
) -> list[list[Item]]:
    """Groups that share nothing; inside a group, and among groups, in the order in which they were."""
    groups: list[list[int]] = []
    group_of: dict[tuple[int, Hashable], int] = {}
    for number, item in enumerate(items):
        keys = list(enumerate(touches(item)))
        known = sorted({group_of[key] for key in keys if key in group_of})
        if known:
            home = known[0]
            for other in known[1:]:
                groups[home] += groups[other]
                groups[other] = []
                group_of.update({key: home for key, at in group_of.items() if at == other})
        else:
            home = len(groups)
            groups.append([])
        groups[home].append(number)
        group_of.update(dict.fromkeys(keys, home))
    return [[items[number] for number in sorted(group)] for group in groups if group]


class WorkerPool:
    """So many threads, and the lock of who writes."""

    def __init__(self, threads: int) -> None:
        self.threads = max(threads, 1)
        self.lock = threading.Lock()

    def run(
        self,
        work: Callable[[Sequence[Volume], list[Item]], None],
        groups: Sequence[list[Item]],
        *openers: Opener,
    ) -> None:
        """Each group by a thread, with the volumes that the openers make for that thread. The first error ends everything."""
        mine = threading.local()
        opening = threading.Lock()
        with ExitStack() as stack:

            def one(group: list[Item]) -> None:
                opened: list[Volume] | None = getattr(mine, "opened", None)
                if opened is None:
                    with opening:
                        opened = [stack.enter_context(opener()) for opener in openers]
                    mine.opened = opened
                work(opened, group)

            if self.threads == 1:
                for group in groups:
                    one(group)
            else:
                for _ in Threads(self.threads).run(one, groups):
                    pass
