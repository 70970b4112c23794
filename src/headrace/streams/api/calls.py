"""What an API call is, and the forms its answer can take before it is said.

fields                 an answer that says yes, at once
Durable(target, …)     the same, to be said when what was written is on disk
Later(work, …)         slow, or with syncs of its own: runs off the loop
None                   nothing is said
ApiError               raised: an answer that says no
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.layouts.stream_store import Committable
    from headrace.streams.account import JsAccount
    from headrace.streams.stream.stream import Stream

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
    """Say the answer when everything up to the mark of the target is on disk; a target in memory has none."""

    target: Committable
    mark: int
    answer: Any
    """Fields in a handler, bytes when the API hands it on."""
    in_memory: bool = False
    refused: Callable[[Exception], bytes] | None = None
    """What is said if the sync fails."""


@dataclass(frozen=True, slots=True)
class Later:
    """`work` runs off the loop; `finish(result or exception)` on the loop gives the answer. Publishes to `fenced` wait
    meanwhile."""

    work: Callable[[], Any]
    finish: Callable[[Any], Any]
    """Fields in a handler, bytes when the API hands it on."""
    fenced: Stream | None = None


Outcome = Fields | Durable | Later | None


def is_durable(stream: Stream) -> bool:
    """Whether everything that was written to the stream is on disk (or never will be: memory)."""
    return stream.in_memory or stream.store.durable_mark >= stream.mark()


def when_durable(stream: Stream, fields: Fields) -> Outcome:
    """Fields that show stored messages: not before those are safe."""
    waits = stream.engine.sync_needed and not is_durable(stream)
    return Durable(stream.store, stream.mark(), fields, stream.in_memory) if waits else fields
