"""Consumers of a stream: moves, journal and checkpoint, crashes, damage, directories of real servers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core import Disk, FaultPlan
from headrace.config.model import ConsumerConfig
from headrace.errors import (
    AlreadyExists,
    BadInput,
    DiskFault,
    DiskFull,
    MessageNotFound,
    NotFound,
    ReadOnly,
    StoreClosed,
    StorePoisoned,
)
from headrace.layouts.base import ConsumerState, Pending, SequencePair
from headrace.layouts.jetstream.consumers.consumers import Consumers
from headrace.layouts.jetstream.consumers.log import decode_change, state_payload
from headrace.layouts.jetstream.consumers.moves import Rules, apply_acks, apply_delivered, check_state
from headrace.layouts.jetstream.consumers.state import decode_state, encode_state
from headrace.layouts.jetstream.sealed import StoreKey
from tests.support import vectors

DIR, STREAM = "/js/S", "S"
EXPLICIT = ConsumerConfig(durable_name="C", ack_policy="explicit").filled()
RENAMED = ConsumerConfig(durable_name="C", ack_policy="explicit", description="new").filled()
T = 1_700_000_000_000_000_000


def opened(disk: Disk, **options: Any) -> Consumers:
    return Consumers(disk, DIR, STREAM, **options)


def fresh() -> tuple[Disk, Consumers]:
    disk = Disk.memory()
    disk.create_dir_all(DIR)
    for directory in ("/", "/js"):
        disk.sync_dir(directory)
    return disk, opened(disk)


def file_new(consumers: Consumers) -> None:
    """Two ticks without a new consumer between them: directories go to disk."""
    for _ in range(2):
        consumers.tick(T)


def delivered(count: int, policy: str = "explicit", max_deliver: int = -1) -> tuple[ConsumerState, Rules]:
    state, rules = ConsumerState(), Rules(policy, max_deliver)  # type: ignore[arg-type]
    for seq in range(1, count + 1):
        apply_delivered(state, rules, seq, seq, 1, T + seq)
    return state, rules


class TestMoves:
    def test_the_floor_follows_the_lowest_pending(self) -> None:
        state, rules = delivered(6)
        for seq, floor in ((2, 0), (3, 0), (5, 0), (1, 3), (4, 5), (6, 6)):
            apply_acks(state, rules, seq, seq)
            assert state.ack_floor == SequencePair(floor, floor)
        assert state.pending == {}

    def test_with_a_filter_the_floor_jumps_over_the_gap(self) -> None:
        state, rules = ConsumerState(), Rules("explicit")
        for own, seq in ((1, 3), (2, 8), (3, 10)):
            apply_delivered(state, rules, own, seq, 1, T)
        apply_acks(state, rules, 1, 3)
        assert state.ack_floor == SequencePair(1, 7)
        apply_acks(state, rules, 2, 8)
        apply_acks(state, rules, 3, 10)
        assert state.ack_floor == state.delivered == SequencePair(3, 10)

    def test_a_redelivery_keeps_its_first_consumer_sequence(self) -> None:
        state, rules = delivered(2)
        apply_delivered(state, rules, 3, 1, 2, T + 99)
        assert state.pending[1] == Pending(1, T + 99)
        assert (state.redelivered, state.delivered) == ({1: 1}, SequencePair(3, 2))
        apply_acks(state, rules, 3, 1)
        assert (state.redelivered, state.ack_floor) == ({}, SequencePair(1, 1))
        apply_acks(state, rules, 2, 2)
        assert state.ack_floor == SequencePair(3, 2)

    def test_beyond_max_deliver_a_message_leaves_pending_and_the_floor_waits(self) -> None:
        state, rules = delivered(3, max_deliver=1)
        apply_delivered(state, rules, 4, 1, 2, T)
        assert list(state.pending) == [2, 3]
        apply_acks(state, rules, 2, 2)
        assert state.ack_floor == SequencePair(0, 0)

    def test_ack_all_acks_everything_below(self) -> None:
        state, rules = delivered(5, "all")
        apply_delivered(state, rules, 6, 2, 2, T)
        apply_acks(state, rules, 4, 4)
        assert (state.ack_floor, list(state.pending), state.redelivered) == (SequencePair(4, 4), [5], {})
        assert apply_acks(state, rules, 3, 3) is False

    def test_ack_none_moves_the_floor_with_the_delivery(self) -> None:
        state, rules = delivered(4, "none")
        assert state == ConsumerState(SequencePair(4, 4), SequencePair(4, 4))
        with pytest.raises(BadInput):
            apply_acks(state, rules, 5, 5)
        with pytest.raises(BadInput):
            apply_delivered(state, rules, 5, 5, 2, T)

    def test_old_news_changes_nothing(self) -> None:
        state, rules = delivered(3)
        for seq in (1, 2, 3):
            apply_acks(state, rules, seq, seq)
        assert apply_delivered(state, rules, 2, 2, 2, T) is False
        assert apply_acks(state, rules, 2, 2) is False
        with pytest.raises(MessageNotFound):
            apply_acks(state, rules, 9, 9)
        assert state == ConsumerState(SequencePair(3, 3), SequencePair(3, 3))

    @given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
    def test_the_state_never_contradicts_itself(self, steps: list[tuple[bool, int]]) -> None:
        state, rules, own = ConsumerState(), Rules("explicit"), 0
        for deliver, seq in steps:
            if deliver:
                own += 1
                again = seq in state.pending
                target = seq if again else state.delivered.stream + 1
                apply_delivered(state, rules, own, target, 2 if again else 1, T)
            elif seq in state.pending:
                apply_acks(state, rules, own, seq)
            check_state(state)
            assert list(state.pending) == sorted(state.pending)
        back = decode_change(3, state_payload("n", state), "")
        assert back.state == state


def test_created_consumers_are_found_again() -> None:
    disk, consumers = fresh()
    consumers.create("C", EXPLICIT, T)
    consumers.create("late", ConsumerConfig(durable_name="late", deliver_policy="new"), T, start_after=9)
    with pytest.raises(AlreadyExists):
        consumers.create("C", EXPLICIT, T)
    again = opened(disk.crash(0, "none"), writable=False)
    assert again.names() == ["C", "late"]
    assert again.get("C").config == EXPLICIT
    assert again.state_of("late").delivered == SequencePair(0, 9)
    assert again.damage() == []
    with pytest.raises(NotFound):
        again.get("nobody")


def test_names_are_checked_before_the_disk_is_touched() -> None:
    disk, consumers = fresh()
    for name in ("../x", "a/b", "", "..", "a.b"):
        with pytest.raises(BadInput):
            consumers.create(name, ConsumerConfig(), T)
    assert disk.list(DIR) == []


def test_committed_changes_survive_without_a_checkpoint() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    for seq in range(1, 6):
        store.update_delivered(seq, seq, 1, T + seq)
    store.update_acks(1, 1)
    store.commit()
    store.update_acks(2, 2)  # a plain ack: may be lost
    again = opened(disk.crash(0, "none"), writable=False)
    state = again.state_of("C")
    assert (state.delivered, state.ack_floor) == (SequencePair(5, 5), SequencePair(1, 1))
    assert state.pending[3] == Pending(3, T + 3)
    assert again.max_stream_seq() == 5


@pytest.mark.parametrize("filed", [False, True])
def test_opening_for_writing_folds_the_journal_into_the_files(filed: bool) -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    if filed:
        file_new(consumers)
    store.update_delivered(1, 7, 1, T)
    store.commit()
    crashed = disk.crash(0, "none")
    if filed:
        assert decode_state(crashed.read(f"{DIR}/obs/C/o.dat"), "S/C").state.delivered.stream == 0
    else:
        assert crashed.entry(f"{DIR}/obs/C") is None, "the journal alone holds it"
    again = opened(crashed)
    on_disk = decode_state(crashed.read(f"{DIR}/obs/C/o.dat"), "S/C")
    assert on_disk.hash_ok and on_disk.state.delivered == SequencePair(1, 7)
    assert crashed.list(f"{DIR}/headrace") == []
    again.get("C").update_acks(1, 7)
    again.commit()
    assert opened(crashed.crash(0, "none")).state_of("C").ack_floor == SequencePair(1, 7)


def test_a_new_consumer_costs_one_sync_and_is_filed_when_it_is_quiet() -> None:
    disk, consumers = fresh()
    consumers.create("first", EXPLICIT, T)
    syncs = disk.sync_points()
    for number in range(20):
        consumers.create(f"c{number}", EXPLICIT, T)
    assert disk.sync_points() == syncs + 20, "one each; those made at the same time share it"
    consumers.tick(T)
    assert disk.sync_points() == syncs + 20, "some were made since the last tick"
    consumers.tick(T)
    crashed = disk.crash(0, "none")
    assert sorted(name for name, _, _ in crashed.list(f"{DIR}/obs")) == consumers.names()
    # What somebody else removed from there afterwards stays removed, whatever the journal says.
    consumers.commit()
    crashed = disk.crash(0, "none")
    crashed.remove_dir_all(f"{DIR}/obs/c3")
    assert "c3" not in opened(crashed).names()


def test_a_new_consumer_comes_whole_out_of_the_journal() -> None:
    disk, consumers = fresh()
    config = ConsumerConfig(durable_name="late", deliver_policy="new", description="as made").filled()
    made = consumers.create("late", config, T, start_after=9)
    for survivors in ("none", "all", "random"):
        for seed in range(40 if survivors == "random" else 1):
            crashed = disk.crash(seed, survivors)
            for writable in (False, True):
                found = opened(crashed, writable=writable)
                assert found.damage() == [] and found.doubtful() == []
                assert (found.get("late").config, found.get("late").created_ns) == (config, T)
                assert found.state_of("late") == made.state()
            assert opened(crashed.crash(0, "none"), writable=False).state_of("late") == made.state()


def test_tick_writes_o_dat_at_most_once_a_second() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    assert not consumers.tick(T)
    store.update_delivered(1, 1, 1, T)
    assert consumers.tick(T)
    store.update_delivered(2, 2, 1, T)
    assert not consumers.tick(T + 999_999_999)
    assert consumers.tick(T + 1_000_000_000)
    assert decode_state(disk.read(f"{DIR}/obs/C/o.dat"), "S/C").state.delivered.stream == 2
    # The journal still holds both; the position in o.dat says that they are in it.
    consumers.commit()
    assert opened(disk.crash(0, "none"), writable=False).state_of("C") == store.state()


def test_a_clean_stop_leaves_no_journal_and_nothing_more_is_taken() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    store.update_delivered(1, 1, 1, T)
    consumers.stop()
    consumers.stop()
    consumers.commit()  # a store that unlinks its dead blocks afterwards asks for it: everything is on disk
    assert [name for name, _, _ in disk.list(f"{DIR}/headrace")] in ([], ["new"])
    with pytest.raises(StoreClosed):
        store.update_delivered(2, 2, 1, T)
    again = opened(disk.crash(0, "none"), writable=False)
    assert again.state_of("C").delivered == SequencePair(1, 1)
    with pytest.raises(ReadOnly):
        again.get("C").update_acks(1, 1)
    assert again.state_of("C").pending != {}


def test_a_large_journal_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.layouts.jetstream.consumers.consumers.JOURNAL_BYTES_MAX", 500)
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    for seq in range(1, 60):
        store.update_delivered(seq, seq, 1, T)
        consumers.tick(T + seq * 2_000_000_000)
    consumers.commit()
    files = [name for name, _, _ in disk.list(f"{DIR}/headrace") if name.endswith(".journal")]
    assert len(files) == 1 and files != ["consumers.1.journal"]
    assert opened(disk.crash(0, "none"), writable=False).state_of("C") == store.state()


def test_a_deleted_consumer_stays_deleted_and_its_name_can_be_used_again() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    store.update_delivered(1, 50, 1, T)
    store.commit()
    store.delete()
    assert opened(disk.crash(0, "none"), writable=False).names() == []
    consumers.create("C", EXPLICIT, T + 1)
    found = opened(disk.crash(0, "none"), writable=False)
    assert found.state_of("C") == ConsumerState()
    assert found.max_stream_seq() == 50
    with pytest.raises(StoreClosed):
        store.update_delivered(2, 2, 1, T)


def test_update_refuses_to_go_backwards() -> None:
    _, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    store.update(ConsumerState(SequencePair(5, 9), SequencePair(2, 4), {7: Pending(3, T)}, {7: 2}))
    for worse in (
        ConsumerState(SequencePair(4, 9), SequencePair(2, 4)),
        ConsumerState(SequencePair(5, 9), SequencePair(2, 3)),
        ConsumerState(SequencePair(5, 9), SequencePair(6, 4)),
        ConsumerState(SequencePair(6, 9), SequencePair(2, 4), {11: Pending(3, T)}),
    ):
        with pytest.raises(BadInput):
            store.update(worse)
    assert store.state().redelivered == {7: 2}
    store.reset(3)
    assert store.state() == ConsumerState(SequencePair(0, 3), SequencePair(0, 3))


def test_another_configuration_is_saved() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    changed = ConsumerConfig(durable_name="C", ack_policy="explicit", description="new").filled()
    assert consumers.open("C", changed, T) is store
    assert opened(disk.crash(0, "none"), writable=False).get("C").config == changed
    with pytest.raises(BadInput):
        store.update_config({"durable_name": "C"})


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_power_cut_at_every_sync(keep: str) -> None:
    """What commit answered for is there; nothing counts as acked that nobody acked; nothing is skipped."""

    def run(disk: Disk, seen: dict[str, Any]) -> None:
        disk.create_dir_all(DIR)
        for directory in ("/", "/js"):
            disk.sync_dir(directory)
        consumers = opened(disk)
        store = consumers.create("C", EXPLICIT, T)
        seen["created"] = True
        for seq in range(1, 7):
            store.update_delivered(seq, seq, 1, T)
            if seq % 2:
                store.update_acks(seq, seq)
                seen["maybe"].add(seq)
            consumers.commit()
            seen["acked"] |= seen["maybe"]
            seen["delivered"] = seq
            consumers.tick(T + seq * 700_000_000)
        for round in range(2):
            made = consumers.create("D", EXPLICIT, T + round)
            seen["second"] = [EXPLICIT]
            made.update_delivered(1, 1, 1, T)
            consumers.commit()
            if round:
                file_new(consumers)
            seen["second"] = [EXPLICIT, RENAMED]
            made.update_config(RENAMED)
            seen["second"] = [RENAMED]
            made.update_acks(1, 1)
            consumers.commit()
            seen["second"] = [RENAMED, None]
            consumers.delete("D")
            seen["second"] = [None]
            store.update_delivered(7 + round, 7 + round, 1, T)
            consumers.commit()
            seen["second"] = [None, EXPLICIT]
        consumers.stop()

    def notes() -> dict[str, Any]:
        nobody: list[ConsumerConfig | None] = [None, EXPLICIT]
        return {"created": False, "second": nobody, "delivered": 0, "acked": set[int](), "maybe": set[int]()}

    whole = Disk.memory()
    run(whole, notes())
    for point in range(whole.sync_points() + 1):
        for seed in range(5 if keep == "random" else 1):
            disk, seen = Disk.memory(), notes()
            disk.power_cut_at(point)
            try:
                run(disk, seen)
            except (DiskFault, StorePoisoned):
                pass
            after = disk.crash(seed, keep)
            if after.entry(DIR) is None:
                assert not seen["created"]
                continue
            for writable in (False, True, True):
                found = opened(after, writable=writable)
                if not seen["created"]:
                    continue
                assert found.doubtful() == []
                state = found.state_of("C")
                assert state.delivered.stream >= seen["delivered"]
                acked = set(range(1, state.delivered.stream + 1)) - set(state.pending)
                assert seen["acked"] <= acked <= seen["maybe"]
                second = found.get("D") if "D" in found.names() else None
                assert (second and second.config) in seen["second"]
                assert not [each for each in found.damage() if each.kind in ("missing", "metadata")]


def test_a_full_disk_loses_nothing_and_can_be_tried_again() -> None:
    for policy_writes in range(4):
        inner, _ = fresh()
        plan = FaultPlan()
        consumers = Consumers(Disk.faulty(inner, plan), DIR, STREAM)
        store = consumers.create("C", EXPLICIT, T)
        store.update_delivered(1, 1, 1, T)
        store.commit()
        plan.fail_write_at = plan.writes + policy_writes
        store.update_acks(1, 1)
        try:
            store.commit()
            consumers.checkpoint()
        except DiskFull:
            store.commit()
            consumers.checkpoint()
        assert opened(inner.crash(0, "none")).state_of("C").pending == {}


def test_a_failed_sync_poisons_and_what_was_committed_is_there() -> None:
    inner, _ = fresh()
    plan = FaultPlan()
    consumers = Consumers(Disk.faulty(inner, plan), DIR, STREAM)
    store = consumers.create("C", EXPLICIT, T)
    store.update_delivered(1, 1, 1, T)
    store.commit()
    plan.fail_sync_at = plan.syncs
    store.update_acks(1, 1)
    with pytest.raises(StorePoisoned):
        store.commit()
    plan.clear()
    with pytest.raises(StorePoisoned):
        store.update_delivered(2, 2, 1, T)
    assert store.state().delivered == SequencePair(1, 1)
    assert opened(inner.crash(0, "none")).state_of("C").delivered == SequencePair(1, 1)


def test_every_flipped_bit_of_o_dat_is_put_right() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    for seq in range(1, 5):
        store.update_delivered(seq, seq, 1, T)
    store.update_acks(2, 2)
    consumers.stop()
    expected, path = opened(disk, writable=False).state_of("C"), f"{DIR}/obs/C/o.dat"
    for offset in range(len(disk.read(path))):
        for bit in range(8):
            disk.flip_bit(path, offset, bit)
            found = opened(disk, writable=False)
            assert found.state_of("C") == expected
            assert [d.kind for d in found.damage()] == ["repaired"]
            disk.flip_bit(path, offset, bit)


def test_an_o_dat_that_cannot_be_relied_on_is_not_used_and_is_kept() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    store.update_delivered(1, 40, 1, T)
    store.update_acks(1, 40)
    consumers.stop()
    path = f"{DIR}/obs/C/o.dat"
    for bit in (1, 4):
        disk.flip_bit(path, 3, bit)
    bad = disk.read(path)
    found = opened(disk)
    assert found.doubtful() == ["C"]
    assert found.state_of("C") == ConsumerState()
    assert [d.kind for d in found.damage()] == ["metadata"]
    assert disk.read(f"{DIR}/headrace/damaged/obs-C-o.dat.0") == bad


def test_a_journal_written_before_another_server_took_over_is_not_used() -> None:
    disk, consumers = fresh()
    store = consumers.create("C", EXPLICIT, T)
    store.update_delivered(1, 1, 1, T)
    store.commit()
    theirs = ConsumerState(SequencePair(9, 9), SequencePair(9, 9))
    after = disk.crash(0, "all")
    after.replace_file(f"{DIR}/obs/C/o.dat", encode_state(theirs, "S/C")[:-26])
    found = opened(after)
    assert found.state_of("C") == theirs
    assert [d.kind for d in found.damage()] == ["index"]


@pytest.mark.parametrize("version", vectors.versions("jetstream"))
def test_the_consumers_of_real_servers(version: str) -> None:
    vector = vectors.load("jetstream", version)
    seen = 0
    for stream, about in vector.streams().items():
        disk = Disk.memory()
        source = vector.folder / "store/jetstream/$G/streams" / stream
        disk.copy_tree_in(str(source), DIR)
        before = {name: disk.list(f"{DIR}/obs/{name}") for name in about["consumers"]}
        looked = Consumers(disk, DIR, stream, writable=False)
        assert looked.names() == sorted(about["consumers"])
        assert looked.damage() == []
        assert {name: disk.list(f"{DIR}/obs/{name}") for name in before} == before
        taken = Consumers(disk, DIR, stream)
        for name, consumer in about["consumers"].items():
            expected = consumer["o_dat"]
            state = taken.state_of(name)
            assert state == looked.state_of(name)
            if expected is None:
                assert disk.entry(f"{DIR}/obs/{name}/o.dat") is None
                assert state == ConsumerState()
            else:
                delivered = SequencePair(expected["delivered_consumer"], expected["delivered_stream"])
                assert state.delivered == delivered
            assert taken.get(name).config.ack_policy == consumer["config"]["ack_policy"]
            seen += 1
    assert seen >= 5


def test_consumers_of_an_encrypted_stream_are_read() -> None:
    vector = vectors.load("jetstream", "2.15.2")
    place = str(vector.folder / "store-encrypted/jetstream/$G/streams/ENC")
    found = Consumers(Disk.real(), place, "ENC", writable=False, secret=StoreKey("fixture-key"))
    expected = vector.streams(encrypted=True)["ENC"]["consumers"]
    assert found.names() == sorted(expected)
    for name, consumer in expected.items():
        assert found.state_of(name).delivered.stream == consumer["delivered"]["stream_seq"]
    with pytest.raises(ReadOnly):
        Consumers(Disk.real(), place, "ENC", secret=StoreKey("fixture-key"))
