"""What an API call is, and the forms its answer can take before it is said.

fields                 an answer that says yes, at once
Durable(stream, …)     the same, to be said when what was written is on disk
Later(stream, …)       slow: runs off the loop with the stream fenced
None                   nothing is said
ApiError               raised: an answer that says no
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.streams.account import JsAccount
    from headrace.streams.stream import Stream

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `args` are the tokens of the subject behind the endpoint's name."""

    account: JsAccount
    subject: str
    args: tuple[str, ...]
    payload: bytes
    client: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Durable:
    """Say the answer when everything that was written to the stream so far is on disk."""

    stream: Stream
    answer: Any
    """Fields in a handler, bytes when the API hands it on."""
    refused: Callable[[Exception], bytes] | None = None
    """What is said if the sync fails."""


@dataclass(frozen=True, slots=True)
class Later:
    """`work` runs off the loop with the stream fenced; `finish(result or exception)` on the loop gives the answer."""

    stream: Stream
    work: Callable[[], Any]
    finish: Callable[[Any], Any]
    """Fields in a handler, bytes when the API hands it on."""


Outcome = Fields | Durable | Later | None


def is_durable(stream: Stream) -> bool:
    """Whether everything that was written to the stream is on disk (or never will be: memory)."""
    return stream.in_memory or stream.store.log.durable()[0] >= stream.mark()


def when_durable(stream: Stream, fields: Fields) -> Outcome:
    """Fields that show stored messages: not before those are safe."""
    waits = stream.engine.sync_needed and not is_durable(stream)
    return Durable(stream, fields) if waits else fields
