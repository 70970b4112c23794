"""The stream that publishes are meant for: which subjects it takes, and the refusal of all others.

    named_stream(connection, "COPY")   → Destination("COPY", ("copy.>",)), or an error: no such stream, a mirror
    destination.check(batch)           BadInput before anything of the batch is sent

A subject decides which stream stores a message. Whoever names the stream too wants no other one: every publish says so
(`Nats-Expected-Stream`), and every answer is compared (`Publisher`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.client._kernels import Batch
from headrace.client.connection import Connection
from headrace.errors import BadInput, NotFound, ServerRefused

NOT_FOUND = (10059, 404)
OWN_SUBJECT = "{subject}"


@dataclass(frozen=True, slots=True)
class Destination:
    """A stream by its name, with the subjects that it takes."""

    stream: str
    subjects: tuple[str, ...]

    def check(self, batch: Batch) -> None:
        """BadInput for a batch with a message that another stream, or none, would take."""
        if len(batch) and len(self._taken(batch)) < len(batch):
            at = next(at for at in range(len(batch)) if not len(self._taken(batch.slice(at, at + 1))))
            raise BadInput(
                f"{batch[at].subject!r} is no subject of stream {self.stream}, which takes {', '.join(self.subjects[:10])}: "
                f"give the messages one that it takes{self._advice()}; nothing of this batch was sent"
            )

    def _taken(self, batch: Batch) -> Batch:
        return batch.filter(None, None, None, None, list(self.subjects))

    def _advice(self) -> str:
        """A subject that puts the own one into the stream, where that is plain."""
        first = self.subjects[0]
        if first.endswith(".>") and "*" not in first:
            return f" (for instance {first[:-1]}{OWN_SUBJECT})"
        return "" if "*" in first or ">" in first else f" (for instance {first})"

    def spellings(self) -> list[bytes]:
        """The name as JSON writes it: servers in Go escape more than they need to."""
        plain = msgspec.json.encode(self.stream)[1:-1]
        escaped = plain.replace(b"&", b"\\u0026").replace(b"<", b"\\u003c")
        return [plain] if escaped == plain else [plain, escaped]


def named_stream(connection: Connection, name: str) -> Destination:
    """The stream of that name. NotFound without it, BadInput for one that nobody can publish to."""
    if not name or any(ord(each) < 33 or each in ".*>/\\" for each in name):
        raise BadInput(f"{name!r} is no name of a stream: no blanks, dots, slashes or wildcards")
    try:
        config = connection.ask(f"STREAM.INFO.{name}")["config"]
    except ServerRefused as refusal:
        if refusal.code in NOT_FOUND:
            raise NotFound(f"{connection.access.place}: no stream {name!r}; make it first") from None
        raise
    subjects: list[str] = config.get("subjects") or []
    if not subjects:
        what = "a mirror" if config.get("mirror") else "a stream without subjects"
        raise BadInput(f"{connection.access.place}: {name} is {what}: nothing can be published to it")
    return Destination(name, tuple(subjects))


def stream_of(connection: Connection, subject: str) -> Destination:
    """The stream that takes a subject. NotFound when none does."""
    found: list[str] | None = connection.ask("STREAM.NAMES", {"subject": subject}).get("streams")
    if not found:
        raise NotFound(
            f"{connection.access.place}: no stream takes {subject!r}; make one, or name another subject"
        )
    return named_stream(connection, found[0])
