"""Strange things in the place of files: links, FIFOs, directories, files of a terabyte.

What is only a shortcut is passed over and reported. What holds messages leads to a report or to an error that names it.
Nothing hangs, and nothing outside the store is read, written or removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import headrace
from headrace.config.model import ConsumerConfig
from headrace.errors import DiskFault, HeadraceError
from headrace.layouts.base import ConsumerState, Damage, SequencePair
from headrace.layouts.jetstream.store.sidecar import CleanStamp
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.ops.cat import Reading
from headrace.ops.look import salvage
from tests.support import vectors

MESSAGES = 60
HUGE = 1 << 40
VHOST = "628WB79CIFDYO9LJI6DKMI09L"


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link(path: Path) -> None:
    outside = path.with_name(f"{path.name}.elsewhere")
    shutil.move(path, outside)
    path.symlink_to(outside)


def as_huge(path: Path) -> None:
    os.truncate(path, HUGE)


SHAPES: list[Callable[[Path], None]] = [as_directory, as_fifo, as_link, as_huge]


def jetstream_store(path: Path) -> Path:
    """Three blocks with guards, an index, a consumer; stopped cleanly."""
    with JetStreamVolume(str(path), mode="rw", create=True, block_bytes=3000) as volume:
        store = volume.create("S", subjects=["k.>"])
        for number in range(MESSAGES):
            store.append(headrace.batch(f"k.{number % 5}", [b"x" * 100]))
        consumer = store.consumers.create("C", ConsumerConfig(durable_name="C", ack_policy="explicit"), 1)
        consumer.update(ConsumerState(SequencePair(5, 5), SequencePair(5, 5)))
        store.commit()
    return path


def read_all(path: Path) -> tuple[int, list[Damage]]:
    """How many messages a reader gets, and what is reported; also by `cat`."""
    with headrace.open(str(path)) as volume:
        count = sum(len(list(volume.open(name))) for name in volume.logs())
        found = volume.damage()
    assert sum(len(batch) for _, batch in Reading(str(path))) == count
    return count, found


def saved(path: Path, out: Path) -> int:
    salvage(str(path), str(out))
    return read_all(out)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["msgs/index.db", "headrace/1.guard", "obs/C/o.dat", "headrace/durable"])
def test_shortcuts_of_jetstream(name: str, shape: Callable[[Path], None], tmp_path: Path) -> None:
    store = jetstream_store(tmp_path / "store")
    file = store / "jetstream" / "$G" / "streams" / "S" / name
    shape(file)
    count, found = read_all(store)
    assert count == MESSAGES
    named = [str(file) in each.file for each in found]
    assert any(named) or name.startswith("headrace/")
    from headrace.ops.look import verify

    assert any(each.file == str(file) for each in verify(str(store)).damage)
    assert saved(store, tmp_path / "saved") == MESSAGES
    with headrace.open(str(store), mode="rw") as volume:
        log = volume.open("S")
        assert len(list(log)) == MESSAGES
        volume.commit([log.append(headrace.batch("k.1", [b"more"]))])
    assert read_all(store)[0] == MESSAGES + 1


CASES = [
    ("kafka", "4.3.1/store/fx-txn-0", "00000000000000000000.index"),
    ("kafka", "4.3.1/store/fx-txn-0", "00000000000000000064.timeindex"),
    ("kafka", "4.3.1/store/fx-txn-0", "leader-epoch-checkpoint"),
    ("nats_streaming", "0.25.6/slices", "orders/msgs.2.idx"),
    ("nats_streaming", "0.25.6/slices", "clients.dat"),
    ("nats_streaming", "0.25.6/slices", "server.dat"),
    ("rocketmq", "5.3.3/store", "consumequeue/TopicA/0/00000000000000000000"),
    ("rabbitmq", "3.10.8/clean_mixed", "628WB79CIFDYO9LJI6DKMI09L/recovery.dets"),
    ("rabbitmq", "3.10.8/clean_mixed", "628WB79CIFDYO9LJI6DKMI09L/.vhost"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("product", "folder", "name"), CASES)
def test_shortcuts_of_the_other_layouts(
    product: str, folder: str, name: str, shape: Callable[[Path], None], tmp_path: Path
) -> None:
    source = vectors.ROOT / product / folder
    store = tmp_path / "store" / source.name if product == "kafka" else tmp_path / "store"
    shutil.copytree(source, store)
    root = store.parent if product == "kafka" else store
    before, _ = read_all(root)
    shape(store / name)
    count, found = read_all(root)
    assert count == before
    assert any(each.file == str(store / name) for each in found)
    assert saved(root, tmp_path / "saved") == before


DATA = [
    ("kafka", "4.3.1/store/fx-txn-0", "00000000000000000024.log"),
    ("nats_streaming", "0.25.6/slices", "orders/msgs.2.dat"),
    ("rocketmq", "5.3.3/store", "commitlog/00000000000000004096"),
    ("rabbitmq", "3.10.8/clean_mixed", "628WB79CIFDYO9LJI6DKMI09L/msg_store_persistent/0.rdq"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("product", "folder", "name"), DATA)
def test_what_holds_messages_is_named(
    product: str, folder: str, name: str, shape: Callable[[Path], None], tmp_path: Path
) -> None:
    """All messages, or a report or an error with the file's name; and that soon, whatever the file's length."""
    source = vectors.ROOT / product / folder
    store = tmp_path / "store" / source.name if product == "kafka" else tmp_path / "store"
    shutil.copytree(source, store)
    root = store.parent if product == "kafka" else store
    before, _ = read_all(root)
    shape(store / name)
    try:
        count, found = read_all(root)
    except HeadraceError as problem:
        assert str(store / name) in str(problem)
    else:
        assert count == before or any(each.file == str(store / name) for each in found)


class TestLinks:
    """A store is written to, and a link in it leads elsewhere."""

    def test_the_lock_overwrites_nothing(self, tmp_path: Path) -> None:
        store, treasure = tmp_path / "store", tmp_path / "treasure"
        treasure.write_bytes(b"gold")
        store.mkdir()
        (store / "headrace.lock").symlink_to(treasure)
        with pytest.raises(DiskFault, match="symbolic link"):
            headrace.open(str(store), mode="rw", create=True)
        (store / "headrace.lock").unlink()
        (store / "headrace.lock").hardlink_to(treasure)
        with pytest.raises(DiskFault, match="hard link"):
            headrace.open(str(store), mode="rw", create=True)
        assert treasure.read_bytes() == b"gold"

    def test_a_purge_removes_nothing_elsewhere(self, tmp_path: Path) -> None:
        store, outside = jetstream_store(tmp_path / "store"), tmp_path / "outside"
        msgs = store / "jetstream" / "$G" / "streams" / "S" / "msgs"
        shutil.move(msgs, outside)
        msgs.symlink_to(outside)
        before = {path.name: path.read_bytes() for path in outside.iterdir()}
        with (
            pytest.raises(DiskFault, match=r"msgs: .*symbolic link"),
            headrace.open(str(store), mode="rw") as volume,
        ):
            volume.open("S").purge()  # type: ignore[attr-defined]
        assert {path.name: path.read_bytes() for path in outside.iterdir()} == before

    def test_the_path_that_was_given_may_be_a_link(self, tmp_path: Path) -> None:
        store, link = jetstream_store(tmp_path / "real" / "store"), tmp_path / "link"
        link.symlink_to(tmp_path / "real")
        assert read_all(link / "store")[0] == MESSAGES
        stream = tmp_path / "S"
        stream.symlink_to(store / "jetstream" / "$G" / "streams" / "S")
        assert sum(len(batch) for _, batch in Reading(str(stream))) == MESSAGES
        with headrace.open(str(link / "store"), mode="rw") as volume:
            log = volume.open("S")
            volume.commit([log.append(headrace.batch("k.1", [b"more"]))])
        for product, folder in (("nats_streaming", "0.25.6/slices"), ("rocketmq", "5.3.3/store")):
            shutil.copytree(vectors.ROOT / product / folder, tmp_path / "real" / product)
            assert read_all(link / product)[0] == read_all(tmp_path / "real" / product)[0]


def test_numbers_beyond_64_bits(tmp_path: Path) -> None:
    """Names that no writer gave are no blocks, and no fault."""
    store = jetstream_store(tmp_path / "store")
    msgs = store / "jetstream" / "$G" / "streams" / "S" / "msgs"
    for digits in ("18446744073709551616", "9" * 40):
        shutil.copy(msgs / "1.blk", msgs / f"{digits}.blk")
        (msgs / f"{digits}.key").write_bytes(b"x")
        (msgs / f"{digits}.idx").write_bytes(b"x")
        (msgs.parent / "headrace" / f"{digits}.guard").write_bytes(b"x")
    count, found = read_all(store)
    assert count == MESSAGES and sum(each.file.endswith(".blk") for each in found) == 2
    side = msgs.parent / "headrace" / "clean.json"
    stamp = msgspec.json.decode(side.read_bytes(), type=CleanStamp)
    raised = msgspec.structs.replace(stamp, blocks={**stamp.blocks, 2**70: 5}, last_seq=2**80)
    side.write_bytes(msgspec.json.encode(raised.summed()))
    (msgs.parent / "headrace" / "durable").unlink()
    assert read_all(store)[0] == MESSAGES
    with headrace.open(str(store), mode="rw") as volume:
        assert volume.open("S").state().last_seq == MESSAGES


HIGHEST = "9" * 20
"""Twenty digits as Kafka and RocketMQ write them, and more than 64 bits hold."""


@pytest.mark.parametrize(
    ("product", "folder", "name", "copy"),
    [
        ("kafka", "4.3.1/store/fx-txn-0", "00000000000000000024.log", f"{HIGHEST}.log"),
        ("kafka", "4.3.1/store/fx-txn-0", "00000000000000000024.log", "7.log"),
        ("rocketmq", "5.3.3/store", "commitlog/00000000000000004096", f"commitlog/{HIGHEST}"),
        ("rocketmq", "5.3.3/store", *[f"consumequeue/TopicA/0/{n}" for n in ("0" * 20, HIGHEST)]),
        *(
            ("rabbitmq", "3.10.8/clean_mixed", f"{VHOST}/msg_store_persistent/0.rdq", f"{VHOST}/{copy}")
            for copy in (f"msg_store_persistent/{HIGHEST}.rdq", f"msg_store_persistent/{HIGHEST * 2}.rdq")
        ),
    ],
)
def test_numbers_that_no_writer_gave(product: str, folder: str, name: str, copy: str, tmp_path: Path) -> None:
    """They are named, and everything else is read as before; also for writing."""
    source = vectors.ROOT / product / folder
    store = tmp_path / "store" / source.name if product == "kafka" else tmp_path / "store"
    shutil.copytree(source, store)
    root = store.parent if product == "kafka" else store
    before, _ = read_all(root)
    shutil.copy(store / name, store / copy)
    count, found = read_all(root)
    assert count == before
    assert [each.kind for each in found if each.file == str(store / copy)] == ["metadata"]
    assert headrace.verify(str(root)).damage
    with headrace.open(str(root), mode="rw") as volume:
        assert sum(len(list(log)) for log in volume) == before
    assert (store / copy).exists()
