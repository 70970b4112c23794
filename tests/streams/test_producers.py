"""What producers have done, against plain sets: publishes in any order, raised floors, removals, restarts and power cuts.

Bytes go in and out through the exchange. Everything that was answered is durable, so after a power cut that keeps only
what was synced the sets are the same as before. A number that is in its producer's set is never stored again.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from headrace._core import Disk
from headrace.layouts.jetstream.store import history
from headrace.streams.limits import ServerFacts
from headrace.streams.stream import producers
from tests.support.memory_model import ROOT, SECOND, MemoryModel, StillClock, headers_of
from tests.support.model import Client, Model, Msg

WINDOW = 20 * SECOND + 500_000_000
SIDE_FILE = f"{ROOT}/jetstream/$G/streams/S/headrace/producers"
NAMES = ["app/ORDERS", "b", "é"]
names = st.sampled_from(NAMES)
sent = st.lists(
    st.tuples(
        st.one_of(names, names, st.none()),
        st.integers(0, 40),
        st.integers(0, 4),
        st.sampled_from([None, None, None, "id-1", "id-2"]),
        st.sampled_from(["", "", "", "", "sub", "all"]),
        st.binary(max_size=60),
    ),
    min_size=1,
    max_size=8,
)


class ProducerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = Disk.memory(), StillClock()
        self.done: dict[str, set[int]] = {}
        self.deleted: dict[str, set[int]] = {}
        """Numbers of producers that were forgotten by hand; only the checkpoint knows that they were."""
        self.ids: dict[str, tuple[int, int]] = {}
        self.last = 0
        self.in_memory = False
        self.model: MemoryModel | None = None

    def _open(self) -> None:
        self.model = MemoryModel(self.disk, self.clock)
        self.wire = self.model.wire()
        self.model.run()

    @initialize(
        max_msgs=st.sampled_from([-1, 3, 8]),
        per_subject=st.sampled_from([-1, 2]),
        max_age=st.sampled_from([0, 45 * SECOND]),
        storage=st.sampled_from(["file", "file", "file", "memory"]),
    )
    def start(self, max_msgs: int, per_subject: int, max_age: int, storage: str) -> None:
        self._open()
        self.in_memory = storage == "memory"
        config: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.*"],
            "max_msgs": max_msgs,
            "max_msgs_per_subject": per_subject,
            "max_age": max_age,
            "storage": storage,
            "duplicate_window": WINDOW,
            "allow_rollup_hdrs": True,
        }
        assert "error" not in self.wire.api("STREAM.CREATE.S", config)

    @rule(messages=sent)
    def publish(self, messages: list[tuple[str | None, int, int, str | None, str, bytes]]) -> None:
        """Several in one buffer: each sees what the one before it did."""
        requests: list[tuple[str, bytes | None, bytes]] = []
        for at, (name, number, left_out, msg_id, rollup, data) in enumerate(messages):
            first = max(number - left_out, 0)
            headers = headers_of(
                Nats_Msg_Id=msg_id,
                Nats_Rollup=rollup or None,
                Headrace_Producer_Seq=None if name is None else f"{first}-{number}" if left_out else number,
                Headrace_Producer=name,
            )
            requests.append((f"s.{at % 3}", headers, data))
        for sent, msg in zip(messages, self.wire.ask(requests), strict=True):
            self._check(sent, msg)

    def _check(self, sent: tuple[str | None, int, int, str | None, str, bytes], msg: Msg | None) -> None:
        name, number, left_out, msg_id, _, _ = sent
        done: set[int] = set() if name is None else self.done.get(name, set())
        seq, time_ns = self.ids.get(msg_id or "", (0, 0))
        in_window = msg_id is not None and seq > 0 and time_ns + WINDOW > self.clock.now_ns
        assert msg is not None
        if in_window or number in done:
            known = seq if in_window else 0
            assert msg.json() == {"stream": "S", "seq": known, "duplicate": True}, msg
            return
        self.last += 1
        assert msg.json() == {"stream": "S", "seq": self.last}, msg
        if name is not None:
            self.done.setdefault(name, set()).update(range(max(number - left_out, 0), number + 1))
        elif msg_id is not None:
            # Only what has no number is remembered by its id.
            self.ids[msg_id] = (self.last, self.clock.now_ns)

    @rule(name=names, below=st.integers(0, 45))
    def raise_floor(self, name: str, below: int) -> None:
        said = self._api("SETTLE", {"producer": name, "below": below})
        self.done.setdefault(name, set()).update(range(below))
        assert said["success"] and said["producer"] == name

    @rule(name=names)
    def delete(self, name: str) -> None:
        said = self._api("DELETE", {"producer": name})
        self.deleted.setdefault(name, set()).update(self.done.get(name, ()))
        if self.done.pop(name, None) is None:
            assert said["error"]["err_code"] == 30004
        else:
            assert said["success"]

    @rule(subject=st.sampled_from(["", "s.1"]))
    def purge(self, subject: str) -> None:
        self.wire.api("STREAM.PURGE.S", {"filter": subject} if subject else None)

    @rule(erase=st.booleans(), back=st.integers(0, 3))
    def remove(self, erase: bool, back: int) -> None:
        self.wire.api("STREAM.MSG.DELETE.S", {"seq": max(self.last - back, 1), "no_erase": not erase})

    @rule(seconds=st.sampled_from([1, 19, 44, 130]))
    def wait(self, seconds: int) -> None:
        assert self.model is not None
        self.model.pass_time(seconds * SECOND)

    @precondition(lambda self: not self.in_memory)
    @rule()
    def restart(self) -> None:
        assert self.model is not None
        self.model.close()
        self._open()

    @precondition(lambda self: not self.in_memory)
    @rule(keep=st.sampled_from(["none", "all"]), damage=st.sampled_from([False, False, False, True]))
    def cut_power(self, keep: str, damage: bool) -> None:
        """Nothing of what was answered is lost; a checkpoint that rots costs what only it knew."""
        self.disk = self.disk.crash(0, keep)
        if damage and self.disk.entry(SIDE_FILE) is not None:
            self._rot()
        self._open()
        if damage:
            shown = self._shown()
            for name, numbers in shown.items():
                assert numbers <= self.done.get(name, set()) | self.deleted.get(name, set())
            self.done = shown

    def _rot(self) -> None:
        raw = self.disk.read(SIDE_FILE, 1 << 20)
        self.disk.replace_file(SIDE_FILE, b"rot" + raw)  # not a flipped bit: a second one would mend it

    def _api(self, endpoint: str, body: Any = None) -> dict[str, Any]:
        answer = self.wire.request(f"$HEADRACE.API.PRODUCER.{endpoint}.S", _json(body))
        assert answer is not None
        return answer.json()

    def _shown(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for each in self._api("INFO")["producers"]:
            assert each["numbers"] == sum(last - first + 1 for first, last in each["ranges"])
            numbers = set(range(each["floor"]))
            for first, last in each["ranges"]:
                assert first > each["floor"], each
                numbers.update(range(first, last + 1))
            found[each["producer"]] = numbers
        return found

    @invariant()
    def sets_agree(self) -> None:
        if self.model is not None and self.model.account().streams:
            assert self._shown() == self.done


def _json(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def test_producers_against_plain_sets() -> None:
    run_state_machine_as_test(
        ProducerMachine,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def opened(disk: Disk) -> tuple[MemoryModel, Any]:
    model = MemoryModel(disk, StillClock())
    wire = model.wire()
    model.run()
    return model, wire


def marked(name: str, numbers: object, **more: object) -> bytes | None:
    return headers_of(Headrace_Producer=name, Headrace_Producer_Seq=numbers, **more)


def shown(marks: producers.ProducerMarks) -> list[tuple[str, int, int, list[tuple[int, int]]]]:
    known = marks.known(marks.names(), 10)
    return [(each.name, each.floor, each.numbers, each.ranges) for each in known]


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Malformed headers and too much of it: nothing is stored, the text names the producer and what to do."""
    monkeypatch.setattr(producers, "BYTES_MAX", 256)
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    _, wire = opened(Disk.memory())
    wire.api("STREAM.CREATE.S", {"name": "S"})

    def publish(headers: bytes | None) -> dict[str, Any]:
        msg = wire.request("S", b"x", headers)
        assert msg is not None
        return msg.json()

    bad = [
        headers_of(Headrace_Producer="a"),
        headers_of(Headrace_Producer_Seq=1),
        *(marked("a", numbers) for numbers in ("", "x", "-1", "5-3", "1-2-3", 1 << 64, "7-1048583")),
        marked("", 1),
        marked("x" * 257, 1),
        marked("a\x01b", 1),
    ]
    for headers in bad:
        refused = publish(headers)
        assert refused["error"]["err_code"] == 30001 and refused["seq"] == 0, headers
    assert "'5-3'" in publish(marked("a", "5-3"))["error"]["description"]
    far = 1 << 16
    for number in (1, 2, 3):  # far from each other: each takes more than 40 bytes
        assert publish(marked("a", number * far))["seq"] == number
    full = publish(marked("a", 4 * far))["error"]
    assert full["err_code"] == 30002 and "'a'" in full["description"] and "settle" in full["description"]
    assert publish(marked("a", 3 * far))["duplicate"], "what is done is still known"
    raised = wire.request("$HEADRACE.API.PRODUCER.SETTLE.S", b'{"producer":"a","below":%d}' % (1 << 50))
    assert raised.json()["floor"] == 1 << 50 and raised.json()["numbers"] == 0
    assert publish(marked("a", 1 << 50))["seq"] == 4
    assert publish(marked("b", 6))["seq"] == 5
    many = publish(marked("c", 1))["error"]
    assert many["err_code"] == 30003 and "'c'" in many["description"]
    assert wire.api("STREAM.INFO.S")["state"]["messages"] == 5


def test_closed_producers_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed: everything is done. It stays an hour, so that who still sends sends duplicates; then it goes when room is needed."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    model, wire = opened(Disk.memory())
    wire.api("STREAM.CREATE.S", {"name": "S"})
    for name in ("a", "b"):
        assert wire.request("S", b"x", marked(name, 7)).json()["seq"]
    closing = b'{"producer":"a","below":%d}' % ((1 << 64) - 1)
    assert wire.request("$HEADRACE.API.PRODUCER.SETTLE.S", closing).json()["success"]
    assert wire.request("S", b"x", marked("a", 1 << 40)).json()["duplicate"]
    assert wire.request("S", b"x", marked("c", 1)).json()["error"]["err_code"] == 30003
    model.clock.now_ns += 3601 * SECOND
    assert wire.request("S", b"x", marked("c", 1)).json()["seq"] == 3
    names = wire.request("$HEADRACE.API.PRODUCER.INFO.S").json()["producers"]
    assert [each["producer"] for each in names] == ["b", "c"], "one that is not closed never goes"
    assert wire.request("S", b"x", marked("d", 1)).json()["error"]["err_code"] == 30003


def test_streams_without_producers_have_no_file_and_read_nothing() -> None:
    disk = Disk.memory()
    model, wire = opened(disk)
    wire.api("STREAM.CREATE.S", {"name": "S"})
    wire.request("S", b"x", headers_of(Nats_Msg_Id="1", Other="header"))
    model.close()
    assert disk.entry(SIDE_FILE) is None
    model, wire = opened(disk)
    assert disk.entry(SIDE_FILE) is None
    wire.request("S", b"x", marked("a", 1))
    assert disk.entry(SIDE_FILE) is not None


def test_a_source_and_a_mirror_carry_the_headers_and_check_nothing(tmp_path: Path) -> None:
    facts = ServerFacts(origins=True)
    with Model(tmp_path, facts=facts) as model:
        client = model.client()
        client.api("STREAM.CREATE.S", {"name": "S"})
        client.api("STREAM.CREATE.C", {"name": "C", "subjects": ["c"], "sources": [{"name": "S"}]})
        client.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
        for number in (1, 2):
            assert _said(client, "S", marked("a", number))["seq"] == number
        model.advance(SECOND)
        for name in ("C", "M"):
            assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 2
            kept = model.account().streams[name].store.load_msg(2).headers
            assert kept is not None and b"Headrace-Producer: a" in kept
    with Model(tmp_path, facts=facts) as model:
        client = model.client()
        taken = _said(client, "c", marked("a", 2))
        assert taken == {"stream": "C", "seq": 3}, "what came from a source was not checked there"
        assert _said(client, "c", marked("a", 2))["duplicate"]
        refused = client.request("$HEADRACE.API.PRODUCER.SETTLE.M", b'{"producer":"a","below":5}')
        assert refused is not None and "mirror" in refused.json()["error"]["description"]
        config = client.api("STREAM.INFO.M")["config"]
        del config["mirror"]
        assert "error" not in client.api("STREAM.UPDATE.M", {**config, "subjects": ["m"]})
        assert _said(client, "m", marked("a", 2))["duplicate"], "promoted, it knows what its messages tell"
        assert _said(client, "m", marked("a", 3)) == {"stream": "M", "seq": 3}


def _said(client: Client, subject: str, headers: bytes | None) -> dict[str, Any]:
    msg = client.request(subject, b"x", headers)
    assert msg is not None
    return msg.json()


def test_a_damaged_checkpoint_is_reported_and_the_records_are_read() -> None:
    disk = Disk.memory()
    model, wire = opened(disk)
    wire.api("STREAM.CREATE.S", {"name": "S"})
    for number in range(5):
        wire.request("S", b"x", marked("a", number))
    model.close()
    disk.replace_file(SIDE_FILE, b"nothing that anybody wrote")
    model, wire = opened(disk)
    assert [each.kind for each in model.account().streams["S"].store.damage()] == ["metadata"]
    assert wire.request("S", b"x", marked("a", 4)).json()["duplicate"]
    assert wire.request("S", b"x", marked("a", 5)).json()["seq"] == 6


def test_a_restored_stream_knows_the_numbers_of_its_messages(tmp_path: Path) -> None:
    """A snapshot carries no checkpoint: numbers whose messages were gone are not known, all others are."""
    with Model(tmp_path / "a") as model:
        client = model.client()
        client.api("STREAM.CREATE.S", {"name": "S"})
        for number in range(6):
            _said(client, "S", marked("a", number))
        client.api("STREAM.PURGE.S", {"keep": 3})
        store = model.account().streams["S"].store
        chunks = list(store.snapshot(60, True, False).chunks)
        config = store.config
    for storage in ("file", "memory"):
        with Model(tmp_path / storage) as model:
            account, wanted = model.account(), replace(config, storage=storage)
            if storage == "memory":
                account.restored(model.volume.restore("S", chunks, wanted))
            else:
                account.restored(model.volume.restore("S", chunks, wanted, first_look=account.first_look))
            assert shown(account.streams["S"].marks) == [("a", 0, 3, [(3, 5)])]
            assert _said(model.client(), "S", marked("a", 5))["duplicate"]
            assert _said(model.client(), "S", marked("a", 6))["seq"] == 7
    with Model(tmp_path / "file") as model:
        assert shown(model.account().streams["S"].marks) == [("a", 0, 4, [(3, 6)])]


def test_a_restored_stream_without_producers_has_no_file(tmp_path: Path) -> None:
    with Model(tmp_path / "a") as model:
        client = model.client()
        client.api("STREAM.CREATE.S", {"name": "S"})
        _said(client, "S", None)
        store = model.account().streams["S"].store
        chunks, config = list(store.snapshot(60, True, False).chunks), store.config
    with Model(tmp_path / "b") as model:
        account = model.account()
        stream = account.restored(model.volume.restore("S", chunks, config, first_look=account.first_look))
        assert not Path(stream.store.sidecar.path, "producers").exists() and not stream.producers.is_open


def test_after_a_clean_stop_no_block_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 8; after a kill only blocks behind the checkpoint are."""
    disk = Disk.memory()
    model, wire = opened(disk)
    wire.api("STREAM.CREATE.S", {"name": "S", "duplicate_window": 100_000_000})
    for number in range(40):
        wire.request("S", b"x" * 40, marked("a", number))
    model.clock.now_ns += 300 * SECOND
    looked: list[str] = []
    scan = history.js_scan_block

    def counted(of: Disk, path: str, *args: Any, **more: Any) -> Any:
        looked.append(path)
        return scan(of, path, *args, **more)

    monkeypatch.setattr(history, "js_scan_block", counted)

    def looks(found: Disk) -> int:
        looked.clear()
        clock = StillClock()
        clock.now_ns = model.clock.now_ns
        again = MemoryModel(found, clock)
        assert shown(again.account().streams["S"].marks) == [("a", 40, 0, [])]
        return len(looked)

    blocks = len(model.account().streams["S"].store.log.blocks())
    assert blocks > 5
    assert looks(disk.crash(0, "none")) == blocks, "the checkpoint was written before the first message"
    model.pass_time(121 * SECOND)
    assert looks(disk.crash(0, "none")) == 0, "the checkpoint covers everything"
    model.close()
    assert looks(disk) == 0


@pytest.mark.parametrize("no_erase", [False, True])
def test_a_deleted_message_stays_done_after_a_power_cut(no_erase: bool) -> None:
    """Erasing overwrites the headers with the rest of the message."""
    disk = Disk.memory()
    _, wire = opened(disk)
    wire.api("STREAM.CREATE.S", {"name": "S"})
    for number in (1, 2, 3):
        wire.request("S", b"x", marked("a", number))
    assert wire.api("STREAM.MSG.DELETE.S", {"seq": 2, "no_erase": no_erase})["success"]
    _, wire = opened(disk.crash(0, "none"))
    assert wire.request("S", b"x", marked("a", 2)).json()["duplicate"]


def test_millions_with_gaps_are_small_and_outlive_a_restart() -> None:
    """A filter that lets every third number through: a bit for each, in memory and in the checkpoint."""
    disk = Disk.memory()
    model, wire = opened(disk)
    wire.api("STREAM.CREATE.S", {"name": "S"})
    wire.request("S", b"x", marked("a", 0))
    count = 2_000_000
    taken = model.account().streams["S"].producers
    taken.put(b"a", [(number, number) for number in range(0, 3 * count, 3)], 1)
    assert taken.size_bytes < 2_000_000
    wire.request("S", b"x", marked("a", 3 * count))
    model.close()
    assert len(disk.read(SIDE_FILE, 1 << 30)) < 2_000_000
    model, wire = opened(disk)
    marks = model.account().streams["S"].marks
    assert shown(marks) == [("a", 1, count, [(number, number) for number in range(3, 33, 3)])]
    assert marks.producers.size_bytes < 2_000_000
    for number in (3, 3 * count // 2, 3 * count):
        assert wire.request("S", b"x", marked("a", number)).json()["duplicate"]
        assert "duplicate" not in wire.request("S", b"x", marked("a", number + 1)).json()


@pytest.mark.parametrize("wide", [False, True], ids=["usual", "too wide"])
def test_a_checkpoint_of_version_1_is_read(wide: bool) -> None:
    """Ranges in JSON. One that is too wide for bits is told, and the records are read."""
    disk = Disk.memory()
    model, wire = opened(disk)
    wire.api("STREAM.CREATE.S", {"name": "S"})
    wire.request("S", b"x", marked("a", 7))
    store = model.account().streams["S"].store
    model.close()
    ranges = [[0, 1 << 50], [(1 << 50) + 5, (1 << 50) + (1 << (33 if wide else 21))]]
    found = store.log.load(1)
    assert found is not None
    body = json.dumps([1, store.created_ns, 1, found.time_ns, [["a", 5, ranges]]]).encode()
    disk.replace_file(SIDE_FILE, zlib.crc32(body).to_bytes(4, "little") + body)
    model, _ = opened(disk)
    stream = model.account().streams["S"]
    if wide:
        assert ["too wide" in each.detail for each in stream.store.damage()] == [True]
        assert shown(stream.marks) == [("a", 0, 1, [(7, 7)])]
    else:
        assert shown(stream.marks) == [("a", (1 << 50) + 1, (1 << 21) - 4, [tuple(ranges[1])])]
        assert not stream.store.damage()
    stream.marks.raise_floor("b", 3, 9)
    assert disk.read(SIDE_FILE, 1 << 20)[4:8] == b"HRP2"
