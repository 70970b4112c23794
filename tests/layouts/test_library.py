"""The library as its users meet it, on every layout: iteration, closing, one report for all, names, subjects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import BadInput, HeadraceError, NotFound, StoreClosed
from headrace.layouts.base import Log, Volume
from headrace.layouts.stream_store import StreamStore
from headrace.ops.archive import ArchiveOptions, archive

NAMES = {
    "jetstream": "ORDERS",
    "nats_streaming": "orders.new",
    "kafka": "orders-0",
    "rocketmq": "orders-0",
    "rabbitmq": "orders",
}
PRODUCTS = {
    "jetstream": "NATS JetStream",
    "nats_streaming": "NATS Streaming",
    "kafka": "Kafka",
    "rocketmq": "RocketMQ",
    "rabbitmq": "RabbitMQ",
    "parquet": "",
}
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


@pytest.fixture(params=[*NAMES, "parquet"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, str]:
    """(layout, directory, name of its one log) with three messages."""
    layout: str = request.param
    written, place = ("jetstream" if layout == "parquet" else layout), tmp_path / "store"
    name = NAMES[written]
    options: dict[str, Any] = {"subjects": ["orders.>"]} if written == "jetstream" else {}
    with headrace.open(place, mode="rw", create=True, layout=written) as volume:
        log = volume.create(name, **options)
        volume.commit([log.append(headrace.batch("orders.new", [b"one", b"two", b"three"]))])
    if layout != "parquet":
        return layout, place, name
    archive(str(place), str(tmp_path / "lake"), ArchiveOptions(newest=True))
    return layout, tmp_path / "lake", name


def test_a_volume_is_a_collection_of_logs(made: tuple[str, Path, str]) -> None:
    _, place, name = made
    with headrace.open(place) as volume:
        assert [log.name for log in volume] == [name]
        assert len(volume) == 1
        assert name in volume and "nothing" not in volume and 7 not in volume
        assert [record.data for record in volume[name]] == [b"one", b"two", b"three"]
        with pytest.raises(NotFound, match="nothing"):
            volume["nothing"]


def test_an_empty_volume_is_true(tmp_path: Path) -> None:
    with headrace.open(tmp_path, mode="rw", create=True) as volume:
        assert not len(volume) and bool(volume)


def test_reports_have_one_form(made: tuple[str, Path, str]) -> None:
    layout, place, name = made
    for report in (headrace.verify(place), headrace.inspect(place), headrace.verify(place, log=name)):
        assert isinstance(report, headrace.Report)
        assert report.sound and report.exit_code == 0
        assert (report.path, report.layout, report.messages) == (str(place), layout, 3)
        assert PRODUCTS[layout] in report.product
        assert [(log.name, log.messages, log.sound) for log in report.logs] == [(name, 3, True)]
        assert not report.damage and not report.problems and not report.left_out
        assert report.file_bytes > 0 and report.to_dict()["sound"] is True
        assert str(report) == f"{place}: sound"
    with pytest.raises(NotFound, match="nothing"):
        headrace.verify(place, log="nothing")


def test_damage_is_in_the_report_of_every_product(made: tuple[str, Path, str]) -> None:
    _, place, name = made
    for file in place.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        if b"three" in content:
            file.write_bytes(content.replace(b"three", b"thr"))
        elif file.suffix == ".parquet":
            file.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    report = headrace.verify(place)
    assert not report.sound and report.exit_code in (1, 2)
    assert report.damage or report.problems
    assert [log.sound for log in report.logs if log.name == name] == [False]
    assert "not sound" in str(report) and "not sound" in repr(report)


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_after_close_every_call_says_so(made: tuple[str, Path, str], mode: str) -> None:
    layout, place, name = made
    volume = headrace.open(place, mode="r" if layout == "parquet" else mode)  # archives are only read
    log = volume[name]
    volume.close()
    for what, call in [*calls_of_volume(volume, name), *calls_of_log(log)]:
        with pytest.raises(HeadraceError) as caught:
            call()
        never = isinstance(
            caught.value, BadInput | headrace.ReadOnly
        )  # what this layout cannot do at any time
        assert never or isinstance(caught.value, StoreClosed), what
        if isinstance(caught.value, StoreClosed):
            assert re.search(r"was (closed|stopped); open it again", str(caught.value)), what
        else:
            assert what in ALWAYS_REFUSED[layout], what
    assert name in repr(log) and str(place) in repr(volume)
    volume.close()


NO_FRAMES = {"append_frames", "read_frames"}
ALWAYS_REFUSED: dict[str, set[str]] = {
    "jetstream": NO_FRAMES,
    "nats_streaming": NO_FRAMES | {"remove"},
    "kafka": {"remove"},
    "rocketmq": NO_FRAMES | {"remove", "drop_front"},
    "rabbitmq": NO_FRAMES,
    "parquet": NO_FRAMES | {"append", "remove", "drop_front", "create", "delete", "commit", "commit_soon"},
}


def calls_of_volume(volume: Volume, name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "logs", volume.logs
    yield "open", lambda: volume.open(name)
    yield "create", lambda: volume.create("another")
    yield "delete", lambda: volume.delete(name)
    yield "commit", lambda: volume.commit([])
    yield "commit_soon", lambda: volume.commit_soon([])
    yield "damage", volume.damage
    yield "len", lambda: len(volume)
    yield "in", lambda: name in volume
    yield "iter", lambda: list(volume)
    yield "[]", lambda: volume[name]


def calls_of_log(log: Log) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "append", lambda: log.append(headrace.batch("orders.new", [b"x"]))
    yield "append_frames", lambda: log.append_frames(None)  # type: ignore[arg-type]
    yield "read", lambda: log.read(1)
    yield "read_frames", lambda: log.read_frames(1)
    yield "seq_from_time", lambda: log.seq_from_time(1)
    yield "state", log.state
    yield "remove", lambda: log.remove([1])
    yield "drop_front", lambda: log.drop_front(1)
    yield "scan_tasks", log.scan_tasks
    yield "batches", lambda: list(log.batches())
    yield "scan", lambda: list(log.scan())
    yield "to_arrow", log.to_arrow
    yield "iter", lambda: list(log)
    if not isinstance(log, StreamStore):
        return
    yield "store_msg", lambda: log.store_msg("orders.new", None, b"x")
    yield "store_raw_msg", lambda: log.store_raw_msg("orders.new", None, b"x", 99, 1)
    yield "skip_msg", log.skip_msg
    yield "load_msg", lambda: log.load_msg(1)
    yield "load_msgs", lambda: log.load_msgs([1])
    yield "load_last_msg", lambda: log.load_last_msg(">")
    yield "load_next_msg", lambda: log.load_next_msg(">", 1)
    yield "remove_msg", lambda: log.remove_msg(1)
    yield "erase_msg", lambda: log.erase_msg(1)
    yield "purge", log.purge
    yield "purge_ex", lambda: log.purge_ex("", 0, 1)
    yield "compact", lambda: log.compact(1)
    yield "truncate", lambda: log.truncate(1)
    yield "filtered_state", lambda: log.filtered_state(1, ">")
    yield "subjects_state", lambda: log.subjects_state(">")
    yield "fast_state", log.fast_state
    yield "update_config", lambda: log.update_config(None)
    yield "consumer_store", lambda: log.consumer_store("c", None)
    yield "snapshot", lambda: log.snapshot(1, True, True)
    yield "utilization", log.utilization
    yield "delete", log.delete


def test_what_is_printed_has_no_addresses(made: tuple[str, Path, str]) -> None:
    _, place, name = made
    with headrace.open(place) as volume:
        log = volume[name]
        batch = log.read(log.state().first_seq)
        shown = [volume, log, batch, batch[0], log.state(), headrace.verify(place), headrace.inspect(place)]
        shown += [headrace.Ticket(name, 1, 2, 2), headrace.Damage("f", 0, 1, "bad-record", "why")]
        assert not [text for text in map(repr, shown) if ADDRESS.search(text) or "object at" in text]
        assert "3 messages" in repr(batch) and "b'one'" in repr(batch[0])


def test_a_long_body_is_cut_in_print() -> None:
    record = headrace.batch("s", [b"x" * 1_000_000])[0]
    assert len(repr(record)) < 300 and "1000000 bytes" in repr(record)


def test_subjects_of_other_streams_are_refused(tmp_path: Path) -> None:
    with headrace.open(tmp_path, mode="rw", create=True) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>", "returns.*"])
        with pytest.raises(
            BadInput, match=r"ORDERS does not take messages on 'payments.new'.*orders.>, returns.\*"
        ):
            orders.store_msg("payments.new", None, b"x")
        with pytest.raises(BadInput, match=r"'returns\.a\.b'"):
            orders.append(headrace.batch(["orders.a", "returns.a.b"], [b"1", b"2"]))
        assert orders.state().messages == 0, "nothing of a refused batch is stored"
        orders.append(headrace.batch(["orders.a", "returns.b"], [b"1", b"2"]))
        # A copy keeps what it is a copy of.
        orders.store_raw_msg("payments.new", None, b"3", 7, 1)
        assert [record.subject for record in orders] == ["orders.a", "returns.b", "payments.new"]


def test_only_public_names_are_shown() -> None:
    assert set(dir(headrace)) == set(headrace.__all__)
    assert all(getattr(headrace, name) is not None for name in headrace.__all__)
    for name, value in vars(headrace.errors).items():
        if isinstance(value, type) and issubclass(value, HeadraceError):
            assert getattr(headrace, name) is value
    with pytest.raises(BadInput, match="known are: jetstream"):
        headrace.open("x", create=True, layout="activemq")
