"""One million messages on one million subjects: state, wildcards, and opening again, in bounded time and memory."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace._core import Batch
from headrace.layouts.base import SimpleState
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume

COUNT = 1_000_000
BATCH = 50_000
SECONDS_MAX = 60.0
GROWTH_BYTES_MAX = 900 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def timed(what: str, spent: dict[str, float]) -> Iterator[None]:
    before, start = resident_bytes(), time.perf_counter()
    yield
    spent[what] = time.perf_counter() - start
    print(f"{what:34} {spent[what]:7.2f} s   {(resident_bytes() - before) >> 20:+6} MiB")


def subject(number: int) -> str:
    return f"device.{number % 1000}.{number // 1000}.temperature"


def check(store: FileStreamStore) -> None:
    """The same answers however the store was opened."""
    state = store.fast_state()
    assert (state.messages, state.first_seq, state.last_seq) == (COUNT, 1, COUNT)
    assert state.num_subjects == COUNT
    assert store.filtered_state(0, "device.>") == SimpleState(COUNT, 1, COUNT)
    # Numbers 7, 1007, 2007 …: sequences 8, 1008, 2008 …
    assert store.filtered_state(0, "device.7.*.temperature") == SimpleState(1000, 8, COUNT - 1000 + 8)
    assert store.filtered_state(0, "device.*.123.temperature") == SimpleState(1000, 123_001, 124_000)
    assert store.filtered_state(500_000, "device.7.>") == SimpleState(500, 500_008, COUNT - 1000 + 8)
    prefix = store.subjects_state("device.42.>")
    assert len(prefix) == 1000
    assert prefix[subject(42)] == SimpleState(1, 43, 43)
    assert store.load_last_msg("device.999.*.temperature").seq == COUNT
    assert store.load_last_msg(subject(777_777)).seq == 777_778
    assert store.load_next_msg("device.5.>", 900_000).seq == 900_006


@pytest.mark.slow
def test_a_million_subjects(tmp_path: Path) -> None:
    gc.collect()
    spent: dict[str, float] = {}
    growth = resident_bytes()
    volume = JetStreamVolume(str(tmp_path), mode="rw", create=True, durability="interval")
    store = volume.create("MANY", subjects=["device.>"])
    with timed("store 1,000,000 on as many subjects", spent):
        for start in range(0, COUNT, BATCH):
            numbers = range(start, start + BATCH)
            store.append(Batch.build([subject(n) for n in numbers], [b"%d" % n for n in numbers]))
        store.commit()
    with timed("look", spent):
        check(store)
    with timed("all subjects' states", spent):
        assert len(store.subjects_state(">")) == COUNT
    with timed("clean stop", spent):
        volume.close()
    del store, volume
    gc.collect()
    with timed("open after a clean stop", spent):
        volume = JetStreamVolume(str(tmp_path), mode="rw")
        store = volume.open("MANY")
    with timed("look", spent):
        check(store)
    with timed("remove, overwrite, purge a prefix", spent):
        assert store.remove_msg(43)
        assert store.purge_ex("device.77.>", 0, 0) == 1000
        assert store.store_msg(subject(43 + 5), None, b"again")[0] == COUNT + 1
        assert store.filtered_state(0, subject(43 + 5)) == SimpleState(2, 49, COUNT + 1)
        assert store.fast_state().num_subjects == COUNT - 1001
    volume.close()
    (tmp_path / "jetstream/$G/streams/MANY/headrace/clean.json").unlink()
    (tmp_path / "jetstream/$G/streams/MANY/msgs/index.db").unlink()
    del store, volume
    gc.collect()
    with timed("open by scan", spent):
        volume = JetStreamVolume(str(tmp_path), mode="rw")
        store = volume.open("MANY")
    assert store.fast_state().num_subjects == COUNT - 1001
    assert store.fast_state().messages == COUNT - 1000
    assert store.filtered_state(0, "device.77.>") == SimpleState()
    growth = resident_bytes() - growth
    volume.close()
    print(f"{'all':34} {sum(spent.values()):7.2f} s   {growth >> 20:+6} MiB at the end")
    assert sum(spent.values()) < SECONDS_MAX
    assert growth < GROWTH_BYTES_MAX
