"""The pages over HTTP: nats-server's fields, paging and sorting, health, metrics; only on loopback unless told."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.errors import BadInput
from headrace.server.config.options import MonitorOptions
from headrace.server.http.serve import Monitor
from headrace.server.reports.form import short_duration, uptime
from headrace.server.view import HealthFinding
from tests.server.fake_view import CONSUMERS, ID, FakeView, S
from tests.support.jsapi import Api
from tests.support.peers import NatsServer, free_port

ANSWER_S = 10
LABELS = ("account", "stream", "consumer")


@contextmanager
def monitored(view: FakeView, options: MonitorOptions) -> Iterator[str]:
    """The HTTP port on a loop of its own thread."""
    ready, over, urls = Event(), Event(), list[str]()

    async def live() -> None:
        monitor = Monitor(view, options)
        await monitor.start()
        urls.append(f"http://127.0.0.1:{monitor.port}{options.base_path}")
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.02)
        await monitor.stop()

    thread = Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert ready.wait(ANSWER_S)
    try:
        yield urls[0]
    finally:
        over.set()
        thread.join(ANSWER_S)


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
def url(view: FakeView) -> Iterator[str]:
    with monitored(view, MonitorOptions(-1)) as found:
        yield found


def fetch(url: str, page: str) -> tuple[int, str, str]:
    """(status, content type, body)"""
    try:
        with urllib.request.urlopen(f"{url}/{page}", timeout=ANSWER_S) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def page(url: str, name: str) -> Any:
    status, kind, body = fetch(url, name)
    assert (status, kind) == (200, "application/json"), body
    return json.loads(body)


def test_varz(url: str) -> None:
    page(url, "varz")
    found = page(url, "varz")
    assert (found["server_id"], found["version"], found["headrace"]) == (ID, "2.15.2", "0.1.0")
    assert found["uptime"].endswith("s") and found["mem"] > 1 << 20 and found["cpu"] >= 0
    assert (found["connections"], found["total_connections"], found["in_msgs"], found["out_bytes"]) == (
        3,
        6,
        18,
        3522,
    )
    assert (found["slow_consumers"], found["subscriptions"]) == (1, 3)
    assert found["http_req_stats"] == {"/varz": 2}
    js = found["jetstream"]
    assert js["config"]["store_dir"] == "/data/jetstream" and js["config"]["sync_always"] is True
    assert js["stats"]["api"] == {"level": 5, "total": 6, "errors": 1}


def test_connz_sorts_pages_and_filters(url: str) -> None:
    def cids(query: str) -> list[int]:
        return [connection["cid"] for connection in page(url, f"connz?{query}")["connections"]]

    assert cids("") == [5, 7, 9]
    assert cids("limit=1&offset=1") == [7]
    assert cids("sort=pending") == [9, 5, 7] and cids("sort=bytes_from")[0] == 9
    assert cids("acc=A") == [5] and cids("user=bob&auth=1") == [9] and cids("cid=7") == [7]
    assert cids("state=closed") == [2] and cids("state=any") == [2, 5, 7, 9]
    assert cids("state=closed&sort=stop") == [2]
    found = page(url, "connz?subs=detail&auth=1&limit=1")
    assert (found["num_connections"], found["total"], found["limit"]) == (1, 3, 1)
    first = found["connections"][0]
    assert (first["rtt"], first["authorized_user"], first["account"]) == ("473µs", "ann", "A")
    assert first["subscriptions_list_detail"][0] == {
        "subject": "foo.>",
        "qgroup": "q",
        "sid": "1",
        "msgs": 0,
        "cid": 5,
    }
    assert page(url, "connz?subs=1")["connections"][0]["subscriptions_list"] == ["foo.>", "bar"]
    assert page(url, "connz?state=closed")["connections"][0]["reason"] == "Client Closed"
    for wrong in ("sort=nope", "limit=x", "state=nope", "sort=stop", "offset=" + "9" * 30):
        assert fetch(url, f"connz?{wrong}")[0] == 400


def test_jsz_has_the_details_that_were_requested(url: str, view: FakeView) -> None:
    found = page(url, "jsz")
    assert (found["streams"], found["consumers"], found["messages"], found["total"]) == (2, 3, 20, 2)
    assert "account_details" not in found
    accounts = page(url, "jsz?accounts=1")["account_details"]
    assert [account["name"] for account in accounts] == ["A", "B"]
    assert "stream_detail" not in accounts[0]
    assert (accounts[0]["reserved_memory"], accounts[1]["reserved_memory"]) == ((1 << 64) - 1, 10 << 20)
    assert [
        account["name"] for account in page(url, "jsz?accounts=1&limit=1&offset=1")["account_details"]
    ] == ["B"]
    stream = page(url, "jsz?acc=A&consumers=true&config=true")["account_details"][0]["stream_detail"][0]
    assert stream["config"] == {"name": "S"} and stream["cluster"] == {"leader": "fake"}
    assert stream["consumer_detail"] == CONSUMERS
    assert (
        "config"
        not in page(url, "jsz?consumers=1")["account_details"][0]["stream_detail"][0]["consumer_detail"][0]
    )
    view.has_jetstream = False
    assert page(url, "jsz")["disabled"] is True


def test_accounts_and_subscriptions(url: str) -> None:
    assert page(url, "accountz")["accounts"] == ["$G", "A", "B", "$SYS"]
    detail = page(url, "accountz?acc=A")["account_detail"]
    assert (detail["client_connections"], detail["jetstream_enabled"]) == (1, True)
    assert fetch(url, "accountz?acc=X")[::2] == (400, "Account X does not exist")
    assert [each["acc"] for each in page(url, "accstatz")["account_statz"]] == ["A", "B", "$SYS"]
    assert len(page(url, "accstatz?unused=1")["account_statz"]) == 4
    assert page(url, "subsz")["num_subscriptions"] == 3 and "subscriptions_list" not in page(url, "subsz")
    found = page(url, "subsz?subs=1&acc=A&limit=1")
    assert found["total"] == 2 and found["subscriptions_list"][0]["subject"] == "foo.>"
    assert [each["subject"] for each in page(url, "subsz?test=foo.1")["subscriptions_list"]] == ["foo.>"]


def test_health(url: str, view: FakeView) -> None:
    def health(query: str = "") -> tuple[int, Any]:
        status, _, body = fetch(url, f"healthz?{query}")
        return status, json.loads(body)

    assert health() == (200, {"status": "ok"})
    assert health("account=A&stream=S&consumer=C") == (200, {"status": "ok"})
    for query, code, text in (
        ("account=Q", 404, 'JetStream account "Q" not found'),
        ("account=A&stream=Q", 404, 'JetStream stream "Q" not found on account "A"'),
        (
            "account=A&stream=S&consumer=X",
            404,
            'JetStream consumer "X" not found for stream "S" on account "A"',
        ),
        ("stream=S", 400, '"account" must not be empty when checking stream health'),
    ):
        assert health(query) == (code, {"status": "error" if code == 400 else "unavailable", "error": text})
    view.trouble = [HealthFinding("STREAM", "one record is damaged", "A", "S", is_fatal=False)]
    damage = [{"type": "STREAM", "account": "A", "stream": "S", "error": "one record is damaged"}]
    assert health() == (200, {"status": "ok", "damage": damage})
    view.trouble = [HealthFinding("STREAM", "a sync failed", "A", "S")]
    assert health() == (503, {"status": "unavailable", "error": "a sync failed"})
    assert health("account=A&stream=T")[0] == 200
    assert health("js-enabled-only=true")[0] == 200
    error = {"type": "STREAM", "account": "A", "stream": "S", "error": "a sync failed"}
    assert health("details=true") == (503, {"status": "error", "errors": [error]})


def test_metrics_sum_ephemeral_consumers(url: str) -> None:
    status, kind, body = fetch(url, "metrics")
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    values = {
        (sample.name, tuple(sample.labels[key] for key in LABELS if key in sample.labels)): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    assert values["headrace_consumer_pending", ("A", "S", "C")] == 9
    assert values["headrace_consumer_pending", ("A", "S", "*")] == 9
    assert values["headrace_consumer_waiting", ("A", "S", "*")] == 6
    assert values["headrace_consumer_ack_floor_seq", ("A", "S", "C")] == 5
    assert not [key for key in values if "e1" in key[1]]
    assert ("headrace_consumer_ack_floor_seq", ("A", "S", "*")) not in values
    assert values["headrace_stream_messages", ("A", "T")] == 10
    assert values["headrace_in_messages_total", ()] == 18 and values["headrace_healthy", ()] == 1
    assert values["headrace_account_out_bytes_total", ("A",)] == 20
    assert values["headrace_jetstream_max_storage_bytes", ()] == 1 << 30


def test_an_index_below_a_base_path(view: FakeView) -> None:
    with monitored(view, MonitorOptions(-1, base_path="/nats")) as url:
        assert 'href="/nats/varz"' in fetch(url, "")[2]
        assert page(url, "varz")["server_id"] == ID
        assert fetch(url.removesuffix("/nats"), "varz")[0] == 404
        assert fetch(url, "../../etc/passwd")[0] == 404


def test_a_taken_port_is_reported(view: FakeView) -> None:
    message = r"cannot listen on 127\.0\.0\.1:\d+ for monitoring: Address already in use"
    with monitored(view, MonitorOptions(-1)) as url, pytest.raises(BadInput, match=message):
        Monitor(view, MonitorOptions(int(url.rpartition(":")[2])))


def test_durations_look_like_gos() -> None:
    assert [uptime(0, s * S) for s in (0, 59, 61, 3600, 90_061, 400 * 86_400)] == [
        "0s", "59s", "1m1s", "1h0m0s", "1d1h1m1s", "1y35d0h0m0s",
    ]  # fmt: skip
    assert [short_duration(ns) for ns in (7, 473_000, 1_250_000, 2 * S)] == ["7ns", "473µs", "1.25ms", "2s"]


# What nats-server has and a single process of ours has no use for.
ONLY_THEIRS = {
    "varz": {"feature_flags", "disk_io_wait_stats"},
    "accountz?acc=A": {"account_detail.mappings", "account_detail.imports"},
}


def keys(document: Any, prefix: str = "") -> set[str]:
    """All paths of a document; an array counts as its first entry."""
    if isinstance(document, list):
        return keys(document[0], prefix) if document else set()
    if not isinstance(document, dict):
        return set()
    found: set[str] = set()
    for key, value in document.items():
        found |= {f"{prefix}{key}"} | keys(value, f"{prefix}{key}.")
    return found


def test_fields_are_nats_servers(url: str, tmp_path: Path) -> None:
    port = free_port()
    config = (
        f"http: 127.0.0.1:{port}\nserver_name: real\nserver_tags: [blue]\n"
        "accounts { A { jetstream: enabled, users: [{user: a, password: a}] } }\nno_auth_user: a\n"
    )
    jetstream = "domain: hub, sync_interval: always"
    with NatsServer("2.15.2", tmp_path / "js", config, jetstream) as server, Api(server.url) as api:
        api.run(api.client.subscribe("foo.>", queue="q"))
        api.create(StreamConfig(name="S", subjects=("s.>",)))
        api.consumer("S", ConsumerConfig(durable_name="C", ack_policy="explicit"))
        api.publish("s.1", b"x")
        for name in (
            "varz", "connz?subs=detail&auth=1", "connz?subs=1", "subsz?subs=1&acc=A", "jsz",
            "jsz?acc=A&consumers=1&config=1", "accountz", "accountz?acc=A", "accstatz", "routez", "leafz", "gatewayz",
        ):  # fmt: skip
            theirs = keys(page(f"http://127.0.0.1:{port}", name))
            # The configuration of streams and consumers is the API's own document.
            theirs = {key for key in theirs if "_detail.config." not in key}
            gone = {key for key in theirs for only in ONLY_THEIRS.get(name, ()) if key.startswith(only)}
            missing = theirs - gone - keys(page(url, name))
            assert not missing, f"/{name} lacks {sorted(missing)}"
