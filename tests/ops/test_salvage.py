"""`salvage`: every sound message comes out byte-equal, the copy is sound, the source is untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import AlreadyExists, BadInput, NotFound
from headrace.layouts.base import LogState
from headrace.ops.look import salvage, verify
from headrace.record import Record
from tests.ops.helpers import STREAMS, expected_messages, fingerprint, small_store
from tests.ops.test_look import read_all
from tests.support import vectors


def contents(path: Path, **options: Any) -> dict[str, tuple[LogState, list[Record], dict[str, Any]]]:
    """State, messages and consumer positions of every stream."""
    with headrace.open(str(path), **options) as volume:
        found: dict[str, Any] = {}
        for name in volume.logs():
            store: Any = volume.open(name)
            consumers = {each: store.consumers.state_of(each) for each in store.consumers.names()}
            found[name] = (store.state(), list(store), consumers)
        return found


def test_sound_directories_come_out_as_they_were(jetstream_vector: vectors.Vector, tmp_path: Path) -> None:
    source, out = jetstream_vector.folder / "store", tmp_path / "out"
    before = fingerprint(source)
    report = salvage(str(source), str(out))
    assert report.complete and report.copy_sound, report
    assert fingerprint(source) == before
    assert read_all(out) == expected_messages(jetstream_vector)
    assert verify(str(out)).sound
    old, new = contents(source), contents(out)
    for name, (state, records, consumers) in old.items():
        copied, copied_records, copied_consumers = new[name]
        assert (copied.first_seq, copied.last_seq, copied.messages, copied.bytes, copied.deleted) == (
            state.first_seq,
            state.last_seq,
            state.messages,
            state.bytes,
            state.deleted,
        )
        assert copied_records == records
        assert copied_consumers == consumers


def test_the_copy_keeps_configurations_and_creation_times(
    jetstream_vector: vectors.Vector, tmp_path: Path
) -> None:
    source, out = jetstream_vector.folder / "store", tmp_path / "out"
    salvage(str(source), str(out))
    with headrace.open(str(source)) as old, headrace.open(str(out)) as new:
        for name in old.logs():
            before: Any = old.open(name)
            after: Any = new.open(name)
            assert (after.config, after.created_ns) == (before.config, before.created_ns)


@pytest.mark.parametrize("version", vectors.versions("jetstream"))
def test_damaged_directories_lose_only_what_was_damaged(version: str, tmp_path: Path) -> None:
    vector = vectors.load("jetstream", version)
    for case in vector.recovery():
        place = tmp_path / case.name
        place.mkdir()
        source = vector.copy(place)
        vectors.apply_ops(case.ops, source)
        before = fingerprint(source)
        report = salvage(str(source), str(place / "out"))
        assert fingerprint(source) == before
        assert report.copy_sound and verify(str(place / "out")).sound
        saved = read_all(place / "out")
        assert saved == read_all(source)
        truth = expected_messages(vector)
        assert len([at for at in truth if at not in saved]) <= 1
        assert all(saved[at] == truth[at] for at in truth if at in saved), case.name
        edited = [op["file"] for op in case.ops if "file" in op]
        assert sorted({damage.file for damage in report.damage}) == [f"{source}/{file}" for file in edited]


def test_without_metadata_a_configuration_is_made_from_the_messages(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    before = contents(store)
    for name in ("meta.inf", "meta.sum"):
        (store / STREAMS / "ORDERS" / name).unlink()
    report = salvage(str(store), str(tmp_path / "out"))
    assert report.streams[0].config_guessed and not report.complete and report.copy_sound
    assert any("made anew" in note for note in report.streams[0].notes)
    after = contents(tmp_path / "out")
    assert after["ORDERS"] == before["ORDERS"]
    with headrace.open(str(tmp_path / "out"), mode="rw") as volume:
        store_again: Any = volume.open("ORDERS")
        assert store_again.config.subjects == ("orders.0", "orders.1", "orders.2", "orders.3")
        assert store_again.append(headrace.batch("orders.0", [b"next"])).first == 301


def test_damage_in_a_cleanly_stopped_store_is_left_behind(tmp_path: Path) -> None:
    """Such a store opens by its index, without a scan: salvage must still not copy what is unsound."""
    store = small_store(tmp_path / "store")
    truth = {record.seq: record for record in contents(store)["ORDERS"][1]}
    for number in (1, 3):
        vectors.xor(store / STREAMS / f"ORDERS/msgs/{number}.blk", 40, 0x55)
    report = salvage(str(store), str(tmp_path / "out"))
    lost = {seq for damage in report.damage for seq in range(damage.first_seq or 0, damage.next_seq or 0)}
    assert len(lost) == 2
    saved = {record.seq: record for record in contents(tmp_path / "out")["ORDERS"][1]}
    assert saved == {seq: record for seq, record in truth.items() if seq not in lost}
    assert verify(str(tmp_path / "out")).sound


def test_limits_do_not_eat_what_is_being_saved(tmp_path: Path) -> None:
    with headrace.open(
        str(tmp_path / "store"), mode="rw", create=True, clock=lambda: 1_000_000_000
    ) as volume:
        old = volume.create("OLD", subjects=["old"], max_age=10_000_000_000, discard="new", max_msgs=5)
        volume.commit([old.append(headrace.batch("old", [b"1", b"2", b"3", b"4", b"5"]))])
    report = salvage(str(tmp_path / "store"), str(tmp_path / "out"))
    assert report.messages == 5
    assert any("limits apply again" in note for note in report.streams[0].notes)
    with headrace.open(str(tmp_path / "out")) as volume:
        copied: Any = volume.open("OLD")
        assert copied.config.max_age == 10_000_000_000
        assert copied.fast_state().messages == 5


def test_encrypted_stores_are_saved_in_plain_form(tmp_path: Path) -> None:
    vector = vectors.load("jetstream", "2.15.2")
    report = salvage(
        str(vector.folder / "store-encrypted"), str(tmp_path / "out"), key=vector.manifest["encrypted"]["key"]
    )
    assert report.complete and any("not encrypted" in note for note in report.streams[0].notes)
    assert read_all(tmp_path / "out") == expected_messages(vector, encrypted=True)


def test_the_target_must_be_free(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    before = fingerprint(store)
    for out, error in (
        (full, AlreadyExists),
        (full / "file", AlreadyExists),
        (store, BadInput),
        (store / "inside", BadInput),
        (tmp_path, BadInput),
        (tmp_path / "no" / "such", NotFound),
    ):
        with pytest.raises(error):
            salvage(str(store), str(out))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert salvage(str(store), str(empty)).messages == 297
    assert fingerprint(store) == before
    assert (full / "file").read_text() == "mine"
    assert not list(tmp_path.glob("*.incomplete"))


def test_a_failed_salvage_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace.layouts.jetstream.recovery.salvage as module

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "copy_consumers", fail)
    with pytest.raises(KeyboardInterrupt):
        salvage(str(small_store(tmp_path / "store")), str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
