"""`dlq`: messages that were delivered as often as they may be, with their originals, to be tried once more.

advisories MAX_DELIVERIES and MSG_TERMINATED → (stream, seq), how often → the originals → published again with

Nats-Msg-Id               dlq:<stream>:<seq>:<attempt>   the same however often this runs
Headrace-Dlq-Attempt      which try this is, counted over republishing
Headrace-Dlq-Stream, Headrace-Dlq-Seq, Headrace-Dlq-Consumer   where it came from first
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import BadInput
from headrace.layouts.base import Predicate, Volume
from headrace.layouts.plain import plain
from headrace.ops._kernels import Batch
from headrace.ops.events import MAX_DELIVER, TERMINATED, events_log, read_events
from headrace.record import Record, format_nats_headers

ATTEMPT, STREAM, SEQ, CONSUMER = (
    "Headrace-Dlq-Attempt",
    "Headrace-Dlq-Stream",
    "Headrace-Dlq-Seq",
    "Headrace-Dlq-Consumer",
)
MESSAGE_ID = "Nats-Msg-Id"
LETTERS_MAX = 1_000_000
GROUP = 1000

OWN_SUBJECT = "{subject}"


class Resend(Protocol):
    """Publishes batches whose keys are the message ids; `origin` is the stream that the messages are of."""

    def check(self, origin: str, batch: Batch) -> None:
        """BadInput when one of them would not be taken."""
        ...

    def publish(self, origin: str, batch: Batch) -> tuple[int, int]:
        """How many were stored, and how many were there already."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that a consumer was given too often."""

    stream: str
    seq: int
    consumer: str
    deliveries: int
    reason: str
    time_ns: int


@dataclass(slots=True)
class DlqResult:
    """What was found, and what became of it."""

    source: str
    letters: list[DeadLetter] = field(default_factory=lambda: [])
    gone: list[DeadLetter] = field(default_factory=lambda: [])
    """Whose originals are no longer there."""
    spent: list[DeadLetter] = field(default_factory=lambda: [])
    """Tried as often as `attempts_max` allows."""
    republished: int = 0
    duplicates: int = 0
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def dead_letters(
    volume: Volume,
    *,
    events: str | None = None,
    stream: str | None = None,
    consumer: str | None = None,
    attempts_max: int = 3,
    resend: Resend | None = None,
    subject: str | None = None,
) -> DlqResult:
    """Find them, and publish them again where `resend` is given; on their own subjects unless `subject` says another
    (`retry.{subject}` has the own one in it). All are checked before the first is published."""
    if attempts_max < 1:
        raise BadInput(f"attempts {attempts_max}: at least 1")
    result = DlqResult(volume.path, dry_run=resend is None)
    result.letters = _letters(volume, events, stream, consumer)
    by_stream: dict[str, list[DeadLetter]] = {}
    for letter in result.letters:
        by_stream.setdefault(letter.stream, []).append(letter)
    if resend is not None:
        for name, letters in by_stream.items():
            for batch in _again(volume, name, letters, attempts_max, subject, DlqResult(volume.path)):
                resend.check(name, batch)
    for name, letters in by_stream.items():
        for batch in _again(volume, name, letters, attempts_max, subject, result):
            if resend is not None:
                stored, duplicates = resend.publish(name, batch)
                result.republished += stored
                result.duplicates += duplicates
            else:
                result.republished += len(batch)
    return result


def _letters(
    volume: Volume, events: str | None, stream: str | None, consumer: str | None
) -> list[DeadLetter]:
    table: Any = read_events(events_log(volume, events), (MAX_DELIVER, TERMINATED))
    if table.num_rows > LETTERS_MAX:
        raise BadInput(
            f"{table.num_rows:,} dead letters; at most {LETTERS_MAX:,} at once: choose a --stream or a --consumer"
        )
    found: dict[tuple[str, int], DeadLetter] = {}
    for row in table.to_pylist():
        if None in (row["stream"], row["stream_seq"], row["consumer"]):
            continue
        if (stream and row["stream"] != stream) or (consumer and row["consumer"] != consumer):
            continue
        reason = "terminated" if row["kind"] == "MSG_TERMINATED" else "max_deliver"
        letter = DeadLetter(
            row["stream"], row["stream_seq"], row["consumer"], row["deliveries"] or 0, reason, row["time_ns"]
        )
        found[(letter.stream, letter.seq)] = letter
    return [found[key] for key in sorted(found)]


def _again(
    volume: Volume,
    name: str,
    letters: list[DeadLetter],
    attempts_max: int,
    subject: str | None,
    result: DlqResult,
) -> Iterator[Batch]:
    if name not in volume.logs():
        result.gone += letters
        return
    log = volume.open(name)
    for start in range(0, len(letters), GROUP):
        made: list[tuple[str, bytes, bytes, bytes]] = []
        for letter in letters[start : start + GROUP]:
            want = Predicate(first=letter.seq, next=letter.seq + 1)
            found = (batch for task in log.scan_tasks(want) for batch in task.batches(want))
            original = next((record for batch in found for record in batch), None)
            if original is None:
                result.gone.append(letter)
                continue
            attempt = _attempt(original) + 1
            if attempt > attempts_max:
                result.spent.append(letter)
                continue
            made.append(_republished(letter, original, attempt, subject))
        if made:
            subjects, data, headers, ids = ([row[at] for row in made] for at in range(4))
            yield Batch.build(subjects, data, headers, keys=ids)  # type: ignore[arg-type]


def _attempt(original: Record) -> int:
    header = original.header_map.get(ATTEMPT, ["0"])[0]
    return int(header) if header.isdecimal() else 0


def _republished(
    letter: DeadLetter, original: Record, attempt: int, subject: str | None
) -> tuple[str, bytes, bytes, bytes]:
    headers = {name: values for name, values in original.header_map.items() if name != MESSAGE_ID}
    # The first home is kept: a letter that comes back is counted on, not anew.
    home = headers.setdefault(STREAM, [letter.stream])[0]
    seq = headers.setdefault(SEQ, [str(letter.seq)])[0]
    headers[CONSUMER], headers[ATTEMPT] = [letter.consumer], [str(attempt)]
    id = f"dlq:{home}:{seq}:{attempt}".encode()
    on = original.subject if subject is None else subject.replace(OWN_SUBJECT, original.subject)
    return on, original.data or b"", format_nats_headers(headers), id
