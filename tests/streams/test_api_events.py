"""Events on `$JS.EVENT.>`: what is said about streams, consumers and API calls, and that silence costs nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.api.advisories import Ids, short_id
from headrace.streams.limits import ServerFacts
from tests.support.model import Client, Model


def events(client: Client, prefix: str = "$JS.EVENT.ADVISORY.") -> list[tuple[str, dict[str, Any]]]:
    """What was heard since the last time, without the audit of the API."""
    heard = [each for each in client.take() if each.subject.startswith("$JS.EVENT.")]
    return [
        (each.subject.removeprefix(prefix), json.loads(each.data))
        for each in heard
        if not each.subject.endswith(".API")
    ]


def test_streams_and_consumers(tmp_path: Path) -> None:
    with Model(tmp_path, facts=ServerFacts(domain="hub")) as model:
        client, listener = model.client(), model.client()
        listener.subscribe("$JS.EVENT.>")
        client.api("STREAM.CREATE.S", {"name": "S"})
        client.api("STREAM.CREATE.S", {"name": "S"})
        client.api("STREAM.UPDATE.S", {"name": "S", "max_msgs": 5})
        client.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c"}})
        client.api(
            "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "description": "x"}}
        )
        client.api("CONSUMER.PAUSE.S.c", {"pause_until": "2040-01-01T00:00:00Z"})
        client.api("STREAM.DELETE.S")
        heard = events(listener)
        assert [(subject, event.get("action")) for subject, event in heard] == [
            ("STREAM.CREATED.S", "create"),
            ("STREAM.UPDATED.S", "modify"),
            ("CONSUMER.CREATED.S.c", "create"),
            ("CONSUMER.PAUSE.S.c", None),
            ("CONSUMER.DELETED.S.c", "delete"),
            ("STREAM.DELETED.S", "delete"),
        ]
        created = heard[0][1]
        assert list(created) == ["type", "id", "timestamp", "stream", "action", "domain"]
        assert created["type"] == "io.nats.jetstream.advisory.v1.stream_action" and len(created["id"]) == 22
        assert heard[3][1]["paused"] is True and heard[3][1]["pause_until"] == "2040-01-01T00:00:00Z"
        assert len({event["id"] for _, event in heard}) == len(heard)


def test_the_api_is_audited_for_who_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model(tmp_path, facts=ServerFacts(name="one")) as model:
        client, listener = model.client(), model.client()
        built: list[str] = []
        original = model.service.advisories._event  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(
            model.service.advisories, "_event", lambda *args: (built.append(args[0]), original(*args))[1]
        )
        client.api("INFO")
        assert built == [], "nobody listens: nothing is made"
        listener.subscribe("$JS.EVENT.ADVISORY.API")
        client.api("STREAM.INFO.X", b"")
        client.api("STREAM.CREATE.S", {"name": "S"})
        client.api("STREAM.MSG.GET.S", {"seq": 1})
        heard = [
            json.loads(each.data) for each in listener.take() if each.subject == "$JS.EVENT.ADVISORY.API"
        ]
        assert [event["subject"].removeprefix("$JS.API.") for event in heard] == [
            *("STREAM.INFO.X", "STREAM.CREATE.S", "STREAM.MSG.GET.S"),
        ]
        assert "request" not in heard[0] and json.loads(heard[0]["response"])["error"]["err_code"] == 10059
        assert json.loads(heard[1]["request"]) == {"name": "S"} and heard[1]["server"] == "one"


def test_a_stream_may_capture_events(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        client.api("STREAM.CREATE.E", {"name": "E", "subjects": ["$JS.EVENT.ADVISORY.STREAM.>"]})
        client.api("STREAM.CREATE.S", {"name": "S"})
        kept = client.api("STREAM.MSG.GET.E", {"last_by_subj": "$JS.EVENT.ADVISORY.STREAM.CREATED.S"})
        assert kept["message"]["subject"].endswith("CREATED.S")
        client.api("STREAM.DELETE.E")
        assert model.account().event_subjects == ()


def test_every_other_event(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        listener, account, said = model.client(), model.account(), model.service.advisories
        listener.subscribe("$JS.EVENT.>")
        said.max_deliveries(account, "S", "c", 7, 3)
        said.naked(account, "S", "c", 9, 7, 1)
        said.terminated(account, "S", "c", 9, 7, 1, "bad data")
        said.pinned(account, "S", "c", "g", "id1")
        said.unpinned(account, "S", "c", "g", "timeout")
        said.batch_abandoned(account, "S", "b", "timeout")
        said.ack_sampled(account, "S", "c", 9, 7, 1500, 1)
        model.run()
        heard = events(listener, "$JS.EVENT.")
        assert [subject for subject, _ in heard] == [
            *("ADVISORY.CONSUMER.MAX_DELIVERIES.S.c", "ADVISORY.CONSUMER.MSG_NAKED.S.c"),
            *("ADVISORY.CONSUMER.MSG_TERMINATED.S.c", "ADVISORY.CONSUMER.PINNED.S.c"),
            *(
                "ADVISORY.CONSUMER.UNPINNED.S.c",
                "ADVISORY.STREAM.BATCH_ABANDONED.S",
                "METRIC.CONSUMER.ACK.S.c",
            ),
        ]
        own = [list(event)[3:] for _, event in heard]
        assert own == [
            ["stream", "consumer", "stream_seq", "deliveries"],
            ["stream", "consumer", "consumer_seq", "stream_seq", "deliveries"],
            ["stream", "consumer", "consumer_seq", "stream_seq", "deliveries", "reason"],
            ["account", "stream", "consumer", "group", "pinned_id"],
            ["account", "stream", "consumer", "group", "reason"],
            ["stream", "batch", "reason"],
            ["stream", "consumer", "consumer_seq", "stream_seq", "ack_time", "deliveries"],
        ]


def test_identifiers() -> None:
    ids = Ids()
    made = {ids.next() for _ in range(1000)}
    assert len(made) == 1000 and all(re.fullmatch(r"[0-9A-Za-z]{22}", each) for each in made)
    assert re.fullmatch(r"[0-9A-Za-z]{8}", short_id())
