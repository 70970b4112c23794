"""One way in for every product: the same calls, whatever the directory is, and one class behind them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import headrace
from headrace.layouts.layout import Layout, LayoutOptions, OpenRequest
from headrace.layouts.registry import ARCHIVE, LAYOUTS, layout_at, layout_named
from headrace.ops.archive import ArchiveOptions, archive

NAMES = {
    "jetstream": "ORDERS",
    "nats_streaming": "orders",
    "kafka": "orders-0",
    "rocketmq": "orders-0",
    "rabbitmq": "orders",
}
BODIES = [b"%d" % number for number in range(50)]


def store(path: Path, layout: str) -> str:
    """A directory with one log."""
    with headrace.create(path, layout) as volume:
        log = volume.create(NAMES[layout], **({"subjects": ["orders"]} if layout == "jetstream" else {}))
        volume.commit([log.append(headrace.batch("orders", BODIES))])
    return str(path)


def bodies(path: str) -> list[bytes]:
    return [record.data or b"" for _, batch in headrace.cat(path) for record in batch]


def test_every_layout_is_one_class() -> None:
    for name in (*LAYOUTS, ARCHIVE):
        layout = layout_named(name)
        assert (
            isinstance(layout, Layout) and layout.name == name and issubclass(layout.options, LayoutOptions)
        )
        assert type(pickle.loads(pickle.dumps(layout))) is type(layout)
    with pytest.raises(headrace.BadInput, match="unknown layout"):
        layout_named("pulsar")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_calls_for_every_product(name: str, tmp_path: Path) -> None:
    path = store(tmp_path / "store", name)
    assert headrace.detect(path) == layout_at(path).name == name
    for report in (headrace.inspect(path), headrace.inspect(path, quick=True), headrace.verify(path)):
        assert (report.layout, report.sound, [log.name for log in report.logs]) == (name, True, [NAMES[name]])
        assert report.logs[0].file_rows() or report.shared() is not None
    assert bodies(path) == BODIES
    saved = headrace.salvage(path, tmp_path / "copy")
    assert (saved.complete, saved.copy_sound, saved.messages) == (True, True, 50)
    assert bodies(str(tmp_path / "copy")) == BODIES
    to = "kafka" if name != "kafka" else "jetstream"
    assert headrace.convert(path, str(tmp_path / "converted"), to).verified
    assert bodies(str(tmp_path / "converted")) == BODIES


@pytest.mark.parametrize("name", LAYOUTS)
def test_verify_in_pieces_is_verify(name: str, tmp_path: Path) -> None:
    path = store(tmp_path / "store", name)
    plan = layout_named(name).check_plan(path)
    found = {at: pickle.loads(pickle.dumps(piece)).run() for at, piece in enumerate(plan.pieces)}
    report = plan.report(found)
    assert (report.sound, report.messages) == (True, 50)
    rows = [
        row
        for task in layout_named(name).check_tasks(path)
        for row in pickle.loads(pickle.dumps(task)).rows()
    ]
    assert all(row.ok for row in rows)
    assert sum(row.messages for row in rows if row.kind in ("stream", "log")) == 50


def test_an_archive_is_looked_at_as_everything_else(tmp_path: Path) -> None:
    source = store(tmp_path / "store", "kafka")
    archive(source, str(tmp_path / "archive"), ArchiveOptions(newest=True))
    path = str(tmp_path / "archive")
    assert layout_at(path).name == ARCHIVE and headrace.verify(path).sound
    assert headrace.inspect(path).origin == "kafka" and bodies(path) == BODIES
    with pytest.raises(headrace.ReadOnly):
        headrace.salvage(path, tmp_path / "copy")


def test_one_streams_directory_is_looked_at_and_not_opened(tmp_path: Path) -> None:
    path = Path(store(tmp_path / "store", "jetstream")) / "jetstream" / "$G" / "streams" / "ORDERS"
    assert layout_at(path).name == "jetstream" and bodies(str(path)) == BODIES
    with pytest.raises(headrace.UnknownFormat):
        headrace.open(path)


def test_a_request_that_makes_no_sense_is_refused_alike(tmp_path: Path) -> None:
    for name in LAYOUTS:
        path = store(tmp_path / name, name)
        with pytest.raises(headrace.BadInput, match="mode"):
            layout_named(name).open(path, OpenRequest(mode="w"))
        with pytest.raises(headrace.BadInput, match="options of another layout"):
            layout_named(name).open(path, OpenRequest(options=LayoutOptions()))
        with pytest.raises(headrace.BadInput, match="unknown option"):
            headrace.open(path, no_such_option=1)
