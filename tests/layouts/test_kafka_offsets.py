"""`__consumer_offsets`: every version of its values, tombstones, transactions, what cannot be read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from headrace._core import Batch
from headrace.errors import BadInput, NotFound, ReadOnly
from headrace.layouts.kafka.layout import LAYOUT
from headrace.layouts.kafka.offsets import (
    TOPIC,
    Committed,
    decode_key,
    decode_value,
    encode,
    partition_of,
    read_committed,
)
from headrace.layouts.kafka.volume import KafkaVolume

LOG = "orders-3"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def key(group: str, topic: str = "orders", partition: int = 3, kind: int = 1) -> bytes:
    return struct.pack(">h", kind) + text(group) + text(topic) + struct.pack(">i", partition)


VALUES = {
    0: struct.pack(">hq", 0, 41) + text("note") + struct.pack(">q", 77),
    1: struct.pack(">hq", 1, 41) + text("note") + struct.pack(">qq", 77, 99),
    2: struct.pack(">hq", 2, 41) + text("note") + struct.pack(">q", 77),
    3: struct.pack(">hqi", 3, 41, 5) + text("note") + struct.pack(">q", 77),
    4: struct.pack(">hqi", 4, 41, 5) + b"\x05note" + struct.pack(">q", 77) + b"\x01\x00\x10" + bytes(16),
}


@pytest.mark.parametrize("version", VALUES)
def test_every_version(version: int) -> None:
    epoch = 5 if version >= 3 else -1
    assert decode_value("g", LOG, VALUES[version]) == Committed("g", LOG, 41, epoch, "note", 77)
    # Whatever is cut off is noticed: nothing is made up.
    needed = 26 if version < 3 else 29 if version == 4 else 30
    for length in range(needed - 2):
        with pytest.raises(ValueError):
            decode_value("g", LOG, VALUES[version][:length])


def test_keys() -> None:
    assert decode_key(key("g")) == decode_key(key("g", kind=0)) == ("g", LOG)
    assert decode_key(key("g", kind=2)) is None
    for bad in (b"", b"\0", b"\0\1\xff\xff", key("g", topic="../x"), key("g", partition=-1), key("g")[:-1]):
        with pytest.raises(ValueError):
            decode_key(bad)
    made, value = encode("gr", LOG, 9, "m", 8)
    assert decode_key(made) == ("gr", LOG) and decode_value("gr", LOG, value) == Committed(
        "gr", LOG, 9, -1, "m", 8
    )


def test_partitions_by_javas_hash() -> None:
    """Values of String.hashCode: "a" 97, "hello" 99162322, "polygenelubricants" -2^31."""
    assert partition_of("a", 50) == 97 % 50
    assert partition_of("hello", 50) == 99162322 % 50
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("zzzzzzzz", 50) == abs(_java("zzzzzzzz")) % 50


def _java(value: str) -> int:
    total = 0
    for char in value:
        total = (total * 31 + ord(char)) % 2**32
    return total - 2**32 if total >= 2**31 else total


def test_last_value_wins_and_tombstones_remove(tmp_path: Path) -> None:
    with KafkaVolume(str(tmp_path), mode="rw", create=True) as volume:
        volume.create(LOG).append(Batch.build("orders", [b"x"] * 50, header_codec="kafka"))
        log = volume.create(f"{TOPIC}-0")
        values = [VALUES[0], VALUES[3], VALUES[2], None, b"\0\x09", VALUES[3], VALUES[1]]
        keys = [key("a"), key("b"), key("c"), key("c"), key("d"), b"\0\2\0\1g", b"\0\1\0"]
        log.append(Batch.build(TOPIC, values, keys=keys, header_codec="kafka"))
        log.append(
            Batch.build(
                TOPIC, [encode("a", LOG, 44, "", 1)[1], b"z"], keys=[key("a"), None], header_codec="kafka"
            )
        )
        log.commit()
        cursors = volume.cursors(LOG)
        assert cursors.names() == ["a", "b"]
        assert (cursors.committed("a").next, cursors.committed("b").leader_epoch) == (44, 5)
        assert cursors.state_of("b").delivered.stream == 40
        with pytest.raises(NotFound, match="group 'c' committed no offset"):
            cursors.state_of("c")
        assert volume.cursors("other-0").names() == []
        _, damage = read_committed(volume)
        assert sorted(finding.detail.split(": ", 1)[1][:12] for finding in damage) == [
            "3 bytes are ",
            "version 9; k",
        ]
    view = LAYOUT.verify(str(tmp_path))
    [shown] = [log for log in view.logs if log.name == LOG]
    assert [(row.name, row.kind, row.next) for row in shown.cursors] == [
        ("a", "group", 44),
        ("b", "group", 41),
    ]
    assert shown.cursors[1].details == {
        "committed": "1970-01-01T00:00:00.077Z",
        "leader epoch": "5",
        "metadata": "note",
        "behind": "9",
    }
    assert len(view.damage) == 2


def test_written_offsets_are_durable_and_checked(tmp_path: Path) -> None:
    with KafkaVolume(str(tmp_path), mode="rw", create=True, durability="interval") as volume:
        volume.write_offsets("g", {"a-0": 5, "b-1": 0})
        assert sum(name.startswith(TOPIC) for name in volume.logs()) == 50
        volume.write_offsets("g", {"a-0": 6})
        home = volume.open(f"{TOPIC}-{partition_of('g', 50)}")
        assert home.commits.durable == home.mark, "also in mode interval"
        assert home.options.cleanup_policy == "compact"
        assert {who: what.next for who, what in volume.committed().items()} == {
            ("g", "a-0"): 6,
            ("g", "b-1"): 0,
        }
        for group, offsets, metadata in (
            ("", {"a-0": 1}, ""),
            ("g", {"../a-0": 1}, ""),
            ("g", {"a-0": -1}, ""),
            ("g", {"a-0": 1}, "x" * 5000),
        ):
            with pytest.raises(BadInput):
                volume.write_offsets(group, offsets, metadata=metadata)
    with KafkaVolume(str(tmp_path)) as volume, pytest.raises(ReadOnly):
        volume.write_offsets("g", {"a-0": 7})
