"""The one-minute form of `make soak`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.testing import TestServer
from scripts.soak import problems_of, soak


@pytest.mark.extended
@pytest.mark.slow
def test_a_minute_of_clients_kills_and_restarts(tmp_path: Path, headrace_seed: int) -> None:
    store = tmp_path / "store"
    with TestServer(store) as server:
        notes = asyncio.run(soak(server, clients=60, seconds=50, kill_every_s=11, seed=headrace_seed))
    assert notes.kills >= 3 and notes.disconnects > 50
    assert len(notes.stored) > 500 and len(notes.confirmed) > 300
    assert not problems_of(notes, store)
