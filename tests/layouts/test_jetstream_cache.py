"""Blocks in memory: a bounded number of them, found by slot, hashes checked once per load."""

from __future__ import annotations

from pathlib import Path

import headrace
from headrace.layouts.jetstream.volume import JetStreamVolume

BLOCK, COUNT = 64 << 10, 20_000


def test_the_cache_stays_within_its_bound(tmp_path: Path) -> None:
    bound = 4 * BLOCK
    with JetStreamVolume(
        str(tmp_path), mode="rw", create=True, block_bytes=BLOCK, cache_bytes=bound
    ) as volume:
        store = volume.create("S", subjects=["s.>"])
        for start in range(0, COUNT, 500):
            store.append(headrace.batch("s.a", [b"%06d" % (start + at) + bytes(100) for at in range(500)]))
            assert store.log.cached_bytes() <= bound
        assert len(store.log.blocks()) > 40
        for seq in range(1, COUNT, 611):
            assert store.load_msg(seq).data == b"%06d" % (seq - 1) + bytes(100)
            assert store.log.cached_bytes() <= bound
        assert sum(len(batch) for batch in store.batches()) == COUNT
        assert store.log.cached_bytes() <= bound
        assert len(store.load_msgs(range(1, COUNT + 1, 97))) == len(range(1, COUNT + 1, 97))


def test_hashes_are_checked_once_per_load(tmp_path: Path) -> None:
    """A block in the cache is not looked at again on disk; loaded anew, its damage is seen."""
    with JetStreamVolume(str(tmp_path), mode="rw", create=True, block_bytes=BLOCK) as volume:
        store = volume.create("S", subjects=["s.>"])
        for at in range(2000):
            store.append(headrace.batch("s.a", [b"%06d" % at + bytes(3000 if at == 5 else 100)]))
    path = tmp_path / "jetstream" / "$G" / "streams" / "S" / "msgs" / "1.blk"
    with JetStreamVolume(str(tmp_path), cache_bytes=1 << 20) as volume:
        store = volume.open("S")
        before = store.load_msg(6)
        data = bytearray(path.read_bytes())
        at = data.index(b"000005") + 50
        data[at : at + 8] = b"\xff" * 8
        path.write_bytes(data)
        assert store.load_msg(6) == before and not store.damage()
    with JetStreamVolume(str(tmp_path)) as volume:
        store = volume.open("S")
        assert len(store.load_msgs([5, 6, 7])) == 2
        (damage,) = store.damage()
        assert (damage.kind, damage.first_seq, damage.next_seq) == ("bad-record", 6, 7)
        assert damage.offset < at < damage.offset + damage.length
