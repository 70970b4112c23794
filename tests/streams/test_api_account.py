"""An account over a store: limits and reservations, overlap, isolation, recovery, streams that cannot be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.streams.limits import AccountLimits, ServerFacts
from tests.support.model import Client, Model

LIMITED = AccountLimits(
    max_memory=5000, max_storage=20_000, max_streams=2, max_consumers=2, max_ack_pending=50
)


def create(client: Client, name: str, **config: Any) -> int:
    """Make a stream; 0, or the number of the error."""
    return client.api(f"STREAM.CREATE.{name}", {"name": name, **config}).get("error", {}).get("err_code", 0)


def update(client: Client, name: str, **config: Any) -> int:
    return client.api(f"STREAM.UPDATE.{name}", {"name": name, **config}).get("error", {}).get("err_code", 0)


def consume(client: Client, stream: str, name: str, **config: Any) -> int:
    body = {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit", **config}}
    return client.api(f"CONSUMER.CREATE.{stream}.{name}", body).get("error", {}).get("err_code", 0)


def test_limits_of_an_account(tmp_path: Path) -> None:
    with Model(tmp_path, limits={"A": LIMITED}) as model:
        client = model.client("A")
        assert create(client, "S1", max_bytes=15_000) == 0
        assert create(client, "S2", max_bytes=6000) == 10047, "reserved by S1"
        assert create(client, "S2", max_bytes=5001, storage="memory") == 10028
        assert create(client, "S2", max_bytes=5000, storage="memory") == 0
        assert create(client, "S3") == 10027
        assert update(client, "S1", max_bytes=20_001) == 10047
        assert update(client, "S1", max_bytes=20_000) == 0
        assert update(client, "S1", max_consumers=10) == 10026
        assert update(client, "S1") == 0
        info = client.api("INFO")
        assert (info["reserved_memory"], info["reserved_storage"], info["streams"]) == (5000, 0, 2)
        assert [consume(client, "S1", name) for name in "xyz"] == [0, 0, 10026]
        assert consume(client, "S1", "x", max_ack_pending=51) == 10121
        answers = [client.request("S1", b"x" * 1000) for _ in range(30)]
        bodies = [answer.json() for answer in answers if answer is not None]
        assert bodies[-1]["error"]["err_code"] == 10002
        assert 15_000 < client.api("INFO")["storage"] <= 20_000


def test_limits_of_single_streams(tmp_path: Path) -> None:
    limits = AccountLimits(
        memory_max_stream_bytes=500, storage_max_stream_bytes=1000, max_bytes_required=True
    )
    with Model(tmp_path, limits={"$G": limits}) as model:
        client = model.client()
        assert create(client, "B") == 10113
        assert create(client, "B", max_bytes=1001) == 10122
        assert create(client, "B", max_bytes=501, storage="memory") == 10122
        assert create(client, "B", max_bytes=1000) == 0
        assert update(client, "B") == 10113


def test_limits_of_the_server_hold_for_all_accounts(tmp_path: Path) -> None:
    facts = ServerFacts(
        max_storage=10_000, max_ack_pending=500, max_request_batch=50, duplicate_window_ns=60 * 10**9
    )
    with Model(tmp_path, facts=facts, limits={"A": AccountLimits(), "B": AccountLimits()}) as model:
        one, other = model.client("A"), model.client("B")
        assert create(one, "S", max_bytes=9000) == 0
        assert create(other, "S", max_bytes=2000) == 10047
        assert create(other, "S", duplicate_window=61 * 10**9) == 10052
        assert create(other, "S") == 0
        assert other.api("STREAM.INFO.S")["config"]["duplicate_window"] == 60 * 10**9
        assert consume(other, "S", "c", max_ack_pending=501) == 10121
        assert consume(other, "S", "c", max_batch=51) == 10125
        config = other.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"ack_policy": "all"}})[
            "config"
        ]
        assert (config["max_ack_pending"], config["max_batch"]) == (500, 50)


def test_what_is_not_served_is_not_taken(tmp_path: Path) -> None:
    with Model(tmp_path, facts=ServerFacts(level=1)) as model:
        client = model.client()
        assert create(client, "S", allow_msg_counter=True) == 10185
        assert create(client, "S", mirror={"name": "X"}) == 10052
        assert create(client, "S", allow_msg_ttl=True) == 0
        assert client.api("INFO")["api"]["level"] == 1


def test_accounts_do_not_see_each_other(tmp_path: Path) -> None:
    with Model(tmp_path, limits={"A": AccountLimits(), "B": AccountLimits()}) as model:
        model.service.add_without_jetstream("C")
        one, other = model.client("A"), model.client("B")
        assert create(one, "S", subjects=["s.>"]) == 0
        assert create(other, "S", subjects=["s.*"]) == 0, "no overlap across accounts"
        assert one.request("s.1", b"x").json() == {"stream": "S", "seq": 1}
        assert other.api("STREAM.INFO.S")["state"]["messages"] == 0
        assert create(one, "T", subjects=["s.1"]) == 10065
        assert model.client("C").api("INFO")["error"]["err_code"] == 10039


def test_streams_and_consumers_come_back(tmp_path: Path) -> None:
    with Model(tmp_path, limits={"$G": AccountLimits(), "A": AccountLimits()}) as model:
        for name in ("$G", "A"):
            client = model.client(name)
            assert create(client, "S", subjects=["s.>"], allow_direct=True) == 0
            assert create(client, "M", storage="memory") == 0
            assert consume(client, "S", "c") == 0
            client.request("s.1", name.encode())
    with Model(tmp_path, limits={"$G": AccountLimits(), "A": AccountLimits()}) as model:
        for name in ("$G", "A"):
            client = model.client(name)
            assert client.api("STREAM.NAMES")["streams"] == ["S"], "memory is gone"
            assert client.api("CONSUMER.NAMES.S")["consumers"] == ["c"]
            found = client.request("$JS.API.DIRECT.GET.S", b'{"seq":1}')
            assert found is not None and found.data == name.encode()


def test_a_stream_that_cannot_be_opened_is_offline_not_fatal(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        assert [create(client, name) for name in ("GOOD", "BAD")] == [0, 0]
    (tmp_path / "jetstream" / "$G" / "streams" / "BAD" / "meta.inf").write_bytes(b"garbage")
    with Model(tmp_path) as model:
        client = model.client()
        assert client.api("STREAM.NAMES")["streams"] == ["GOOD"]
        assert list(client.api("STREAM.LIST")["offline"]) == ["BAD"]
        assert client.api("STREAM.INFO.BAD")["error"]["err_code"] == 10194
        assert create(client, "BAD") == 10194, "the name stays taken: nothing is overwritten"
        assert client.api("STREAM.DELETE.BAD") == client.api("STREAM.DELETE.GOOD")
        assert create(client, "BAD") == 0


def test_a_failure_of_ours_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model(tmp_path) as model:
        client = model.client()

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("oops")

        monkeypatch.setattr(model.account(), "apply_defaults", broken)
        assert create(client, "S") == 10051
        monkeypatch.undo()
        monkeypatch.setattr(model.account(), "_factory", broken)
        assert create(client, "S") == 10049
        monkeypatch.undo()
        assert create(client, "S") == 0, "nothing was left of the first attempt"


def test_calls_are_counted_and_paged(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        for number in range(300):
            assert create(client, f"S{number:04}", storage="memory") == 0
        first, second = client.api("STREAM.LIST"), client.api("STREAM.LIST", {"offset": 256})
        assert (first["total"], first["limit"], len(first["streams"])) == (300, 256, 256)
        assert [each["config"]["name"] for each in second["streams"]] == [f"S{n:04}" for n in range(256, 300)]
        assert create(client, "S", max_age=5) == 10052
        assert client.api("INFO")["api"] == {"level": 5, "total": 303, "errors": 1}
