"""The layout: recognise, inspect, verify; everything sound of the real broker is called sound, all damage is named."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace._core import Disk
from headrace.errors import BadInput
from headrace.layouts.kafka.layout import LAYOUT
from headrace.layouts.layout import OpenRequest
from headrace.layouts.report import Report
from tests.support.kafka import copy_damaged, golden


def kinds(view: Report) -> list[tuple[str, str]]:
    """(kind, file name) of everything that is not as it should be."""
    return [(finding.kind, Path(finding.file).name) for finding in view.damage]


def test_recognises(tmp_path: Path) -> None:
    store = golden().copy(tmp_path)
    disk = Disk.real()
    assert LAYOUT.recognise(str(store), disk)
    assert LAYOUT.recognise(str(store / "fx-none-0"), disk)
    assert LAYOUT.recognise(str(golden().folder / "logdir-files"), disk)
    assert not LAYOUT.recognise(str(tmp_path), disk)
    assert not LAYOUT.recognise(str(tmp_path / "absent"), disk)
    assert not LAYOUT.recognise(str(Path(__file__)), disk)


def test_everything_of_the_broker_is_sound(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    store = tmp_path
    for version in ("4.3.1", "3.9.2"):
        store = golden(version).copy(tmp_path)
        view = LAYOUT.verify(str(store), progress=lambda done, total: steps.append((done, total)), threads=2)
        assert kinds(view) == []
        assert steps[-1][0] == steps[-1][1] > 0
        streams = golden(version).streams()
        assert [log.name for log in view.logs] == sorted(streams)
        for log in view.logs:
            messages = [m for m in streams[log.name]["messages"] if "control" not in m]
            assert log.state is not None and log.state.messages == len(messages)
            assert sum(row.messages for row in log.files) == len(messages)
            assert not log.problems
    view = LAYOUT.inspect(str(store), log="fx-magic0-lz4-0")
    assert view.logs[0].details["formats"] == "0" and view.logs[0].details["codecs"] == "lz4"
    quick = LAYOUT.inspect(str(store), quick=True)
    assert [row.first for row in quick.logs[0].files] == [0, 30] or quick.logs[0].files


def test_transactions_and_producers_are_shown(tmp_path: Path) -> None:
    store = golden().copy(tmp_path)
    [log] = LAYOUT.verify(str(store), log="fx-txn-0").logs
    assert log.details["aborted transactions"] == "8"
    assert [cursor.name for cursor in log.cursors] == [f"producer {n}" for n in (0, 1, 2, 8)]


def test_damage_is_named(tmp_path: Path) -> None:
    folder, _ = copy_damaged("corrupt-mid", tmp_path)
    view = LAYOUT.verify(str(folder))
    assert ("bad-record", "00000000000000000000.log") in kinds(view)
    [log] = view.logs
    assert log.state is not None and (log.state.messages, log.state.lost_messages) == (36, 4)

    store = golden().copy(tmp_path)
    disk = Disk.real()
    disk.flip_bit(str(store / "fx-none-0" / f"{0:020d}.index"), 3, 0)
    disk.flip_bit(str(store / "fx-none-0" / f"{15:020d}.timeindex"), 2, 0)
    disk.flip_bit(str(store / "fx-txn-0" / f"{0:020d}.txnindex"), 1, 0)
    disk.flip_bit(str(store / "fx-txn-0" / f"{69:020d}.snapshot"), 20, 0)
    (store / "fx-gzip-0" / f"{0:020d}.index").unlink()
    shutil.copy(golden().folder / "logdir-files" / "recovery-point-offset-checkpoint", store)
    (store / "replication-offset-checkpoint").write_text("0\n3\norders 0 1\n")
    found = kinds(LAYOUT.verify(str(store)))
    assert sorted(found) == sorted(
        [
            ("index", f"{0:020d}.index"),
            ("index", f"{15:020d}.timeindex"),
            ("index", f"{0:020d}.txnindex"),
            ("metadata", f"{69:020d}.snapshot"),
            ("index", f"{0:020d}.index"),
            ("metadata", "replication-offset-checkpoint"),
        ]
    )


def test_open_by_layout(tmp_path: Path) -> None:
    options = LAYOUT.options.of({"segment.bytes": 5000})
    request = OpenRequest(durability="interval", options=options)
    with LAYOUT.create(str(tmp_path / "new"), request) as volume:
        assert volume.logs() == []
    try:
        LAYOUT.open(str(tmp_path / "new"), OpenRequest(key="k"))
    except BadInput as refused:
        assert "not encrypted" in str(refused)
    else:
        raise AssertionError("a key was taken")
