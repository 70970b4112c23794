"""The JetStream API: from a subject below `$JS.API.` to an endpoint, and from what it says to an answer.

    api.handle(account, "$JS.API.STREAM.INFO.ORDERS", b"", None, client) → bytes
    … → Durable, Later        an answer for later: calls.py
    … → None                  nothing is said: an endpoint that nobody knows, as with nats-server

Endpoints live in `streams.py`, `consumers.py`, `messages.py`; those of `producers.py` are ours, below
`$HEADRACE.API.`. What needs a cluster answers what a single
nats-server answers. DIRECT.GET and CONSUMER.MSG.NEXT are not here: who serves them listens for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from headrace.streams.account import JsAccount
from headrace.streams.api import consumers as api_consumers
from headrace.streams.api import messages as api_messages
from headrace.streams.api import producers as api_producers
from headrace.streams.api import snapshots
from headrace.streams.api import streams as api_streams
from headrace.streams.api.advisories import Advisories, Ids
from headrace.streams.api.call_queue import WHOLE, Key, own_part
from headrace.streams.api.calls import Call, Durable, Fields, Later, Outcome
from headrace.streams.api.types import answer, refusal
from headrace.streams.errors import ApiError, api_error
from headrace.streams.headers import header_value
from headrace.streams.limits import ServerFacts
from headrace.streams.stream.stream import Stream

LOG = logging.getLogger("headrace.streams")
PREFIX = "$JS.API."
LEVEL_HEADER = b"Nats-Required-Api-Level"
# Audited by nats-server: everything but these, when they say yes.
_UNHEARD = frozenset({"stream_msg_get", "consumer_reset"})

Endpoint = Callable[["Api", Call], Outcome]


class Api:
    """The endpoints of one server."""

    def __init__(self, facts: ServerFacts, advisories: Advisories) -> None:
        self.facts, self.advisories, self.ids = facts, advisories, Ids()

    def handle(
        self,
        account: JsAccount | None,
        subject: str,
        payload: bytes,
        headers: bytes | None,
        client: Mapping[str, Any],
    ) -> bytes | Durable | Later | None:
        """Serve one request. `account` is None where the account has no JetStream."""
        found = find_endpoint(subject)
        if found is None:
            return None
        kind, endpoint, args = found
        if account is None:
            return refusal(kind, api_error("JSNotEnabledForAccountErr"))
        call = Call(account, subject, args, payload, client)
        try:
            if headers is not None:
                self._check_level(headers)
            outcome = endpoint(self, call)
        except ApiError as error:
            return self._refuse(kind, call, error)
        except Exception as problem:  # a mistake of ours must not leave the client waiting
            LOG.exception("%s failed", subject)
            return self._refuse(kind, call, api_error("JSStreamGeneralErrorF", err=problem))
        return None if outcome is None else self._wrap(kind, call, outcome)

    def _check_level(self, headers: bytes) -> None:
        if not level_is_served(headers, self.facts.level):
            raise api_error("JSRequiredApiLevelErr")

    def _wrap(self, kind: str, call: Call, outcome: Fields | Durable | Later) -> bytes | Durable | Later:
        if isinstance(outcome, Durable):
            said = self._accept(kind, call, outcome.answer)
            return replace(outcome, answer=said, refused=partial(self._not_durable, kind))
        if isinstance(outcome, Later):
            return replace(outcome, finish=self._finisher(kind, call, outcome.finish))
        return self._accept(kind, call, outcome)

    def _finisher(self, kind: str, call: Call, finish: Callable[[Any], Fields]) -> Callable[[Any], bytes]:
        def finished(result: Any) -> bytes:
            try:
                return self._accept(kind, call, finish(result))
            except ApiError as error:
                return self._refuse(kind, call, error)
            except Exception as problem:  # a mistake of ours must not leave the client waiting
                LOG.exception("%s failed", call.subject)
                return self._refuse(kind, call, api_error("JSStreamGeneralErrorF", err=problem))

        return finished

    def _accept(self, kind: str, call: Call, fields: Fields) -> bytes:
        said = answer(kind, fields)
        call.account.api_total += 1
        if kind not in _UNHEARD:
            self._audit(call, said)
        return said

    def _refuse(self, kind: str, call: Call, error: ApiError) -> bytes:
        said = refusal(kind, error)
        call.account.api_total += 1
        call.account.api_errors += 1
        self._audit(call, said)
        return said

    def _not_durable(self, kind: str, error: Exception) -> bytes:
        return refusal(kind, api_error("JSStreamGeneralErrorF", err=error))

    def _audit(self, call: Call, said: bytes) -> None:
        self.advisories.audit(call.account, call.client, call.subject, call.payload, said)


def level_is_served(headers: bytes, level: int) -> bool:
    """Whether a request's `Nats-Required-Api-Level` is one of ours; what is not a number is not."""
    required = header_value(headers, LEVEL_HEADER)
    if not required:
        return True
    try:
        return int(required) <= level
    except ValueError:
        return False


def _needs_cluster(api: Api, call: Call) -> Outcome:
    raise api_error("JSClusterRequiredErr")


# Endpoint → kind of its answer, function, how many tokens follow (None: at least two).
_ROUTES: dict[str, list[tuple[str, Endpoint, int | None]]] = {
    "INFO": [("account_info", api_streams.account_info, 0)],
    "STREAM.CREATE": [("stream_create", api_streams.create, 1)],
    "STREAM.UPDATE": [("stream_update", api_streams.update, 1)],
    "STREAM.NAMES": [("stream_names", api_streams.names, 0)],
    "STREAM.LIST": [("stream_list", api_streams.listing, 0)],
    "STREAM.INFO": [("stream_info", api_streams.info, 1)],
    "STREAM.DELETE": [("stream_delete", api_streams.delete, 1)],
    "STREAM.PURGE": [("stream_purge", api_streams.purge, 1)],
    "STREAM.MSG.GET": [("stream_msg_get", api_messages.get, 1)],
    "STREAM.MSG.DELETE": [("stream_msg_delete", api_messages.delete, 1)],
    "STREAM.SNAPSHOT": [("stream_snapshot", snapshots.snapshot, 1)],
    "STREAM.RESTORE": [("stream_restore", snapshots.restore, 1)],
    "CONSUMER.CREATE": [
        ("consumer_create", api_consumers.create_ephemeral, 1),
        ("consumer_create", api_consumers.create_named, None),
    ],
    "CONSUMER.DURABLE.CREATE": [("consumer_create", api_consumers.create_durable, 2)],
    "CONSUMER.NAMES": [("consumer_names", api_consumers.names, 1)],
    "CONSUMER.LIST": [("consumer_list", api_consumers.listing, 1)],
    "CONSUMER.INFO": [("consumer_info", api_consumers.info, 2)],
    "CONSUMER.DELETE": [("consumer_delete", api_consumers.delete, 2)],
    "CONSUMER.PAUSE": [("consumer_pause", api_consumers.pause, 2)],
    "CONSUMER.UNPIN": [("consumer_unpin", api_consumers.unpin, 2)],
    "CONSUMER.RESET": [("consumer_reset", api_consumers.reset, 2)],
    "PRODUCER.INFO": [("producer_info", api_producers.info, 1)],
    "PRODUCER.SETTLE": [("producer_settle", api_producers.raise_floor, 1)],
    "PRODUCER.DELETE": [("producer_delete", api_producers.delete, 1)],
    "STREAM.PEER.REMOVE": [("stream_remove_peer", _needs_cluster, 1)],
    "STREAM.PEER.EVACUATE": [("stream_evacuate_peer", _needs_cluster, 1)],
    "STREAM.LEADER.STEPDOWN": [("stream_leader_stepdown", _needs_cluster, 1)],
    "STREAM.CANCEL_MOVE": [("stream_cancel_move", _needs_cluster, 1)],
    "CONSUMER.LEADER.STEPDOWN": [("consumer_leader_stepdown", _needs_cluster, 2)],
    "CONSUMER.PEER.REMOVE": [("consumer_remove_peer", _needs_cluster, 2)],
    "CONSUMER.PEER.EVACUATE": [("consumer_evacuate_peer", _needs_cluster, 2)],
}
_HEAD_TOKENS_MAX = 3
# What changes a stream as a whole, and what changes nothing; everything else changes a part of a stream.
_WHOLE = frozenset({"stream_create", "stream_update", "stream_delete", "stream_restore"})
_READS = frozenset(
    {
        *("stream_info", "stream_msg_get", "stream_snapshot"),
        *("consumer_names", "consumer_list", "consumer_info", "producer_info"),
    }
)


def key_of(account: JsAccount, subject: str) -> Key | None:
    """What a call may have to wait for (`CallQueue`); None for nothing. Who only looks at something waits only while
    that is being made."""
    found = find_endpoint(subject)
    if found is None or not found[2]:
        return None
    kind, _, (stream, *rest) = found
    if kind in _WHOLE:
        return stream, WHOLE
    part = rest[0] if rest and kind.startswith("consumer") else own_part()
    if kind in _READS:
        known = account.streams.get(stream)
        missing = known is None or (rest and kind == "consumer_info" and rest[0] not in known.consumers)
        return (stream, part) if missing else None
    return stream, part


def stream_of(account: JsAccount, subject: str) -> Stream | None:
    """The stream that a call is about, if it is there."""
    found = find_endpoint(subject)
    return account.streams.get(found[2][0]) if found is not None and found[2] else None


@lru_cache(maxsize=4096)
def find_endpoint(subject: str) -> tuple[str, Endpoint, tuple[str, ...]] | None:
    """(kind of answer, function, further tokens) for a subject below `$JS.API.` or `$JS.<domain>.API.`."""
    tokens = subject.split(".")
    begin = 2 if tokens[1:2] == ["API"] else 3
    tokens = tokens[begin:]
    for count in range(min(_HEAD_TOKENS_MAX, len(tokens)), 0, -1):
        args = tuple(tokens[count:])
        for kind, endpoint, wanted in _ROUTES.get(".".join(tokens[:count]), ()):
            if len(args) == wanted or (wanted is None and len(args) > 1):
                return kind, endpoint, args
    return None
