"""o.dat: every real one read, ours read back, damage noticed, random bytes harmless."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Damaged
from headrace.layouts.base import ConsumerState, Pending, SequencePair
from headrace.layouts.jetstream.consumers.state import (
    SECOND_NS,
    TRAILER_BYTES,
    decode_state,
    encode_state,
    implausible,
    trailer_agrees,
)
from headrace.layouts.jetstream.recovery.bits import single_bit_repair
from tests.support import vectors

KEY = "S/C"


@st.composite
def states(draw: st.DrawFn) -> ConsumerState:
    floor = SequencePair(draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40)))
    delivered = SequencePair(
        floor.consumer + draw(st.integers(0, 2**20)), floor.stream + draw(st.integers(0, 2**20))
    )
    seconds = st.integers(0, 2**33)
    spread = st.integers(1, 2**20)
    pending = {
        floor.stream + seq: Pending(floor.consumer + own, time * SECOND_NS)
        for seq, own, time in draw(st.lists(st.tuples(spread, spread, seconds), max_size=20))
    }
    redelivered = draw(
        st.dictionaries(spread.map(lambda seq: floor.stream + seq), st.integers(1, 99), max_size=9)
    )
    return ConsumerState(delivered, floor, dict(sorted(pending.items())), redelivered)


@given(states(), st.integers(0, 2**64 - 1))
def test_what_is_written_is_read(state: ConsumerState, position: int) -> None:
    data = encode_state(state, KEY, position)
    assert decode_state(data, KEY) == (state, True, True, position)
    assert decode_state(data[:-TRAILER_BYTES], KEY) == (state, False, False, 0)
    assert decode_state(data, "S/other")[1:] == (True, False, 0)


@given(st.binary(max_size=200))
def test_random_bytes_are_damage_and_nothing_else(data: bytes) -> None:
    for head in (b"", b"\x16\x01", b"\x16\x02"):
        try:
            decode_state(head + data, KEY)
        except Damaged as error:
            assert error.offset <= len(head) + len(data)


@given(states(), st.integers(0, 500))
def test_a_cut_is_noticed_or_looks_like_a_file_without_trailer(state: ConsumerState, cut: int) -> None:
    data = encode_state(state, KEY)
    short = data[: max(0, len(data) - 1 - cut)]
    try:
        assert not decode_state(short, KEY).hash_ok
    except Damaged:
        pass


def a_state() -> ConsumerState:
    pending = {8: Pending(5, 1_700_000_000 * SECOND_NS), 9: Pending(6, 1_700_000_007 * SECOND_NS)}
    return ConsumerState(SequencePair(6, 9), SequencePair(4, 7), pending, {9: 2})


def test_every_flipped_bit_is_noticed_and_repaired() -> None:
    sound = encode_state(a_state(), KEY, 77)
    for offset in range(len(sound)):
        for bit in range(8):
            bad = bytearray(sound)
            bad[offset] ^= 1 << bit
            try:
                found = decode_state(bytes(bad), KEY)
                assert found.has_hash and not found.hash_ok
            except Damaged:
                pass
            repair = single_bit_repair(bytes(bad), lambda trial: trailer_agrees(trial, KEY))
            assert repair == (sound, offset, bit)


def test_hostile_counts_are_refused_before_anything_is_made() -> None:
    huge = b"\xff\xff\xff\xff\x7f"
    for data in (
        b"\x16\x02\0\0\0\0" + huge,
        b"\x16\x02\0\0\0\0\0" + huge,
        b"\x16\x02\0\0\0\0" + b"\xff" * 11,
    ):
        with pytest.raises(Damaged):
            decode_state(data, KEY)


def test_version_1() -> None:
    # floor 3/5, delivered stored as 4/6 relative to floor - 1, base 100 s, one pending: 7 at 100 + 2 s
    data = bytes([22, 1, 3, 5, 4, 6, 1, 200, 1, 2, 4, 1, 2, 1])
    state = decode_state(data, KEY).state
    assert (state.ack_floor, state.delivered) == (SequencePair(3, 5), SequencePair(6, 10))
    assert state.pending == {7: Pending(0, 102 * SECOND_NS)}
    assert state.redelivered == {7: 1}
    # A consumer sequence that version 1 does not know survives version 2.
    assert decode_state(encode_state(state, KEY), KEY).state == state


def test_what_cannot_be_true_is_said() -> None:
    assert implausible(a_state()) is None
    assert implausible(ConsumerState(SequencePair(1, 1), SequencePair(1, 2))) is not None
    assert implausible(ConsumerState(SequencePair(9, 9), SequencePair(), {10: Pending(1, 0)})) is not None


@pytest.mark.parametrize("version", vectors.versions("jetstream"))
def test_every_state_of_a_real_server(version: str) -> None:
    vector = vectors.load("jetstream", version)
    seen = 0
    for stream, about in vector.streams().items():
        for name, consumer in about["consumers"].items():
            path = vector.folder / "store/jetstream/$G/streams" / stream / "obs" / name / "o.dat"
            if not path.exists():
                continue
            expected: dict[str, Any] = consumer["o_dat"]
            found = decode_state(path.read_bytes(), f"{stream}/{name}")
            assert not found.has_hash
            state = found.state
            assert state.ack_floor == SequencePair(
                expected["ack_floor_consumer"], expected["ack_floor_stream"]
            )
            assert state.delivered == SequencePair(
                expected["delivered_consumer"], expected["delivered_stream"]
            )
            pending = {
                int(seq): Pending(p["consumer_seq"], p["ts_seconds"] * SECOND_NS)
                for seq, p in expected["pending"].items()
            }
            assert state.pending == pending
            assert state.redelivered == {int(seq): count for seq, count in expected["redelivered"].items()}
            assert implausible(state) is None
            assert decode_state(encode_state(state, "a/b"), "a/b").state == state
            seen += 1
    assert seen >= 5
