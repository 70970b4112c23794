"""The volume: who may write, what a first write announces, names that would leave the directory, memory streams."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace.errors import (
    AlreadyExists,
    BadInput,
    NotFound,
    ReadOnly,
    StoreClosed,
    StoreLocked,
    UnknownFormat,
)
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from tests.conftest import NatsServers
from tests.support import vectors

HOLD = "import sys, time, headrace\nv = headrace.open(sys.argv[1], mode='rw', create=True)\nprint('open', flush=True)\ntime.sleep(60)"


def test_two_writers_cannot_open_one_store(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreLocked, match=f"process {holder.pid}"):
            headrace.open(str(tmp_path), mode="rw")
        with headrace.open(str(tmp_path)) as reader:  # readers take no lock
            assert reader.logs() == []
    finally:
        holder.kill()
        holder.wait()
    with headrace.open(str(tmp_path), mode="rw") as volume:
        volume.create("S", subjects=["s"])
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            headrace.open(str(tmp_path), mode="rw")


@pytest.mark.parametrize("by_config", [True, False], ids=["config file", "command line"])
def test_a_directory_that_a_server_has_open_is_refused(
    nats_server: NatsServers, tmp_path: Path, by_config: bool
) -> None:
    store = tmp_path / "js"
    if by_config:
        server = nats_server("2.15.2", store)
        pid = server.pid
        with pytest.raises(StoreLocked, match=f"process {pid}"):
            headrace.open(str(store), mode="rw")
        server.stop()
    else:
        from tests.support.peers import find_peer, free_port

        port = free_port()
        command = [
            str(find_peer("nats-server", "2.15.2")),
            "-a",
            "127.0.0.1",
            "-p",
            str(port),
            "-js",
            "-sd",
            str(store),
        ]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while not (store / "jetstream").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            with pytest.raises(StoreLocked, match=f"process {process.pid}"):
                headrace.open(str(store), mode="rw")
        finally:
            process.terminate()
            process.wait(20)
    with headrace.open(str(store), mode="rw") as volume:
        volume.create("S", subjects=["s"])


def test_the_first_write_says_what_changes(
    jetstream_vector: vectors.Vector, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = jetstream_vector.copy(tmp_path)
    with caplog.at_level(logging.WARNING, "headrace"), headrace.open(str(path), mode="rw") as volume:
        notices = "\n".join(volume.notices)  # type: ignore[attr-defined]
        assert "first write to" in notices
        assert "can still open" in notices or "can open the directory" in notices
        if jetstream_vector.version != "2.15.2":
            assert "2.9.21 and older can not" in notices
        assert notices.splitlines()[0] in caplog.text
        for name in volume.logs():
            volume.open(name)
    with headrace.open(str(path), mode="rw") as volume:
        assert not [n for n in volume.notices if "first write" in n]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/../b/c", "a.b", "a*b", "a>b", "a b", "a\\b", "x" * 256, "a\0b"]
)
def test_names_are_refused_before_the_disk_is_touched(tmp_path: Path, name: str) -> None:
    with headrace.open(str(tmp_path), mode="rw", create=True) as volume:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(BadInput):
            volume.create(name, subjects=["s"])
        with pytest.raises((BadInput, NotFound)):
            volume.open(name)
        assert sorted(tmp_path.rglob("*")) == before


def test_streams_are_created_once_found_again_and_deleted(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path), mode="rw", create=True) as volume:
        store = volume.create("S", subjects=["s.*"], max_msgs=10)
        assert volume.create("S", subjects=["s.*"], max_msgs=10) is store
        with pytest.raises(AlreadyExists):
            volume.create("S", subjects=["other"])
        with pytest.raises(BadInput, match="no stream option max_mesgs"):
            volume.create("T", max_mesgs=1)
        volume.create("T", subjects=["t"])
        volume.delete("T")
        assert volume.logs() == ["S"]
        assert not (tmp_path / "jetstream" / "$G" / "streams" / "T").exists()
        with pytest.raises(NotFound, match="there are: S"):
            volume.open("T")
    with pytest.raises(StoreClosed):
        volume.open("S")
    with headrace.open(str(tmp_path)) as volume:
        with pytest.raises(ReadOnly):
            volume.create("T")
        with pytest.raises(ReadOnly):
            volume.open("S").append(headrace.batch("s.1", [b"x"]))


def test_memory_streams_are_stores_that_touch_no_file(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path), mode="rw", create=True) as volume:
        before = sorted(tmp_path.rglob("*"))
        store = volume.create("M", subjects=["m.>"], storage="memory", max_msgs=100)
        assert isinstance(store, headrace.StreamStore) and store.type() == "memory"
        for start in range(0, 300, 50):
            volume.commit([store.append(headrace.batch(f"m.{start}", [b"%d" % at for at in range(50)]))])
        assert (store.state().messages, store.state().first_seq, store.state().last_seq) == (100, 201, 300)
        assert store.remove_msg(250) and store.erase_msg(251)
        assert store.purge_ex("m.200", 0, 0) == 49
        assert [record.seq for record in store] == list(range(252, 301))
        assert store.purge() == 49 and store.state().first_seq == 301
        assert sorted(tmp_path.rglob("*")) == before


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such directory"):
        headrace.open(str(tmp_path / "nowhere"))
    with pytest.raises(UnknownFormat, match=r"found an empty directory.*the one that holds `jetstream`"):
        headrace.open(str(tmp_path))
    file = tmp_path / "file"
    file.write_bytes(b"not a directory")
    with pytest.raises((UnknownFormat, NotFound)):
        headrace.open(str(file))
    with pytest.raises(BadInput, match="open with 'r' or 'rw'"):
        headrace.open(str(tmp_path), mode="a", create=True)
    assert sorted(tmp_path.iterdir()) == [file]


def test_interval_mode_syncs_by_time(tmp_path: Path) -> None:
    clock = [1_700_000_000_000_000_000]
    with headrace.open(
        str(tmp_path),
        mode="rw",
        create=True,
        durability="interval",
        sync_interval_s=10,
        maintenance=False,
        clock=lambda: clock[0],
    ) as volume:
        store = volume.create("S", subjects=["s"])
        ticket = store.append(headrace.batch("s", [b"x"]))
        volume.commit([ticket])  # acknowledged when written
        assert store.log.durable_mark < ticket.mark  # type: ignore[attr-defined]
        clock[0] += 11_000_000_000
        store.tick()  # type: ignore[attr-defined]
        assert store.log.durable_mark >= ticket.mark  # type: ignore[attr-defined]


def test_many_streams_are_stopped_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync after the other would take seconds with a thousand streams; the disk shares what comes together."""
    volume = JetStreamVolume("/store", mode="rw", create=True, disk=Disk.memory(), maintenance=False)
    for number in range(40):
        volume.create(f"S{number}", subjects=[f"s.{number}"])
    together, stop = threading.Barrier(8), FileStreamStore.stop

    def stop_with_others(store: FileStreamStore) -> None:
        together.wait(20)
        stop(store)

    monkeypatch.setattr(FileStreamStore, "stop", stop_with_others)
    volume.close()
    assert not together.broken
