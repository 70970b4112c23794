"""Ten thousand channels under `fds_limit`: a soft limit, exceeded only when every open file is in use, never an error."""

from __future__ import annotations

import resource
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace._core import Batch, Disk
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.nats_streaming.volume import StreamingVolume
from tests.support.streaming import open_rw

CHANNELS = 10_000


@pytest.mark.slow
def test_ten_thousand_channels_with_fifty_files() -> None:
    disk = Disk.memory()
    with open_rw("/s", disk, fds_limit=50, max_channels=0, durability="interval") as volume:
        logs = [volume.create(f"channel.{n}") for n in range(CHANNELS)]
        for turn in range(2):
            for n, log in enumerate(logs):
                log.append(Batch.build("", [b"%d %d" % (turn, n)]))
        assert volume.home.files.most <= 50
        assert [record.data for record in logs[7777]] == [b"0 7777", b"1 7777"]
        assert volume.home.files.most <= 50
    with StreamingVolume("/s", disk=disk) as volume:
        assert len(volume.logs()) == CHANNELS
        assert [record.data for record in volume.open("channel.9999")] == [b"0 9999", b"1 9999"]


def test_the_limit_holds_against_the_systems_own(tmp_path: Path) -> None:
    """With room for 120 descriptors in the process, 400 channels are written, synced and read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 60, hard))
    try:
        with open_rw(str(tmp_path / "ds"), fds_limit=20, max_channels=0) as volume:
            logs = [volume.create(f"c{n}") for n in range(150)]
            for _ in range(2):
                volume.commit([log.append(Batch.build("", [b"x", b"y"])) for log in logs])
            assert all(len(log.read(1)) == 4 for log in logs)
            assert volume.home.files.most <= 20
        with open_rw(str(tmp_path / "ds"), fds_limit=20, max_channels=0, parallel_recovery=4) as volume:
            assert sum(volume.open(name).state().messages for name in volume.logs()) == 600
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_below_what_is_in_use_is_exceeded() -> None:
    disk = Disk.memory()
    disk.create_dir_all("/d")
    files = Descriptors(disk, limit=3)
    with ExitStack() as stack:
        for n in range(8):
            stack.enter_context(files.use(f"/d/{n}", "write")).write_at(0, b"x")
        assert len(files) == 8
    with files.use("/d/9", "write"):
        assert len(files) <= 3


def test_threads_share_files_and_channels() -> None:
    disk = Disk.memory()
    with open_rw("/s", disk, fds_limit=4, max_channels=0) as volume:
        logs = [volume.create(f"c{n}") for n in range(8)]
        problems: list[BaseException] = []

        def work(start: int) -> None:
            try:
                for n in range(60):
                    log = logs[(start + n) % len(logs)]
                    ticket = log.append(Batch.build("", [b"%d" % n]))
                    volume.commit([ticket])
                    assert log.read(ticket.first, max_msgs=1)[0].data == b"%d" % n
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems
        assert sum(log.state().messages for log in logs) == 360
        assert all([r.seq for r in log] == [*range(1, log.state().messages + 1)] for log in logs)
