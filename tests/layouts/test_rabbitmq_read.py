"""Directories that a real RabbitMQ 3.10.8 wrote: every message, every name, whatever state they were left in."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace._core import Disk
from headrace.errors import BadInput, NotFound
from headrace.layouts.rabbitmq import dets
from headrace.layouts.rabbitmq.layout import LAYOUT
from headrace.layouts.rabbitmq.names import QueueName, vhost_directory
from headrace.layouts.rabbitmq.volume import RabbitVolume
from tests.support.vectors import ROOT

FOLDER = ROOT / "rabbitmq" / "3.10.8"
CASES: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text())
GONE = {
    # Acked before the crash, the acks lost with it: the bodies were merged away already.
    "real_crash_during_compaction": 10,
    # Transient messages of a lazy queue that never reached a file.
    "unclean_lazy_transient": 2,
}


def found_in(volume: RabbitVolume, name: str) -> list[tuple[int, str]]:
    return [(r.position, hashlib.sha256(r.data or b"").hexdigest()) for r in volume.open(name)]


def expected(rows: list[Any]) -> list[tuple[int, str | None]]:
    if isinstance(rows[0], list):
        return [(seq, hashlib.sha256(body.encode()).hexdigest()) for seq, body in rows]
    return [(row["seq"], row["sha256"]) for row in rows]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_every_message_of_the_real_broker(case: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / case
    shutil.copytree(FOLDER / case, path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with RabbitVolume(str(path), mode=mode) as volume:
        for name, queue in CASES[case]["queues"].items():
            label = name.replace(" priority ", "~p")
            found = found_in(volume, label if label in volume.logs() else queue["dir"])
            want = expected(queue["live"])
            readable = {seq for seq, _ in found}
            assert len(want) - len(readable) == GONE.get(case, 0)
            assert found == [(seq, sha or dict(found)[seq]) for seq, sha in want if seq in readable]
    if mode == "r":
        assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
    else:
        again = RabbitVolume(str(path))
        for name, queue in CASES[case]["queues"].items():
            label = name.replace(" priority ", "~p")
            label = label if label in again.logs() else queue["dir"]
            assert len(found_in(again, label)) == len(queue["live"]) - GONE.get(case, 0)
        assert not list(path.rglob("*.rdt")), "what was in it lies in an ordinary store file now"


def test_we_keep_what_the_brokers_own_merge_loses() -> None:
    """The broker served 28 messages of this directory; two more had been confirmed and not acked."""
    with RabbitVolume(str(FOLDER / "real_crash_during_compaction")) as volume:
        heads = [(r.data or b"")[:6].decode() for r in volume.open("q1")]
    served = CASES["real_crash_during_compaction"]["broker_served_heads"]
    assert set(served) < set(heads)
    assert sorted(set(heads) - set(served)) == ["g-003-", "g-006-"]


def test_properties_headers_and_envelope() -> None:
    with RabbitVolume(str(FOLDER / "clean_mixed")) as volume:
        table = volume.open("q1").to_arrow()
    rows = {row["seq"]: row for row in table.to_pylist()}
    assert rows[0]["subject"] == "q1" and rows[0]["data"] == b"small-0"
    assert ("delivery-mode", ["2"]) in rows[0]["headers"]
    routed = dict(rows[15]["headers"])
    assert "amqp-exchange" in routed or "amqp-cc" in routed, routed
    assert dict(rows[13]["headers"])["amqp-expiry"] == ["2110126704345141"]
    assert rows[14]["data"] == b""
    with RabbitVolume(str(FOLDER / "clean_mixed")) as volume:
        for record in volume.open("q1"):
            assert record.header_map == dict(rows[record.position]["headers"]), record.position
            assert record.header_map["delivery-mode"] == ["2"]


def test_headers_by_name_are_those_of_the_column() -> None:
    """Every message of every directory that the broker wrote."""
    seen: dict[str, list[str]] = {}
    for case in sorted(path.name for path in FOLDER.iterdir() if path.is_dir()):
        with RabbitVolume(str(FOLDER / case)) as volume:
            for name in volume.logs():
                rows = {row["seq"]: dict(row["headers"]) for row in volume.open(name).to_arrow().to_pylist()}
                for record in volume.open(name):
                    assert record.header_codec == "amqp" and record.header_map == rows[record.position]
                    seen |= record.header_map
    assert {"delivery-mode", "content-type", "amqp-cc", "amqp-expiry"} <= set(seen), sorted(seen)


def test_names() -> None:
    assert vhost_directory("/") == "628WB79CIFDYO9LJI6DKMI09L"
    assert QueueName("/", b"q1").directory == "6GR38JRPIL3M68J7JM8E1SMBO"
    odd = QueueName("v h", b"two\nQUEUE: lines")
    assert QueueName.from_file(odd.file()) == odd
    assert QueueName("/", b"pr\x00\x03").label == "pr~p3"
    with RabbitVolume(str(FOLDER / "clean_priority")) as volume:
        assert {"pr~p0", "pr~p1", "pr~p2", "pr~p3", "tt"} <= set(volume.logs())


@pytest.mark.parametrize("name", ["", "a/b/c", "..", ".", "v/..", "a*", "#", "x\0y", "q" * 256, "/q"])
def test_bad_names_are_refused_before_the_disk_is_touched(name: str) -> None:
    disk = Disk.memory()
    volume = RabbitVolume("/n", mode="rw", create=True, disk=disk, maintenance=False)
    before = disk.sync_points()
    with pytest.raises(BadInput):
        volume.create(name)
    assert disk.sync_points() == before


def test_the_next_sequence_after_a_clean_stop(tmp_path: Path) -> None:
    rows = dets.rows(next((FOLDER / "clean_mixed").glob("*/recovery.dets")).read_bytes())
    assert rows["6GR38JRPIL3M68J7JM8E1SMBO"].next_seq == 20
    assert rows["KANL8CE0UDO3DXGEUF3GF2Q3"].next_deliver == 2
    assert dets.rows(b"\x83h\x02k\x00\x02ab" + b"l\xff\xff\xff\xff") == {}
    shutil.copytree(FOLDER / "clean_mixed", tmp_path / "c")
    with RabbitVolume(str(tmp_path / "c"), mode="rw") as volume:
        assert volume.open("q1").next_seq == 20
    assert not list((tmp_path / "c").rglob("recovery.dets"))


def test_messages_that_almost_fill_the_segment(tmp_path: Path) -> None:
    path = str(FOLDER / "real_crash_during_compaction")
    disk = Disk.real()
    assert LAYOUT.recognise(path, disk) and not LAYOUT.recognise(str(tmp_path), disk)
    quick = LAYOUT.inspect(path, quick=True)
    assert [log.name for log in quick.logs] == ["q1"] and quick.logs[0].state is None
    seen = LAYOUT.inspect(path)
    assert seen.logs[0].state is not None and seen.logs[0].state.messages == 30
    assert any(row.kind == "rdt" for row in seen.files) and seen.notes
    steps: list[tuple[int, int]] = []
    checked = LAYOUT.verify(path, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1]
    kinds = {damage.kind for damage in checked.damage}
    assert kinds == {"missing", "unsound-tail"}
    assert not LAYOUT.verify(str(FOLDER / "clean_mixed")).damage
    assert checked.logs[0].cursors[0].pending == 30
    with pytest.raises(NotFound):
        LAYOUT.open(str(tmp_path / "nothing"))
    with pytest.raises(BadInput, match="queue_index_embed_msgs_below"):
        LAYOUT.options.of({"queue_index_embed": 1})
    assert LAYOUT.options.of({"msg_store_file_size_limit": "65536"}) == LAYOUT.options(
        msg_store_file_size_limit=65536
    )


def test_scan_tasks_travel() -> None:
    with RabbitVolume(str(FOLDER / "unclean_partial_acked")) as volume:
        log = volume.open("q1")
        tasks = pickle.loads(pickle.dumps(log.scan_tasks()))
        parts = [r.data for task in tasks for batch in task.batches() for r in batch]
        assert parts == [r.data for r in log]
