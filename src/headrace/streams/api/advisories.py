"""Events on `$JS.EVENT.>`: what happened to streams and consumers, sampled acks, and an audit of the API.

Each builder returns (subject, JSON). `Advisories.send` publishes one if somebody listens: clients, or a stream that
captures events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.randomness import random_below, random_text
from headrace.streams.api.json_writer import to_json
from headrace.streams.limits import ServerFacts
from headrace.streams.subjects import matches
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.account import JsAccount
    from headrace.streams.engine import StreamEngine

ADVISORY = "$JS.EVENT.ADVISORY."
METRIC = "$JS.EVENT.METRIC."
_TYPE = "io.nats.jetstream."
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX_LETTERS, _ID_LETTERS = 12, 22

Event = tuple[str, bytes]


class Ids:
    """Identifiers of 22 letters: a random prefix, then a counter that starts at random."""

    def __init__(self) -> None:
        self._prefix = random_text(_LETTERS, _PREFIX_LETTERS)
        self._count = random_below(len(_LETTERS) ** (_ID_LETTERS - _PREFIX_LETTERS) // 2)

    def next(self) -> str:
        """One that was not given out before."""
        self._count += 1
        rest, letters = self._count, list[str]()
        for _ in range(_ID_LETTERS - _PREFIX_LETTERS):
            rest, digit = divmod(rest, len(_LETTERS))
            letters.append(_LETTERS[digit])
        return self._prefix + "".join(reversed(letters))


def short_id(count: int = 8) -> str:
    """Random letters, as nats-server names ephemeral consumers and snapshots."""
    return random_text(_LETTERS, count)


class Advisories:
    """Builds and sends events of one server."""

    def __init__(self, engine: StreamEngine, facts: ServerFacts) -> None:
        self._engine, self._facts, self._ids = engine, facts, Ids()

    # Sending

    def wanted(self, account: JsAccount, subject: str) -> bool:
        """Whether somebody would get an event on that subject."""
        if self._engine.exchange.interest(account.id, subject, None):
            return True
        return any(matches(each, subject) for each in account.event_subjects)

    def send(self, account: JsAccount, subject: str, build: Callable[[], Event]) -> None:
        """Build and publish, if somebody listens."""
        if self.wanted(account, subject):
            named, body = build()
            self._engine.exchange.publish(account.id, named.encode(), None, None, body)

    def _event(self, subject: str, kind: str, fields: Mapping[str, Any]) -> Event:
        head = {
            "type": _TYPE + kind,
            "id": self._ids.next(),
            "timestamp": format_time_ns(self._engine.clock()),
        }
        tail = {"domain": self._facts.domain} if self._facts.domain else {}
        return subject, to_json({**head, **fields, **tail})

    # Streams

    def stream_action(self, account: JsAccount, stream: str, action: str) -> None:
        """`action`: create, delete or modify."""
        word = {"create": "CREATED", "delete": "DELETED", "modify": "UPDATED"}[action]
        subject = f"{ADVISORY}STREAM.{word}.{stream}"
        fields = {"stream": stream, "action": action}
        self.send(account, subject, lambda: self._event(subject, "advisory.v1.stream_action", fields))

    def snapshot_created(self, account: JsAccount, stream: str, state: Any, client: Any) -> None:
        """A snapshot was begun."""
        fields = {"stream": stream, "state": state, "client": client}
        self._about_stream(account, "SNAPSHOT_CREATE", "snapshot_create", stream, fields)

    def snapshot_completed(
        self, account: JsAccount, stream: str, start_ns: int, end_ns: int, client: Any, error: str = ""
    ) -> None:
        """A snapshot was sent, or its receiver went away."""
        fields = {
            "stream": stream,
            "start": format_time_ns(start_ns),
            "end": format_time_ns(end_ns),
            "client": client,
            **({"error": error} if error else {}),
        }
        self._about_stream(account, "SNAPSHOT_COMPLETE", "snapshot_complete", stream, fields)

    def restore_created(self, account: JsAccount, stream: str, client: Any) -> None:
        """A restore was begun."""
        fields = {"stream": stream, "client": client}
        self._about_stream(account, "RESTORE_CREATE", "restore_create", stream, fields)

    def restore_completed(
        self, account: JsAccount, stream: str, start_ns: int, end_ns: int, size: int, client: Any
    ) -> None:
        """A restore ended, well or not."""
        fields = {
            "stream": stream,
            "start": format_time_ns(start_ns),
            "end": format_time_ns(end_ns),
            "bytes": size,
            "client": client,
        }
        self._about_stream(account, "RESTORE_COMPLETE", "restore_complete", stream, fields)

    def batch_abandoned(self, account: JsAccount, stream: str, batch: str, reason: str) -> None:
        """An atomic batch was given up: timeout, large, incomplete, unsupported."""
        fields = {"stream": stream, "batch": batch, "reason": reason}
        self._about_stream(account, "BATCH_ABANDONED", "stream_batch_abandoned", stream, fields)

    def _about_stream(
        self, account: JsAccount, word: str, kind: str, stream: str, fields: Mapping[str, Any]
    ) -> None:
        subject = f"{ADVISORY}STREAM.{word}.{stream}"
        self.send(account, subject, lambda: self._event(subject, f"advisory.v1.{kind}", fields))

    # Consumers

    def consumer_action(self, account: JsAccount, stream: str, consumer: str, action: str) -> None:
        """`action`: create or delete."""
        word = "CREATED" if action == "create" else "DELETED"
        self._about_consumer(account, word, "consumer_action", stream, consumer, {"action": action})

    def consumer_paused(
        self, account: JsAccount, stream: str, consumer: str, *, paused: bool, until_ns: int | None
    ) -> None:
        """A consumer was paused, or goes on."""
        fields = {"paused": paused, "pause_until": format_time_ns(until_ns)}
        self._about_consumer(account, "PAUSE", "consumer_pause", stream, consumer, fields)

    def max_deliveries(
        self, account: JsAccount, stream: str, consumer: str, seq: int, deliveries: int
    ) -> None:
        """A message was delivered as often as it may be."""
        fields = {"stream_seq": seq, "deliveries": deliveries}
        self._about_consumer(account, "MAX_DELIVERIES", "max_deliver", stream, consumer, fields)

    def naked(
        self, account: JsAccount, stream: str, consumer: str, consumer_seq: int, seq: int, deliveries: int
    ) -> None:
        """A message was refused by its receiver."""
        fields = {"consumer_seq": consumer_seq, "stream_seq": seq, "deliveries": deliveries}
        self._about_consumer(account, "MSG_NAKED", "nak", stream, consumer, fields)

    def terminated(
        self,
        account: JsAccount,
        stream: str,
        consumer: str,
        consumer_seq: int,
        seq: int,
        deliveries: int,
        reason: str = "",
    ) -> None:
        """A message is not to be delivered again."""
        fields: dict[str, Any] = {
            "consumer_seq": consumer_seq,
            "stream_seq": seq,
            "deliveries": deliveries,
        }
        if reason:
            fields["reason"] = reason
        self._about_consumer(account, "MSG_TERMINATED", "terminated", stream, consumer, fields)

    def pinned(self, account: JsAccount, stream: str, consumer: str, group: str, pinned_id: str) -> None:
        """A client of a priority group was chosen."""
        fields = {"group": group, "pinned_id": pinned_id}
        self._about_consumer(account, "PINNED", "consumer_group_pinned", stream, consumer, fields, named=True)

    def unpinned(self, account: JsAccount, stream: str, consumer: str, group: str, reason: str) -> None:
        """… and is not any more. `reason`: admin or timeout."""
        fields = {"group": group, "reason": reason}
        self._about_consumer(
            account, "UNPINNED", "consumer_group_unpinned", stream, consumer, fields, named=True
        )

    def _about_consumer(
        self,
        account: JsAccount,
        word: str,
        kind: str,
        stream: str,
        consumer: str,
        fields: Mapping[str, Any],
        *,
        named: bool = False,
    ) -> None:
        subject = f"{ADVISORY}CONSUMER.{word}.{stream}.{consumer}"
        who = {"account": account.name} if named else {}
        whole = {**who, "stream": stream, "consumer": consumer, **fields}
        self.send(account, subject, lambda: self._event(subject, f"advisory.v1.{kind}", whole))

    def ack_sampled(
        self,
        account: JsAccount,
        stream: str,
        consumer: str,
        consumer_seq: int,
        seq: int,
        ack_time_ns: int,
        deliveries: int,
    ) -> None:
        """A sampled acknowledgement and how long it took."""
        subject = f"{METRIC}CONSUMER.ACK.{stream}.{consumer}"
        fields = {
            "stream": stream,
            "consumer": consumer,
            "consumer_seq": consumer_seq,
            "stream_seq": seq,
            "ack_time": ack_time_ns,
            "deliveries": deliveries,
        }
        self.send(account, subject, lambda: self._event(subject, "metric.v1.consumer_ack", fields))

    # The API

    def audit(self, account: JsAccount, client: Any, subject: str, request: bytes, response: bytes) -> None:
        """One API call with its answer."""
        fields: dict[str, Any] = {"server": self._facts.name, "client": client, "subject": subject}
        if request:
            fields["request"] = request.decode("utf-8", "replace")
        fields["response"] = response.decode("utf-8", "replace")
        where = f"{ADVISORY}API"
        self.send(account, where, lambda: self._event(where, "advisory.v1.api_audit", fields))
