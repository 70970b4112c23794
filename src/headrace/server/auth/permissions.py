"""What one user may publish and subscribe to: the lists as configured, and their meaning in plain Python.

    publish    subject must match the allow list (None: everything may pass) and no entry of the deny list
    subscribe  the same; an entry `subject queue` is about queue subscriptions only, and both parts may have wildcards.
               Where the allow list names queues for a subject, a queue subscription needs one of those
    deliver    a subscription that is wider than a deny entry stays, but what the deny entry covers is not delivered
    responses  with `allow_responses`, the reply subject of a received message may be published to: so often, so long

The server compiles these lists for its kernels; the functions here say what the kernels must do. They answer as
nats-server does, but for one hole that is closed: there, `allow: foo.*` lets a client subscribe to `foo.>` as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Permissions:
    """A user's lists. An allow list of None allows all; an empty one allows nothing."""

    publish_allow: tuple[str, ...] | None = None
    publish_deny: tuple[str, ...] = ()
    subscribe_allow: tuple[str, ...] | None = None
    subscribe_deny: tuple[str, ...] = ()
    allow_responses: tuple[int, int] | None = (
        None  # (most messages, -1 without end; time in ns, 0 without end)
    )

    def may_publish(self, subject: str) -> bool:
        """Without responses: those depend on what the client received."""
        if self.publish_allow is not None and not any(
            matches(entry, subject) for entry in self.publish_allow
        ):
            return False
        return not any(matches(entry, subject) for entry in self.publish_deny)

    def may_subscribe(self, subject: str, queue: str | None = None) -> bool:
        """The allow list must cover the whole subscription; a deny entry refuses what it matches word by word."""
        if self.subscribe_allow is not None:
            found = [group for wanted, group in map(_split, self.subscribe_allow) if covers(wanted, subject)]
            groups = [group for group in found if group]
            if queue and groups:
                if not any(matches(group, queue) for group in groups):
                    return False
            elif "" not in found:
                return False
        return not any(
            matches(wanted, subject) and (not group or (queue is not None and matches(group, queue)))
            for wanted, group in map(_split, self.subscribe_deny)
        )

    def may_receive(self, subject: str) -> bool:
        """Checked at delivery when the subscription is wider than a deny entry."""
        return not any(matches(entry, subject) for entry in self.subscribe_deny if " " not in entry)

    def denied_inside(self, subject: str) -> bool:
        """Can a message that matches this subscription be denied? Then delivery must ask `may_receive`."""
        return any(overlap(entry, subject) for entry in self.subscribe_deny if " " not in entry)


def _split(entry: str) -> tuple[str, str]:
    subject, _, queue = entry.partition(" ")
    return subject, queue.strip()


def matches(pattern: str, subject: str) -> bool:
    """Does the literal subject match? `*` is one token, `>` the rest (at least one)."""
    if pattern == ">":
        return bool(subject)
    want, have = pattern.split("."), subject.split(".")
    for at, token in enumerate(want):
        if token == ">" and at == len(want) - 1:
            return len(have) > at
        if at >= len(have) or (token != "*" and token != have[at]):
            return False
    return len(want) == len(have)


def covers(pattern: str, other: str) -> bool:
    """Does every subject that `other` matches also match `pattern`? Both may have wildcards."""
    want, have = pattern.split("."), other.split(".")
    for at, token in enumerate(want):
        if token == ">" and at == len(want) - 1:
            return len(have) > at
        if at >= len(have):
            return False
        if token == "*":
            if have[at] == ">":
                return False
        elif token != have[at]:
            return False
    return len(want) == len(have)


def overlap(one: str, other: str) -> bool:
    """Is there a subject that both match?"""
    left, right = one.split("."), other.split(".")
    for at in range(max(len(left), len(right))):
        if at >= len(left) or at >= len(right):
            return False
        if left[at] == ">" or right[at] == ">":
            return True
        if left[at] != right[at] and "*" not in (left[at], right[at]):
            return False
    return True


def is_subject(text: str) -> bool:
    """A subject that may be subscribed to: no empty token, no blanks, `>` only at the end."""
    if not text or any(character.isspace() for character in text):
        return False
    tokens = text.split(".")
    return all(tokens) and ">" not in tokens[:-1]
