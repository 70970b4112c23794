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

from headrace.errors import NotFound

WILDCARDS = frozenset("*?[")
SHOWN_MAX = 20
_WITH_TOPICS = frozenset({"kafka", "rocketmq"})
_INTERNAL = {
    "kafka": ("__",),
    "rocketmq": ("RMQ_SYS_", "rmq_sys_", "TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
}
"""How the topics begin that a broker keeps for itself. Messages that wait (delayed, for a retry) are not among them."""


def topic_of(layout: str, log: str) -> str | None:
    """The topic that a partition or queue belongs to; None in layouts without topics."""
    return log.rpartition("-")[0] if layout in _WITH_TOPICS else None


def is_internal(layout: str, log: str) -> bool:
    """Whether the broker keeps it for itself."""
    return log.startswith(_INTERNAL.get(layout, ())) if layout in _INTERNAL else False


def is_pattern(name: str) -> bool:
    """Whether it has wildcards."""
    return not WILDCARDS.isdisjoint(name)


def matches(layout: str, log: str, pattern: str) -> bool:
    """Whether a log is meant by a name, topic or pattern."""
    topic = topic_of(layout, log)
    if pattern in (log, topic):
        return True
    if not is_pattern(pattern) or (is_internal(layout, log) and pattern[0] in WILDCARDS):
        return False
    return fnmatch.fnmatchcase(log, pattern) or (topic is not None and fnmatch.fnmatchcase(topic, pattern))


def choose_logs(
    layout: str, names: Sequence[str], patterns: Sequence[str], *, path: str, kind: str = "log"
) -> list[str]:
    """Those that are asked for, in their order. NotFound for a plain name that is none of them."""
    if not patterns:
        return [name for name in names if not is_internal(layout, name)]
    chosen: set[str] = set()
    for pattern in patterns:
        # A name is itself before it is a topic or a pattern.
        mine = [pattern] if pattern in names else [name for name in names if matches(layout, name, pattern)]
        if not mine and not is_pattern(pattern):
            known = ", ".join(names[:SHOWN_MAX]) or "none"
            raise NotFound(f"{path}: no {kind} {pattern!r}; there are: {known}")
        chosen.update(mine)
    return [name for name in names if name in chosen]
