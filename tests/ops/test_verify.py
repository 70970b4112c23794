"""`verify`: sound directories of three eras are sound; every edit is found where it was made."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import headrace
from headrace import _core
from headrace.errors import KeyNeeded, NotFound
from headrace.layouts.jetstream.checks.plan import make_plan
from headrace.ops.look import verify
from tests.ops.helpers import STREAMS, fingerprint, small_store
from tests.support import vectors

CASES = [
    pytest.param(version, case, id=f"{version}-{case.name}")
    for version in vectors.versions("jetstream")
    for case in vectors.load("jetstream", version).recovery()
]


def test_golden_directories_are_sound(jetstream_vector: vectors.Vector) -> None:
    before = fingerprint(jetstream_vector.folder / "store")
    report = verify(str(jetstream_vector.folder / "store"))
    assert report.sound, str(report)
    assert not report.notes
    assert {stream.name for stream in report.streams} == set(jetstream_vector.streams())
    for stream in report.streams:
        manifest = jetstream_vector.streams()[stream.name]
        assert stream.messages >= manifest["state"]["messages"]
        assert stream.consumers == len(manifest["consumers"])
    assert fingerprint(jetstream_vector.folder / "store") == before


def test_encrypted_directories_are_sound_with_the_key() -> None:
    vector = vectors.load("jetstream", "2.15.2")
    store = str(vector.folder / "store-encrypted")
    assert verify(store, key=vector.manifest["encrypted"]["key"]).sound
    for key in (None, "wrong"):
        with pytest.raises(KeyNeeded):
            verify(store, key=key)


@pytest.mark.parametrize(("version", "case"), CASES)
def test_every_edit_is_found_where_it_was_made(
    version: str, case: vectors.RecoveryCase, tmp_path: Path
) -> None:
    store = vectors.load("jetstream", version).copy(tmp_path)
    sizes = {path: path.stat().st_size for path in store.rglob("*.blk")}
    vectors.apply_ops(case.ops, store)
    report = verify(str(store))
    edits = [op for op in case.ops if op["op"] != "remove_index_files"]
    if not edits:
        assert report.sound, str(report)
        return
    (edit,) = edits
    file = store / edit["file"]
    assert [damage.file for damage in report.damage] == [str(file)], str(report)
    (damage,) = report.damage
    if edit["op"] == "xor":
        assert damage.kind in ("bad-record", "repaired")
        assert damage.offset <= edit["offset"] < damage.offset + damage.length
        assert (damage.first_seq, damage.next_seq) == (8, 9)
    else:
        assert damage.kind == "unsound-tail"
        assert damage.offset + damage.length == file.stat().st_size < sizes[file]


def test_a_flipped_bit_in_each_part_of_a_block_is_damage(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    block = store / STREAMS / "ORDERS/msgs/2.blk"
    for offset in (0, 5, 14, 23, 40, block.stat().st_size - 3):
        vectors.xor(block, offset, 4)
        report = verify(str(store))
        assert not report.sound
        (damage,) = report.damage
        assert damage.file == str(block)
        assert damage.offset <= offset < damage.offset + damage.length
        vectors.xor(block, offset, 4)
    assert verify(str(store)).sound


def test_a_block_cut_between_records_is_missed_by_the_index(tmp_path: Path) -> None:
    """No hash is wrong then; only the index knows that there was more."""
    store = small_store(tmp_path / "store", messages=50, block_bytes=1 << 20)
    block = store / STREAMS / "ORDERS/msgs/1.blk"
    whole, cut = block.read_bytes(), tmp_path / "cut.blk"
    for length in range(len(whole) - 1, 0, -1):
        cut.write_bytes(whole[:length])
        scan = _core.js_scan_block(_core.Disk.real(), str(cut), "ORDERS", 1)
        if not scan.findings and len(scan.batch) == 48:
            break
    block.write_bytes(whole[:length])
    report = verify(str(store))
    (damage,) = report.damage
    assert (damage.kind, damage.first_seq, damage.next_seq) == ("missing", 49, 51), str(report)


def test_a_whole_block_that_is_gone_is_missed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    gone = store / STREAMS / "ORDERS/msgs/2.blk"
    gone.unlink()
    report = verify(str(store))
    assert [(damage.kind, damage.file) for damage in report.damage] == [("missing", str(gone))]


def test_a_damaged_index_is_damage_an_older_one_is_not(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    index = store / STREAMS / "ORDERS/msgs/index.db"
    old = index.read_bytes()
    with headrace.open(str(store), mode="rw") as volume:
        volume.commit([volume.open("ORDERS").append(headrace.batch("orders.x", [b"later"]))])
    (store / STREAMS / "ORDERS/headrace/clean.json").unlink()
    index.write_bytes(old)
    report = verify(str(store))
    assert report.sound, str(report)
    assert any("index.db" in note for note in report.notes)
    vectors.xor(index, 9, 1)
    report = verify(str(store))
    assert [(damage.kind, damage.file) for damage in report.damage] == [("index", str(index))]


def test_an_index_that_lies_about_its_blocks_is_damage(tmp_path: Path) -> None:
    """Its hash is right (anybody can make one); its counts are not."""
    import hashlib

    store = small_store(tmp_path / "store", messages=50, block_bytes=1 << 20)
    index = store / STREAMS / "ORDERS/msgs/index.db"
    body = bytearray(index.read_bytes()[:-8])
    assert body[2] == 47
    body[2] = 46
    index.write_bytes(bytes(body) + _core.highway_hash(hashlib.sha256(b"ORDERS").digest(), bytes(body)))
    (store / STREAMS / "ORDERS/headrace/clean.json").unlink()
    assert [damage.kind for damage in verify(str(store)).damage] == ["index"]


@pytest.mark.parametrize("name", ["meta.inf", "meta.sum", "obs/C/o.dat", "obs/C/meta.inf"])
def test_damaged_metadata_is_found_and_the_blocks_still_checked(name: str, tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    file = store / STREAMS / "ORDERS" / name
    raw = bytearray(file.read_bytes())
    raw[3] ^= 0x55
    file.write_bytes(raw)
    vectors.xor(store / STREAMS / "ORDERS/msgs/1.blk", 40, 0x55)
    report = verify(str(store))
    folder, block = str(file.parent), str(store / STREAMS / "ORDERS/msgs/1.blk")
    assert {damage.file.rsplit("/", 1)[0] for damage in report.damage if damage.file != block} == {folder}
    assert [damage.kind for damage in report.damage if damage.file == block] == ["bad-record"]
    assert report.streams[0].messages == 299


def test_missing_metadata_is_found(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    (store / STREAMS / "ORDERS/meta.inf").unlink()
    report = verify(str(store))
    assert [damage.kind for damage in report.damage] == ["missing"]
    assert report.messages == 300


def test_beside_a_writer_nothing_under_way_is_damage(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with headrace.open(path, mode="rw", create=True) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        volume.commit([orders.append(headrace.batch("orders.new", [b"one", b"two"]))])
        block = Path(path) / STREAMS / "ORDERS/msgs/1.blk"
        with block.open("ab") as file:
            file.write(b"half a rec")
        report = verify(path)
        assert report.sound, str(report)
        assert any("writing now" in note for note in report.notes)
        with block.open("r+b") as file:
            file.truncate(block.stat().st_size - 10)


def test_an_unreadable_block_is_a_problem_not_damage(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    block = store / STREAMS / "ORDERS/msgs/1.blk"
    block.unlink()
    block.symlink_to(block)
    report = verify(str(store))
    assert not report.sound
    assert report.problems and str(block) in report.problems[0]


def test_tasks_travel(tmp_path: Path) -> None:
    """What checks a block here can check it elsewhere."""
    plan = make_plan(str(small_store(tmp_path / "store")))
    assert len(plan.tasks) > 3
    for task in plan.tasks:
        assert pickle.loads(pickle.dumps(task)).run() == task.run()


def test_one_stream_by_name_or_by_its_directory(jetstream_vector: vectors.Vector) -> None:
    store = str(jetstream_vector.folder / "store")
    assert [stream.name for stream in verify(store, log="WQ").streams] == ["WQ"]
    assert verify(f"{store}/{STREAMS}/WQ").sound
    assert verify(f"{store}/jetstream").messages == verify(store).messages
    with pytest.raises(NotFound, match=r"there are: .*ORDERS"):
        verify(store, log="NOPE")


def test_memory_disks_too() -> None:
    disk = _core.Disk.memory()
    with headrace.open("/store", mode="rw", create=True, disk=disk) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        volume.commit([orders.append(headrace.batch("orders.new", [b"x"] * 10))])
    assert verify("/store", disk=disk).sound
    disk.flip_bit(f"/store/{STREAMS}/ORDERS/msgs/1.blk", 35, 3)
    assert not verify("/store", disk=disk).sound


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(str(small_store(tmp_path / "store")), progress=lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
