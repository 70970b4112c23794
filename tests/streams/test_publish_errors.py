"""A publish with more than one thing wrong gets the answer that nats-server gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

from tests.streams.test_in_batch import (
    ELSEWHERE,
    ID,
    LAST,
    LAST_HERE,
    LAST_ID,
    ROLLUP,
    STREAM,
    TTL,
    Server,
    pub,
    short,
)
from tests.support.peers import NatsServer
from tests.support.rawclient import RawClient

ERRORS: dict[str, dict[str, object]] = {
    "another stream": {STREAM: "other"},
    "last": {LAST: 7},
    "last, empty": {LAST: ""},
    "last here": {LAST_HERE: 7},
    "last here, empty": {LAST_HERE: ""},
    "elsewhere": {ELSEWHERE: "s.b"},
    "elsewhere, empty": {ELSEWHERE: ""},
    "duplicate": {ID: "x"},
    "last id": {LAST_ID: "z"},
    "last id, empty": {LAST_ID: ""},
    "rollup": {ROLLUP: "sub"},
    "rollup, bad": {ROLLUP: "bad"},
    "rollup, empty": {ROLLUP: ""},
    "ttl": {TTL: "5"},
    "ttl, bad": {TTL: "bad"},
    "ttl, empty": {TTL: ""},
    "source": {"Nats_Stream_Source": "a 1"},
    "increment": {"Nats_Incr": "+1"},
    "schedule": {"Nats_Schedule": "@every 1s"},
    "schedule target": {"Nats_Schedule_Target": "s.b"},
    "batch": {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "1"},
}


def test_of_two_errors_the_same_one_wins_as_in_nats_server(nats_server: Callable[..., NatsServer]) -> None:
    """Every error alone and with every other. Not compared: a TTL that is none, where TTLs are disabled. There
    nats-server looks at it later, and says that it is invalid."""
    first = pub("s.a", **{ID: "x"})
    differ: list[str] = []
    with RawClient(nats_server("2.15.2").port) as client:

        def ask(subject: str, block: bytes | None, data: bytes) -> dict[str, Any]:
            (msg,) = client.request_many(subject, data, block)
            return msg.json()

        for name, config in {"S1": {}, "S2": {"allow_rollup_hdrs": True, "allow_msg_ttl": True}}.items():
            body = json.dumps({"name": name, "subjects": ["s.*"], "storage": "file", **config}).encode()
            assert "error" not in ask(f"$JS.API.STREAM.CREATE.{name}", None, body)
            errors = [each for error, each in ERRORS.items() if config or error != "ttl, bad"]
            pairs = [{**one, **other} for one, other in combinations(errors, 2)]
            server = Server(config, ())
            try:
                for request in [first, *[pub("s.a", **headers) for headers in [*errors, *pairs]]]:
                    theirs, ours = short(ask(*request)), server.ask([request])[0]
                    if theirs != ours:
                        differ.append(f"{config} {request[1]}: {ours}, nats-server {theirs}")
            finally:
                server.model.close()
            assert "error" not in ask(f"$JS.API.STREAM.DELETE.{name}", None, b"")
    assert not differ, "\n".join(differ)
