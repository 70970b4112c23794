"""The system subjects: the real server's shapes, accounts that see only themselves, requests for other servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core import subject_matches
from headrace.server.auth.permissions import Permissions
from headrace.server.auth.users import Identity
from headrace.server.system import answer, subjects
from headrace.server.view import HealthFinding
from tests.server.fake_view import ID, FakeView, S
from tests.server.test_monitoring import keys
from tests.support.peers import NatsServer

SYSTEM = Identity("sys", "$SYS", None)
ANN = Identity("ann", "A", None)
# Of a process that is not alone, or of Go.
ONLY_THEIRS = (
    *(
        "server.feature_flags",
        "data.feature_flags",
        "data.disk_io_wait_stats",
        "data.mappings",
        "data.imports",
    ),
    *("data.account_detail.mappings", "data.account_detail.imports"),
)


@pytest.fixture
def view() -> FakeView:
    return FakeView()


def ask(view: FakeView, subject: str, body: Any = None, who: Identity = SYSTEM) -> Any:
    payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    found = answer(view, f"$SYS.REQ.{subject}", payload, who)
    return None if found is None else json.loads(found)


def test_user_info(view: FakeView) -> None:
    assert ask(view, "USER.INFO", who=ANN)["data"] == {"user": "ann", "account": "A", "account_name": "A"}
    limited = Permissions(("foo.>",), (), ("bar q", "_INBOX.>"), ("bar.x",), (3, 10 * S))
    assert ask(view, "USER.INFO", who=Identity("p", "$G", limited))["data"]["permissions"] == {
        "publish": {"allow": ["foo.>"]},
        "subscribe": {"allow": ["bar q", "_INBOX.>"], "deny": ["bar.x"]},
        "responses": {"max": 3, "ttl": 10 * S},
    }


def test_a_client_sees_its_own_account_only(view: FakeView) -> None:
    for subject in ("SERVER.PING.CONNZ", "ACCOUNT.PING.CONNZ"):
        found = ask(view, subject, {"acc": "B"}, who=ANN)["data"]
        assert [connection["cid"] for connection in found["connections"]] == [5]
    found = ask(view, "ACCOUNT.PING.STATZ", {"accounts": "B"}, who=ANN)["data"]["account_statz"]
    assert [each["acc"] for each in found] == ["A"]
    for subject in (
        "SERVER.PING", "SERVER.PING.VARZ", "SERVER.PING.STATSZ", f"SERVER.{ID}.VARZ", f"SERVER.{ID}.RELOAD",
        "ACCOUNT.A.INFO", "ACCOUNT.B.CONNZ", "ACCOUNT.PING.JSZ",
    ):  # fmt: skip
        assert ask(view, subject, who=ANN) is None


def test_servers(view: FakeView) -> None:
    found = ask(view, "SERVER.PING")
    assert found["server"]["id"] == ID and found["statsz"]["connections"] == 3
    assert found["statsz"]["sent"] == {"msgs": 7, "bytes": 3522}
    assert "store_dir" not in found["statsz"]["jetstream"]["config"]
    assert ask(view, "SERVER.PING.IDZ") == {"name": "fake", "host": "127.0.0.1", "id": ID}
    assert ask(view, f"SERVER.{ID}.VARZ")["data"]["server_name"] == "fake"
    page = ask(view, f"SERVER.{ID}.CONNZ", {"limit": 1, "sort": "pending", "auth": True, "state": 0})["data"]
    assert [(each["cid"], each["authorized_user"]) for each in page["connections"]] == [(9, "bob")]
    assert ask(view, "SERVER.PING.CONNZ", {"state": 1})["data"]["connections"][0]["cid"] == 2
    assert (
        ask(view, "SERVER.PING.JSZ", {"accounts": True, "limit": 1})["data"]["account_details"][0]["name"]
        == "A"
    )
    assert ask(view, "SERVER.PING.HEALTHZ")["data"] == {"status": "ok", "status_code": 200}
    view.trouble = [HealthFinding("JETSTREAM", "the disk is gone")]
    assert ask(view, "SERVER.PING.HEALTHZ")["data"]["status_code"] == 503
    assert ask(view, "SERVER.OTHER.VARZ") is None and ask(view, "SERVER.PING.NOPE") is None


def test_accounts(view: FakeView) -> None:
    assert ask(view, "ACCOUNT.A.INFO")["data"]["jetstream_enabled"] is True
    assert [each["cid"] for each in ask(view, "ACCOUNT.B.CONNZ")["data"]["connections"]] == [9]
    assert ask(view, "ACCOUNT.A.SUBSZ")["data"]["total"] == 2
    assert ask(view, "ACCOUNT.A.JSZ", {"streams": True})["data"]["stream_detail"][0]["name"] == "S"
    assert len(ask(view, "ACCOUNT.PING.STATZ")["data"]["account_statz"]) == 3
    wrong = ask(view, "ACCOUNT.NOPE.INFO")
    assert wrong["data"] is None
    assert wrong["error"] == {"code": 500, "description": "Account NOPE does not exist"}


def test_requests_for_other_servers_are_not_answered(view: FakeView) -> None:
    for meant in (
        {"server_name": "fak"},
        {"host": "127"},
        {"tags": ["blue"]},
        {"domain": "hub", "exact_match": True},
    ):
        assert ask(view, "SERVER.PING", meant) is not None
    for other in (
        {"server_name": "x"},
        {"server_name": "fak", "exact_match": True},
        {"cluster": "c"},
        {"tags": ["red"]},
    ):
        assert ask(view, "SERVER.PING", other) is None


def test_orders(view: FakeView) -> None:
    assert "error" not in ask(view, f"SERVER.{ID}.KICK", {"cid": 5}) and view.kicked == [5]
    assert "no client" in ask(view, f"SERVER.{ID}.KICK", {"cid": 6})["error"]["description"]
    assert "no cid" in ask(view, f"SERVER.{ID}.KICK", {"cid": "5"})["error"]["description"]
    assert "error" not in ask(view, f"SERVER.{ID}.RELOAD")
    view.reload_says = "s.conf:1: unknown key 'x'"
    assert ask(view, f"SERVER.{ID}.RELOAD")["error"]["description"] == view.reload_says
    assert ask(view, "SERVER.PING.KICK", {"cid": 5}) is None


def test_bad_requests_get_an_error(view: FakeView) -> None:
    for body in (b"{bad", b"[1]", b"3", b"\xff", b"[" * 10_000):
        assert ask(view, "SERVER.PING.CONNZ", body)["error"]["code"] == 400
    for body in ({"sort": "nope"}, {"limit": "x"}, {"limit": [1]}, {"cid": {}}, {"state": "x"}):
        assert ask(view, "SERVER.PING.CONNZ", body)["error"]["code"] == 500


TOKENS = st.sampled_from(
    ["SERVER", "ACCOUNT", "USER", "PING", "INFO", "CONNZ", "JSZ", ID, "A", "", "*", "STATSZ"]
)
BODIES = st.dictionaries(
    st.sampled_from(
        ["limit", "offset", "sort", "state", "cid", "acc", "tags", "server_name", "subs", "streams"]
    ),
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
)


@given(st.lists(TOKENS, max_size=4).map(".".join), BODIES)
def test_any_request_is_answered_or_not(subject: str, body: dict[str, Any]) -> None:
    for who in (SYSTEM, ANN):
        ask(FakeView(), subject, body, who)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    config = (
        "server_name: real\nserver_tags: [blue]\naccounts {\n"
        "$SYS { users: [{user: sys, password: sys}] }\n"
        "A { jetstream: enabled, users: [{user: a, password: a}] } }\n"
    )
    folder: Path = tmp_path_factory.mktemp("real")
    with NatsServer("2.15.2", folder / "js", config, "domain: hub, sync_interval: always") as server:
        yield server


def test_shapes_are_nats_servers(real: NatsServer, view: FakeView) -> None:
    requests = {
        "USER.INFO": None,
        "SERVER.PING": None,
        "SERVER.PING.STATSZ": None,
        "SERVER.PING.IDZ": None,
        "SERVER.PING.VARZ": None,
        "SERVER.PING.HEALTHZ": None,
        "SERVER.PING.CONNZ": {"auth": True, "subscriptions_detail": True, "acc": "A"},
        "SERVER.PING.SUBSZ": {"subscriptions": True, "account": "A", "test": "foo.1"},
        "SERVER.PING.JSZ": {"accounts": True},
        "SERVER.PING.ACCOUNTZ": {"account": "A"},
        "SERVER.PING.ROUTEZ": None,
        "SERVER.PING.LEAFZ": None,
        "SERVER.PING.GATEWAYZ": None,
        "SERVER.PING.RAFTZ": None,
        "ACCOUNT.A.INFO": None,
        "ACCOUNT.A.CONNZ": None,
        "ACCOUNT.A.SUBSZ": {"test": "foo.1"},
        "ACCOUNT.A.JSZ": None,
        "ACCOUNT.A.STATZ": None,
        "ACCOUNT.A.LEAFZ": None,
        "ACCOUNT.A.CONNS": None,
        "ACCOUNT.NOPE.INFO": None,
    }

    async def theirs() -> dict[str, Any]:
        client = await nats.connect(f"nats://a:a@127.0.0.1:{real.port}", name="one")
        await client.subscribe("foo.>", queue="q")
        await client.flush()
        system = await nats.connect(f"nats://sys:sys@127.0.0.1:{real.port}")
        found: dict[str, Any] = {}
        for subject, body in requests.items():
            payload = b"" if body is None else json.dumps(body).encode()
            found[subject] = json.loads(
                (await system.request(f"$SYS.REQ.{subject}", payload, timeout=5)).data
            )
        await client.close()
        await system.close()
        return found

    for subject, document in asyncio.run(theirs()).items():
        wanted = {key for key in keys(document) if not key.startswith(ONLY_THEIRS)}
        missing = wanted - keys(ask(view, subject, requests[subject]))
        assert not missing, f"{subject} lacks {sorted(missing)}"


def test_what_is_listened_to_is_answered(view: FakeView) -> None:
    for is_system, who in ((True, SYSTEM), (False, ANN)):
        for filter in subjects(ID, is_system):
            subject = filter.replace("*", "A")
            assert subject_matches(filter, subject)
            assert answer(view, subject, b"", who) is not None, subject
