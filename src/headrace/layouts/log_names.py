"""Which logs are meant: names, topics, patterns. One rule for every command, Spark and the library.

    orders-0        a log by its name
    orders          the topic: all its partitions or queues (Kafka, RocketMQ)
    orders-*        a pattern: `*`, `?` and `[…]` as in a shell, on names and topics

Without any, all but those that brokers keep for themselves (`__consumer_offsets` …): these are taken when they are named,
or by a pattern that begins as they do.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import NotFound

WILDCARDS = frozenset("*?[")
SHOWN_MAX = 20


def is_pattern(name: str) -> bool:
    """Whether it has wildcards."""
    return not WILDCARDS.isdisjoint(name)


@dataclass(frozen=True, slots=True)
class LogNames:
    """How a product names its logs."""

    topics: bool = False
    """Whether a log is a numbered part of a topic: `orders-0`."""
    internal: tuple[str, ...] = ()
    """How the topics begin that a broker keeps for itself. Messages that wait (delayed, for a retry) are not among them."""

    def topic_of(self, log: str) -> str | None:
        """The topic that a partition or queue belongs to; None without topics."""
        return log.rpartition("-")[0] if self.topics else None

    def is_internal(self, log: str) -> bool:
        """Whether the broker keeps it for itself."""
        return log.startswith(self.internal) if self.internal else False

    def matches(self, log: str, pattern: str) -> bool:
        """Whether a log is meant by a name, topic or pattern."""
        topic = self.topic_of(log)
        if pattern in (log, topic):
            return True
        if not is_pattern(pattern) or (self.is_internal(log) and pattern[0] in WILDCARDS):
            return False
        return fnmatch.fnmatchcase(log, pattern) or (
            topic is not None and fnmatch.fnmatchcase(topic, pattern)
        )

    def choose(
        self, names: Sequence[str], patterns: Sequence[str], *, path: str, kind: str = "log"
    ) -> list[str]:
        """Those that are meant, in their order. NotFound for a plain name that is none of them."""
        if not patterns:
            return [name for name in names if not self.is_internal(name)]
        chosen: set[str] = set()
        for pattern in patterns:
            # A name is itself before it is a topic or a pattern.
            mine = [pattern] if pattern in names else [name for name in names if self.matches(name, pattern)]
            if not mine and not is_pattern(pattern):
                known = ", ".join(names[:SHOWN_MAX]) or "none"
                raise NotFound(f"{path}: no {kind} {pattern!r}; there are: {known}")
            chosen.update(mine)
        return [name for name in names if name in chosen]
