"""The scrubber finds damage in cold blocks of a live store, mends it, keeps the original, loses one record."""

from __future__ import annotations

from pathlib import Path

import headrace
from headrace.layouts.jetstream.volume import JetStreamVolume

SECOND = 1_000_000_000


def test_cold_damage_is_found_and_mended(tmp_path: Path) -> None:
    clock = [1_700_000_000 * SECOND]
    options = {"block_bytes": 8192, "maintenance": False, "clock": lambda: clock[0]}
    with JetStreamVolume(str(tmp_path), mode="rw", create=True, **options) as volume:  # type: ignore[arg-type]
        store = volume.create("S", subjects=["s.>"])
        for at in range(200):
            store.append(headrace.batch(f"s.{at % 5}", [b"%03d" % at + bytes(200)]))
        store.remove([50])
        store.commit()
        before = {record.seq: record for record in store}
        path = tmp_path / "jetstream" / "$G" / "streams" / "S" / "msgs" / "3.blk"
        data = bytearray(path.read_bytes())
        data[300:304] = b"\xff\xee\xdd\xcc"  # inside the payload of one message
        path.write_bytes(data)
        rounds = 0
        while not store.damage() and rounds < 120:
            clock[0] += SECOND
            store.tick()
            rounds += 1
        assert store.scrubber.position == 3
        lost = [damage for damage in store.damage() if damage.kind == "bad-record"]
        assert len(lost) == 1 and lost[0].file == str(path)
        after = {record.seq: record for record in store}
        assert len(after) == len(before) - 1 == store.state().messages
        assert all(before[seq] == record for seq, record in after.items())
        assert (path.parent.parent / "headrace" / "damaged" / "3.blk").read_bytes() == bytes(data)
        gone = set(before) - set(after)
        assert gone == {lost[0].first_seq}
        ticket = store.append(headrace.batch("s.1", [b"on it goes"]))
        volume.commit([ticket])
        assert ticket.first == 201
        for _ in range(120):
            clock[0] += SECOND
            store.tick()
        assert store.scrubber.rounds >= 1
    with headrace.open(str(tmp_path)) as volume:
        assert volume.open("S").state().messages == len(after) + 1
        assert not volume.open("S").damage()
