"""Chance, behind one small interface like disk and clock: identifiers, nonces, samples, names of temporary files.

By default it comes from the operating system's secure source; `sample_below` alone, for choices that need not be secret
and may be made for each message, from a generator that is faster. `seeded` is for tests: inside it one seed gives the same
identifiers again. No other module of the package calls `random`, `secrets`, `uuid` or `os.urandom` (a tidy test).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from random import Random, SystemRandom
from uuid import UUID

_source: Random = SystemRandom()
_samples = Random()


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """For a test: everything below is drawn from the seed. Never in a server: nonces would be known beforehand."""
    global _source, _samples
    before = _source, _samples
    _source = _samples = Random(seed)
    try:
        yield
    finally:
        _source, _samples = before


def random_bytes(count: int) -> bytes:
    """So many bytes."""
    return _source.randbytes(count)


def random_bits(count: int) -> int:
    """A number of so many bits."""
    return _source.getrandbits(count)


def random_below(limit: int) -> int:
    """A number from 0 on, below the limit."""
    return _source.randrange(limit)


def sample_below(limit: int) -> int:
    """The same for choices that need not be secret: which messages are sampled, a partition, a jitter."""
    return _samples.randrange(limit)


def random_uuid() -> UUID:
    """Of version 4."""
    return UUID(bytes=_source.randbytes(16), version=4)


def random_hex(bytes_count: int = 16) -> str:
    """An identifier, two characters for each byte."""
    return _source.randbytes(bytes_count).hex()


def random_text(alphabet: str, length: int) -> str:
    """An identifier out of some characters."""
    return "".join(_source.choice(alphabet) for _ in range(length))
