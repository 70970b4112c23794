"""What one user may publish and subscribe to, as configured. What the lists mean is the core's: exchange/permissions.rs.

publish    subjects; an allow list of None allows everything
subscribe  subjects, or `subject queue` for queue subscriptions only; both parts may have wildcards
responses  with `allow_responses`, the reply subject of a received message may be published to: so often, so long
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


def is_subject(text: str) -> bool:
    """A subject that may be subscribed to: no empty token, no blanks, `>` only at the end."""
    if not text or any(character.isspace() for character in text):
        return False
    tokens = text.split(".")
    return all(tokens) and ">" not in tokens[:-1]
