"""Mirrors and sources inside one server: what is taken, in what form, and that nothing is lost or taken twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DiskFault
from headrace.layouts.jetstream.store import upkeep
from headrace.record import Record
from headrace.streams._kernels import Batch
from headrace.streams.limits import ServerFacts
from headrace.streams.sourcing import origins
from tests.support.model import Client, Model

FACTS = ServerFacts(origins=True)
SECOND_NS = 1_000_000_000


def opened(place: Path, **options: Any) -> Model:
    return Model(place, facts=FACTS, **options)


@pytest.fixture(params=["interval", "sync"])
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    with opened(tmp_path, durability=request.param) as model:
        yield model


def create(client: Client, name: str, **config: Any) -> dict[str, Any]:
    answer = client.api(f"STREAM.CREATE.{name}", {"name": name, **config})
    assert "error" not in answer, answer
    return answer


def refusal(client: Client, name: str, **config: Any) -> str:
    return client.api(f"STREAM.CREATE.{name}", {"name": name, **config})["error"]["description"]


def publish(client: Client, subject: str, data: bytes = b"", **headers: str) -> None:
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items())
    answer = client.request(subject, data, f"NATS/1.0\r\n{lines}\r\n".encode() if headers else None)
    assert answer is not None and "error" not in answer.json(), answer


def info(client: Client, name: str) -> dict[str, Any]:
    return client.api(f"STREAM.INFO.{name}", {"deleted_details": True})


def run_until_idle(model: Model) -> None:
    for _ in range(20):
        model.run()


def records(model: Model, name: str) -> list[Record]:
    run_until_idle(model)
    return list(model.account().streams[name].store.read(1, 1 << 30, 1 << 40))


def taken(model: Model, name: str) -> list[tuple[int, str, bytes | None]]:
    return [(each.seq, each.subject, each.data) for each in records(model, name)]


def came_from(record: Record) -> str:
    return record.header_map["Nats-Stream-Source"][0].rpartition(" ")[0]


def test_mirror_is_the_same_with_its_holes(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a.>"])
    for number in range(8):
        publish(client, f"a.{number % 2}", b"%d" % number, Nats_Msg_Id=f"m{number}")
    for seq in (1, 3, 4):
        client.api("STREAM.MSG.DELETE.A", {"seq": seq})
    answer = create(client, "M", mirror={"name": "A"})
    assert answer["mirror"] == {"name": "A", "lag": 0, "active": -1}
    assert records(model, "M") == records(model, "A")
    state = info(client, "M")["state"]
    assert (state["first_seq"], state["last_seq"], state["deleted"]) == (2, 8, [3, 4])
    publish(client, "a.1", b"more", Nats_Expected_Last_Sequence="8")
    *_, last = records(model, "M")
    assert (last.seq, last.subject, last.data, last.headers) == (9, "a.1", b"more", None)
    shown = info(client, "M")["mirror"]
    assert shown["lag"] == 0 and 0 < shown["active"] <= SECOND_NS and "error" not in shown
    # Nothing arrives by itself, and what is removed from the mirror stays away.
    client.api("STREAM.PURGE.M")
    publish(client, "a.2", b"after")
    assert taken(model, "M") == [(10, "a.2", b"after")]


def test_consumers_of_a_mirror_of_a_mirror(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a.>"])
    create(client, "B", mirror={"name": "A", "filter_subject": "a.x"})
    create(
        client, "C", mirror={"name": "B", "subject_transforms": [{"src": "a.*", "dest": "c.{{wildcard(1)}}"}]}
    )
    config = {"durable_name": "D", "ack_policy": "none", "deliver_subject": "out"}
    client.api("CONSUMER.DURABLE.CREATE.C.D", {"stream_name": "C", "config": config})
    client.subscribe("out")
    for number in range(4):
        publish(client, f"a.{'xy'[number % 2]}", b"%d" % number)
    got = client.take()
    assert [(each.data, each.reply.split(".")[5]) for each in got] == [(b"0", "1"), (b"2", "3")]
    assert [each.subject for each in records(model, "C")] == ["c.x", "c.x"]
    assert info(client, "B")["mirror"]["filter_subject"] == "a.x"
    assert info(client, "C")["state"]["deleted"] == [2]


def test_sources_with_filters_transforms_and_starts(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a.>"])
    create(client, "B", subjects=["b"])
    for number in range(4):
        publish(client, f"a.{number % 2}.x", b"%d" % number, X="y", Nats_Expected_Stream="A")
    publish(client, "b", b"b1")
    create(
        client,
        "S",
        subjects=["own"],
        subject_transform={"src": "one.>", "dest": "moved.>"},
        sources=[
            {
                "name": "A",
                "subject_transforms": [
                    {"src": "a.0.>", "dest": "zero.>"},
                    {"src": "a.1.*", "dest": "one.{{wildcard(1)}}"},
                ],
            },
            {"name": "B"},
            {"name": "A", "filter_subject": "a.0.>", "opt_start_seq": 2},
            {"name": "LATER"},
        ],
    )
    publish(client, "own", b"mine")
    found = {came_from(each): each for each in records(model, "S") if each.headers is not None}
    shape = "a.0.>\fa.1.* zero.>\fone.{{wildcard(1)}}"
    assert {key: (each.subject, each.data) for key, each in found.items()} == {
        f"A 1 {shape} a.0.x": ("zero.x", b"0"),
        f"A 2 {shape} a.1.x": ("moved.x", b"1"),
        f"A 3 {shape} a.0.x": ("zero.x", b"2"),
        f"A 4 {shape} a.1.x": ("moved.x", b"3"),
        "B 1 > > b": ("b", b"b1"),
        "A 3 a.0.> > a.0.x": ("a.0.x", b"2"),
    }
    assert all(list(each.header_map)[-1] == "Nats-Stream-Source" for each in found.values())
    assert "Nats-Expected-Stream" not in found[f"A 1 {shape} a.0.x"].header_map
    create(client, "LATER", subjects=["later"])
    publish(client, "later", b"here")
    assert taken(model, "S")[-1] == (8, "later", b"here")
    shown = info(client, "S")["sources"]
    assert [(each["name"], each["seq"], each["lag"]) for each in shown] == [
        ("A", 4, 0),
        ("B", 1, 0),
        ("A", 3, 0),
        ("LATER", 1, 0),
    ]
    # A source of a source says where it came from last.
    create(client, "T", sources=[{"name": "S", "filter_subject": "b"}])
    assert [came_from(each) for each in records(model, "T")] == ["S 5 b > b"]
    assert records(model, "T")[0].header_map.keys() == {"Nats-Stream-Source"}


def test_start_time(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a"])
    publish(client, "a", b"old")
    start = info(client, "A")["ts"]
    publish(client, "a", b"new")
    create(client, "S", sources=[{"name": "A", "opt_start_time": start}])
    create(client, "M", mirror={"name": "A", "opt_start_time": start})
    assert [each.data for each in records(model, "S")] == [b"new"]
    assert taken(model, "M") == [(2, "a", b"new")]


@pytest.mark.parametrize("durability", ["interval", "sync"])
def test_restart_in_the_middle(tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions come back from the stream itself; after a purge or removals, from what was saved."""
    monkeypatch.setattr(origins, "MSGS_MAX", 8)
    with opened(tmp_path, durability=durability) as model:
        client = model.client()
        create(client, "A", subjects=["a.*"])
        for number in range(50):
            publish(client, f"a.{number % 2}", b"%d" % number)
        create(client, "M", mirror={"name": "A"})
        create(client, "S", sources=[{"name": "A", "filter_subject": "a.1"}, {"name": "A"}])
        model.run()
        partly = model.account().streams["M"].store.log.last_seq
        assert 0 < partly < 50
    with opened(tmp_path, durability=durability) as model:
        assert records(model, "M") == records(model, "A")
        by_source = [came_from(each).split(" ")[:3] for each in records(model, "S")]
        assert [int(seq) for _, seq, shape in by_source if shape == ">"] == [*range(1, 51)]
        assert [int(seq) for _, seq, shape in by_source if shape == "a.1"] == [*range(2, 51, 2)]
        model.client().api("STREAM.PURGE.S")
    with opened(tmp_path, durability=durability) as model:
        run_until_idle(model)
        assert taken(model, "S") == []
        publish(model.client(), "a.0", b"next")
        assert [came_from(each) for each in records(model, "S")] == ["A 51 > > a.0"]


def _free_nothing(_origin: object, _sequences: object) -> None:
    """The crash comes before that."""


def test_crash_after_messages_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions outlive the messages that told them, whichever way those went, and work queues are freed later."""
    with opened(tmp_path / "before") as model, monkeypatch.context() as patched:
        patched.setattr(origins, "_free", _free_nothing)
        client = model.client()
        create(client, "A", subjects=["a"], retention="workqueue")
        for name in ("REMOVED", "PURGED"):
            create(client, name, sources=[{"name": "A"}])
        for number in range(5):
            publish(client, "a", b"%d" % number)
        assert len(records(model, "REMOVED")) == len(records(model, "PURGED")) == 5
        for seq in range(1, 6):
            client.api("STREAM.MSG.DELETE.REMOVED", {"seq": seq, "no_erase": True})
        client.api("STREAM.PURGE.PURGED")
        assert len(records(model, "A")) == 5
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    with opened(tmp_path / "after") as model:
        assert records(model, "A") == []
        publish(model.client(), "a", b"next")
        for name in ("REMOVED", "PURGED"):
            assert taken(model, name) == [(6, "a", b"next")]


def test_an_origin_that_is_another_one(model: Model) -> None:
    """Sources begin anew in it; a mirror goes on when the origin's sequences reach its own."""
    client = model.client()
    create(client, "A", subjects=["a"])
    create(client, "M", mirror={"name": "A"})
    create(client, "S", sources=[{"name": "A"}])
    for data in (b"1", b"2"):
        publish(client, "a", data)
    assert len(records(model, "S")) == 2
    client.api("STREAM.DELETE.A")
    run_until_idle(model)
    assert info(client, "S")["sources"][0]["error"]["err_code"] == 10059
    create(client, "A", subjects=["a"])
    for data in (b"3", b"4", b"5"):
        publish(client, "a", data)
    assert [each.data for each in records(model, "S")] == [b"1", b"2", b"3", b"4", b"5"]
    assert [each.data for each in records(model, "M")] == [b"1", b"2", b"5"]
    client.api("STREAM.DELETE.S")
    client.api("STREAM.DELETE.M")
    publish(client, "a", b"6")
    assert model.account().streams["A"].followers == {}


def test_updates(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a"])
    create(client, "B", subjects=["b"])
    create(client, "M", mirror={"name": "A"})
    create(client, "S", sources=[{"name": "A"}])
    publish(client, "a", b"1")
    publish(client, "b", b"2")
    config = {"name": "S", "sources": [{"name": "A"}, {"name": "B"}]}
    client.api("STREAM.UPDATE.S", config)
    assert [each.data for each in records(model, "S")] == [b"1", b"2"]
    client.api("STREAM.UPDATE.S", {**config, "sources": [{"name": "B"}]})
    publish(client, "a", b"3")
    assert len(records(model, "S")) == 2
    client.api("STREAM.UPDATE.S", config)
    assert [each.data for each in records(model, "S")] == [b"1", b"2", b"3"]
    # A mirror without its origin is a stream like others.
    client.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]})
    publish(client, "a", b"4")
    publish(client, "m", b"own")
    assert [each.data for each in records(model, "M")] == [b"1", b"3", b"own"]


def test_what_does_not_fit_waits(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a"])
    for number in range(5):
        publish(client, "a", b"%d" % number)
    publish(client, "a", b"x" * 300)
    create(client, "S", sources=[{"name": "A"}], max_msgs=3, discard="new")
    create(client, "M", mirror={"name": "A"}, max_msgs=3, discard="new")
    create(client, "L", mirror={"name": "A"}, max_msg_size=200)
    create(client, "O", mirror={"name": "A"}, max_msgs=2)
    for name, key in (("S", "sources"), ("M", "mirror")):
        assert len(records(model, name)) == 3
        shown = info(client, name)[key]
        shown = shown[0] if key == "sources" else shown
        assert shown["lag"] == 3 and "maximum messages exceeded" in shown["error"]["description"]
        client.api(f"STREAM.PURGE.{name}")
        model.advance(2 * SECOND_NS)
        assert [each.data for each in records(model, name)] == [b"3", b"4", b"x" * 300]
    assert [each.seq for each in records(model, "L")] == [1, 2, 3, 4, 5]
    assert info(client, "L")["mirror"]["error"]["err_code"] == 10054
    assert [each.seq for each in records(model, "O")] == [5, 6]


def test_headers_with_consequences(model: Model) -> None:
    """Rollups and TTLs count where the stream allows them; ids where it has a window."""
    client = model.client()
    allowed = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}
    create(client, "A", subjects=["a.*"], duplicate_window=SECOND_NS // 10, **allowed)
    create(client, "M", mirror={"name": "A"}, **allowed)
    create(
        client, "S", sources=[{"name": "A"}], subjects=["own"], duplicate_window=100 * SECOND_NS, **allowed
    )
    create(client, "P", sources=[{"name": "A"}])
    publish(client, "a.1", b"1", Nats_Msg_Id="i")
    publish(client, "a.2", b"2", Nats_TTL="100s")
    publish(client, "a.1", b"3", Nats_Rollup="sub")
    assert [each.seq for each in records(model, "M")] == [2, 3]
    assert [each.seq for each in records(model, "S")] == [2, 3]
    assert [each.seq for each in records(model, "P")] == [1, 2, 3]
    streams = model.account().streams
    assert [len(streams[name].expiry) for name in "MSP"] == [1, 1, 0]
    again = client.request("own", b"", b"NATS/1.0\r\nNats-Msg-Id: i\r\n\r\n")
    assert again is not None and again.json()["duplicate"]
    forged = client.request("own", b"", b"NATS/1.0\r\nNats-Stream-Source: A 9 > > a.1 x\r\n\r\n")
    assert forged is not None and forged.json()["error"]["err_code"] == 10227


def test_work_queues_and_interest(model: Model) -> None:
    client = model.client()
    create(client, "W", subjects=["w.*"], retention="workqueue")
    for number in range(6):
        publish(client, f"w.{number % 2}", b"%d" % number)
    create(client, "S", sources=[{"name": "W", "filter_subject": "w.0"}])
    assert [each.data for each in records(model, "S")] == [b"0", b"2", b"4"]
    assert [each.seq for each in records(model, "W")] == [2, 4, 6]
    # Nobody wants what an interest stream takes: only its sequences move.
    create(client, "I", sources=[{"name": "S"}], retention="interest")
    run_until_idle(model)
    state = info(client, "I")["state"]
    assert (state["messages"], state["last_seq"]) == (0, 3)
    assert "interest retention" in refusal(client, "X", sources=[{"name": "I"}])


def test_what_is_not_served(model: Model) -> None:
    client = model.client()
    far = {"name": "A", "external": {"api": "$JS.other.API", "deliver": ""}}
    assert "'external'" in refusal(client, "X", mirror=far)
    assert "'external'" in refusal(client, "X", sources=[far])
    own = {"name": "A", "consumer": {"name": "c", "deliver_subject": "d"}}
    assert "'consumer'" in refusal(client, "X", mirror=own)


def test_republished_from_a_mirror_with_holes(model: Model) -> None:
    client = model.client()
    create(client, "A", subjects=["a"])
    for number in range(4):
        publish(client, "a", b"%d" % number)
    client.api("STREAM.MSG.DELETE.A", {"seq": 2})
    client.subscribe("again.>")
    create(client, "M", mirror={"name": "A"}, republish={"src": "a", "dest": "again.a"})
    run_until_idle(model)
    numbers = [each.headers.split(b"Nats-Sequence: ")[1][:1] for each in client.take() if each.headers]
    assert numbers == [b"1", b"3", b"4"]


def test_disk_that_fails_in_the_middle_of_a_batch(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is taken back and taken again: the mirror has no hole that the origin has not."""
    client = model.client()
    create(client, "A", subjects=["a"])
    create(client, "M", mirror={"name": "A"})
    create(client, "S", sources=[{"name": "A"}])
    publish(client, "a", b"first")
    streams, roll, failed = model.account().streams, upkeep.roll, set[str]()

    def fail_once(store: Any) -> None:
        if store.name in "MS" and store.name not in failed:
            failed.add(store.name)
            raise DiskFault("no space")
        roll(store)

    monkeypatch.setattr(upkeep, "roll", fail_once)
    for name in "MS":
        streams[name].store.block_bytes = 300
    streams["A"].store.append(Batch.build("a", [b"%d" % number for number in range(20)]))
    publish(client, "a", b"last")
    assert failed == {"M", "S"}
    model.advance(2 * SECOND_NS)
    assert records(model, "M") == records(model, "A")
    assert [each.data for each in records(model, "S")] == [each.data for each in records(model, "A")]
