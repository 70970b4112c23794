"""For all tests of this folder, and for no other that the same process runs: thousands of stores are opened, so the reserve is small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.layouts.jetstream.store import sidecar


@pytest.fixture(autouse=True, scope="package")
def small_reserve() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecar, "RESERVE_BYTES", 4096)
        yield
