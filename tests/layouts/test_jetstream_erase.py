"""Erase really overwrites: the bytes are gone from the file, also in sealed and compressed blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace._core import s2_decompress


@pytest.mark.parametrize("compression", ["none", "s2"])
def test_the_bytes_are_gone(tmp_path: Path, compression: str) -> None:
    secrets = {seq: b"secret-%d-" % seq + bytes([65 + seq % 26]) * 40 for seq in range(1, 201)}
    with headrace.open(str(tmp_path), mode="rw", create=True, block_bytes=4096) as volume:
        store = volume.create("S", subjects=["s.>"], compression=compression)
        assert isinstance(store, headrace.StreamStore)
        for seq, data in secrets.items():
            store.append(headrace.batch(f"s.{seq % 3}", [data], [b"NATS/1.0\r\nId: %d\r\n\r\n" % seq]))
        for seq in (1, 17, 120, 199):
            assert store.erase_msg(seq)
            assert not store.remove_msg(seq)
        survivors = {record.seq: record.data for record in store}
        assert survivors == {seq: data for seq, data in secrets.items() if seq not in (1, 17, 120, 199)}
    content = b"".join(plain(path) for path in (tmp_path / "jetstream").rglob("*.blk"))
    for seq, data in secrets.items():
        assert (data in content) == (seq in survivors), seq
    with headrace.open(str(tmp_path)) as volume:
        assert {record.seq: record.data for record in volume.open("S")} == survivors
        assert volume.open("S").damage() == []


def plain(path: Path) -> bytes:
    """A block's bytes; a compressed one has a size and an S2 stream, then the last eight bytes as they are."""
    data = path.read_bytes()
    if not data.startswith(b"cmp\x01"):
        return data
    at = next(at for at in range(4, 14) if data[at] < 0x80) + 1
    return s2_decompress(data[at:-8], 1 << 20) + data[-8:]
