"""RocketMQ's store library 5.3.3 both ways: it serves what we wrote and recovered, we read what it appended."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from headrace._core import Batch, Disk
from headrace.layouts.rocketmq.layout import LAYOUT
from headrace.layouts.rocketmq.options import RocketOptions
from headrace.layouts.rocketmq.volume import RocketVolume
from tests.support.peers import find_peer

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "RocketStore.java"
SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 10,
    "max_index_num": 40,
}
Row = tuple[str, int, int, str, str]


def library(home: Path, *args: str) -> str:
    done = subprocess.run(
        [find_peer("rocketmq-store", "5.3.3"), PROGRAM, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        env={**os.environ, "JAVA_OPTS": f"-Xmx512m -Duser.home={home}"},
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def served(home: Path, store: Path) -> list[Row]:
    text = library(home, "read", str(store))
    found = re.findall(r"^msg\t(.*)\t(\d+)\t(\d+)\t\d+\t(.*)\t(.*)$", text, re.MULTILINE)
    return [(topic, int(queue), int(offset), key, body) for topic, queue, offset, key, body in found]


def held(volume: RocketVolume) -> list[Row]:
    logs = [volume.open(name) for name in volume.logs()]
    return sorted(
        (log.topic, log.queue, r.position, (r.key or b"").decode(), (r.data or b"").decode())
        for log in logs
        for r in log
    )


def test_both_ways(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with RocketVolume(str(store), mode="rw", create=True, options=RocketOptions(**SMALL)) as volume:
        for name in ("orders-0", "orders-1", "bills-0"):
            for first in (0, 20):
                data = [b"%s-%d" % (name.encode(), first + n) for n in range(20)]
                batch = Batch.build(
                    "t", data, keys=[b"k%d" % (first + n) for n in range(20)], header_codec="kafka"
                )
                volume.commit([volume.create(name).append(batch)])
        ours = held(volume)
    assert len(ours) == 120 and len(list((store / "commitlog").iterdir())) > 3
    assert sorted(served(tmp_path, store)) == ours
    assert library(tmp_path, "write", str(store), "orders", "0", "5").count("put PUT_OK") == 5
    with RocketVolume(str(store), options=RocketOptions(**SMALL)) as volume:
        log = volume.open("orders-0")
        assert [r.data for r in log][40:] == [b"library-%d" % n for n in range(5)]
        assert [r.position for r in volume.find_by_key("orders", "lib3")] == [43]
        assert set(ours) < set(held(volume))
    with RocketVolume(str(store), mode="rw", options=RocketOptions(**SMALL)) as volume:
        assert volume.open("orders-0").append(Batch.build("t", [b"ours again"])).first == 45
    view = LAYOUT.verify(str(store))
    assert not [f for r in view.files for f in r.damage] and not [f for log in view.logs for f in log.damage]


def test_what_recovery_leaves_is_served(tmp_path: Path) -> None:
    """A bad message in the first file: the library would cut everything after it; replaced, it walks over it."""
    store = tmp_path / "store"
    with RocketVolume(str(store), mode="rw", create=True, options=RocketOptions(**SMALL)) as volume:
        for n in range(60):
            volume.create("orders-0").append(
                Batch.build("t", [b"message-%d" % n], keys=[b"k%d" % n], header_codec="kafka")
            )
    (store / "abort").write_text("1")
    (store / "checkpoint").unlink()
    for offset in range(700, 712):
        Disk.real().flip_bit(str(store / "commitlog" / f"{0:020d}"), offset, 3)
    with RocketVolume(str(store), mode="rw", options=RocketOptions(**SMALL)) as volume:
        ours = held(volume)
        assert len(ours) == 59 and volume.open("orders-0").next == 60
        assert volume.find_by_key("orders", "k58")
    found = served(tmp_path, store)
    assert [row for row in ours if row not in found] == []
