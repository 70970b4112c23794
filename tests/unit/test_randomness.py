"""Chance behind one interface: secure by default, and the same again from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

import pytest

from headrace import randomness
from headrace.randomness import (
    random_below,
    random_bits,
    random_bytes,
    random_hex,
    random_text,
    random_uuid,
    sample_below,
    seeded,
)
from headrace.streams.api.advisories import Ids, short_id

DRAWS: list[Callable[[], object]] = [
    lambda: random_bytes(16),
    lambda: random_bits(63),
    lambda: random_below(1 << 60),
    lambda: sample_below(1 << 60),
    random_hex,
    random_uuid,
    lambda: random_text("abcdefghij", 20),
    short_id,
    lambda: Ids().next(),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_gives_the_same_again(draw: Callable[[], object]) -> None:
    with seeded(7):
        first = [draw(), draw()]
    with seeded(7):
        again = [draw(), draw()]
    with seeded(8):
        other = draw()
    assert first == again and first[0] != first[1] and other != first[0]
    assert draw() != draw()


def test_without_a_seed_it_is_the_systems() -> None:
    with pytest.raises(ZeroDivisionError), seeded(1):
        raise ZeroDivisionError
    assert isinstance(randomness._source, SystemRandom)  # pyright: ignore[reportPrivateUsage]


def test_sizes() -> None:
    assert len(random_bytes(5)) == 5 and len(random_hex(11)) == 22 and random_uuid().version == 4
    assert {random_below(3) for _ in range(200)} == {sample_below(3) for _ in range(200)} == {0, 1, 2}
    assert set(random_text("ab", 100)) == {"a", "b"} and random_bits(8) < 256
