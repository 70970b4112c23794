"""After a commit: what a Headrace server need not remember number by number any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from headrace.client import Connection
from headrace.errors import ServerRefused
from headrace.spark.publishing import TaskResult

CLOSED = (1 << 64) - 1
"""Below this everything is done: nothing that is sent under the producer's name is stored any more."""


def close(connection: Connection, stream: str | None, done: Iterable[TaskResult]) -> None:
    """Producers that nobody will use again. A task that was given up and still sends sends duplicates."""
    producers = {name: each for each in done for name in each.producers}
    named = [replace(each, producer=name) for name, each in producers.items()]
    raise_floor(connection, stream, named, CLOSED)


def raise_floor(connection: Connection, stream: str | None, done: Iterable[TaskResult], below: int) -> None:
    """Let a Headrace server know that everything below a number is done, in the stream that took the rows."""
    streams: dict[str, str] = {}
    for each in done:
        name = stream or streams.get(each.subject) or _stream_of(connection, each.subject)
        streams[each.subject] = name
        body = msgspec.json.encode({"producer": each.producer, "below": below})
        answer = connection.request(f"$HEADRACE.API.PRODUCER.SETTLE.{name}", body)
        if (error := msgspec.json.decode(answer.payload).get("error")) is not None:
            raise ServerRefused(
                f"settling {each.producer} in {name}: {error['description']}", error["err_code"]
            )


def _stream_of(connection: Connection, subject: str) -> str:
    found: list[str] | None = connection.api("STREAM.NAMES", {"subject": subject})["streams"]
    if not found:
        raise ServerRefused(f"no stream takes {subject}; name it: option stream")
    return found[0]
