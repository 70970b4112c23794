"""Replays: every message once, in order, into directories and streams; and the way back from a server into an archive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import run
from headrace.client import Connection, Publisher, ServerVolume, StreamTarget, read_access, release
from headrace.errors import BadInput
from headrace.ops.archive import ArchiveOptions, archive
from headrace.ops.engines import Threads
from headrace.ops.replay import DirectoryTarget, ReplayTask, replay
from headrace.testing.server import TestServer
from tests.ops.helpers import small_store
from tests.support import vectors
from tests.support.peers import NatsServer

ALL = ArchiveOptions(newest=True)


def messages(path: Path | str, log: str = "ORDERS") -> list[tuple[Any, ...]]:
    with headrace.open(str(path)) as volume:
        return [(each.seq, each.time_ns, each.subject, each.headers, each.data) for each in volume.open(log)]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    archive(str(small_store(tmp_path / "store")), str(tmp_path / "lake"), ALL)
    return tmp_path / "lake"


def test_into_a_directory(tmp_path: Path, lake: Path) -> None:
    target, place = DirectoryTarget(str(tmp_path / "copy"), "jetstream"), str(tmp_path / "copy")
    part = replay(ReplayTask(str(lake), (), target, next=120), place)
    assert part.stored == 116
    rest = replay(ReplayTask(str(lake), (), target), place)
    assert rest.stored == 297 - 116 and rest.logs[0].began_at == 120
    assert replay(ReplayTask(str(lake), (), target), place).stored == 0
    assert messages(place) == messages(tmp_path / "store")
    assert headrace.verify(place).sound


def test_between_products(tmp_path: Path) -> None:
    source = vectors.ROOT / "kafka/4.3.1/store"
    archive(str(source), str(tmp_path / "lake"), ALL)
    with headrace.open(str(source)) as volume:
        log = max(volume.logs(), key=lambda name: volume.open(name).state().messages)
        wanted = [(each.seq + 1, each.data or b"") for each in volume.open(log)]
    target = DirectoryTarget(str(tmp_path / "js"), "jetstream")
    result = replay(ReplayTask(str(tmp_path / "lake"), (log,), target), "js")
    assert result.stored == len(wanted) > 3
    with headrace.open(str(tmp_path / "js")) as volume:
        assert [(each.seq, each.data) for each in volume.open(log)] == wanted
    assert replay(ReplayTask(str(tmp_path / "lake"), (log,), target), "js").stored == 0


@pytest.mark.parametrize(
    "product", ["kafka/4.3.1/store", "rocketmq/5.3.3/store", "nats_streaming/0.25.6/clean"]
)
def test_without_numpy(tmp_path: Path, product: str) -> None:
    """It comes with Spark, not with pyarrow: what runs in threads does without it."""
    source, lake, copy = str(vectors.ROOT / product), str(tmp_path / "lake"), str(tmp_path / "copy")
    commands = (
        ["pipeline", "archive", "--engine", "local", "--newest", source, lake],
        ["cat", lake],
        ["pipeline", "verify", "--engine", "local", lake],
        ["pipeline", "replay", "--engine", "local", lake, copy, "--layout", "jetstream"],
    )
    code = "import sys; sys.modules['numpy'] = None; from headrace.cli.main import run; sys.exit(run(sys.argv[1:]))"
    for each in commands:
        made = subprocess.run(
            [sys.executable, "-c", code, *each], capture_output=True, text=True, timeout=120
        )
        assert made.returncode == 0, (each, made.stderr)
    with headrace.open(source) as before, headrace.open(copy) as after:
        found = {log.name: [each.data for each in log] for log in after}
        wanted = {log.name.replace(".", "_"): [each.data or b"" for each in log] for log in before}
    assert found and all(wanted[name] == found[name] for name in found)


def test_names_of_the_other_product(tmp_path: Path, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command, and the name that the product wants; what it gives is what it was given."""
    command = [
        "pipeline",
        "replay",
        str(lake),
        str(tmp_path / "kafka"),
        "--layout",
        "kafka",
        "--engine",
        "local",
    ]
    assert run(command) == 0 and "297 messages stored" in capsys.readouterr().out
    with headrace.open(str(tmp_path / "kafka")) as volume:
        assert volume.logs() == ["ORDERS-0"]
        found = [(each.data, each.header_map.get("N")) for each in volume.open("ORDERS-0")]
    wanted = [(data, [data.decode()[6:]] if headers else None) for *_, headers, data in messages(lake)]
    assert found == wanted
    assert run(command) == 0 and "0 messages stored" in capsys.readouterr().out


def test_into_a_stream_twice_is_once(tmp_path: Path, lake: Path) -> None:
    with TestServer(tmp_path / "server") as server:
        access = read_access(server.url)
        with Connection(access) as connection:
            connection.api(
                "STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["orders.>"], "storage": "file"}
            )
        task = ReplayTask(str(lake), (), StreamTarget(access, "COPY"), next=100)
        assert replay(task, "COPY").stored == 96
        whole = ReplayTask(str(lake), (), StreamTarget(access, "COPY"))
        again = replay(whole, "COPY")
        assert (again.stored, again.duplicates) == (201, 96)
        copied = list(ServerVolume(access).open("COPY"))
    wanted = messages(lake)
    assert [(each.subject, each.data) for each in copied] == [(row[2], row[4]) for row in wanted]
    assert copied[0].header_map["Nats-Msg-Id"] == ["replay:ORDERS:1"]
    assert [each.header_map.get("N") for each in copied] == [
        [str(row[0])] if row[0] % 3 == 0 else None for row in wanted
    ]


@pytest.mark.parametrize("version", ["headrace", "2.15.2"])
def test_into_the_named_stream_and_no_other(
    tmp_path: Path, lake: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another stream takes the subjects: nothing is sent, in a dry run as in a real one. Mapped subjects go where they should."""
    made = TestServer(tmp_path / "js") if version == "headrace" else NatsServer(version, tmp_path / "js")
    with made as server:
        volume = ServerVolume(read_access(server.url))
        orders = volume.create("ORDERS", subjects=["orders.>"])
        copy = volume.create("COPY", subjects=["copy.>", "orderly"])
        command = ["pipeline", "replay", str(lake), server.url, "--into", "COPY", "--engine", "local"]
        for more in ((), ("--dry-run",), ("--subject", "{subject}")):
            assert run([*command, *more]) == 2
            assert "is no subject of stream COPY, which takes copy.>, orderly" in capsys.readouterr().err
        assert run([*command, "--subject", "copy.{subject}.{stream}"]) == 0
        assert "297 messages stored" in capsys.readouterr().out
        assert (orders.state().messages, copy.state().messages) == (0, 297)
        copied = list(copy)
        assert run([*command, "--subject", "orderly", "--application", "again"]) == 0
        assert (orders.state().messages, copy.state().messages) == (0, 594)
    assert [(each.subject, each.data) for each in copied] == [
        (f"copy.{row[2]}.ORDERS", row[4]) for row in messages(lake)
    ]


def test_conditions_of_the_first_publish_are_not_repeated(tmp_path: Path) -> None:
    """A message keeps the headers that it was published with; those about the stream it was published to mean nothing here."""
    condition = "Nats-Expected-Stream: FIRST\r\nNats-Expected-Last-Sequence: {}\r\nNats-Msg-Id: {}\r\nKept: 1"
    heads = [f"NATS/1.0\r\n{condition.format(n, n)}\r\n\r\n".encode() for n in range(3)]
    with headrace.open(str(tmp_path / "store"), mode="rw", create=True) as volume:
        log = volume.create("FIRST", subjects=["o"])
        volume.commit([log.append(headrace.batch("o", [b"a", b"b", b"c"], headers=heads))])
    with TestServer(tmp_path / "js") as server:
        access = read_access(server.url)
        copy = ServerVolume(access).create("COPY", subjects=["o"])
        task = ReplayTask(str(tmp_path / "store"), (), StreamTarget(access, "COPY"), first=2)
        assert replay(task, "COPY").stored == 2
        found = [each.header_map for each in copy]
    assert [each.pop("Nats-Msg-Id") for each in found] == [["replay:FIRST:2"], ["replay:FIRST:3"]]
    for each in found:
        assert {name for name in each if not name.startswith("Headrace-")} == {"Kept", "Nats-Expected-Stream"}
        assert each["Nats-Expected-Stream"] == ["COPY"]


class Clock:
    """Time passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_at_the_original_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.open(str(tmp_path / "store"), mode="rw", create=True) as volume:
        log = volume.create("ORDERS", subjects=["orders"])
        times = [1_700_000_000_000_000_000 + n * 20_000_000_000 for n in range(4)]
        volume.commit([log.append(headrace.batch("orders", [b"x"] * 4, times=times))])
    for pace, seconds in ((0.0, 0), (1.0, 60), (4.0, 15)):
        clock = Clock()
        monkeypatch.setattr("headrace.ops.replay.time", clock)
        target = DirectoryTarget(str(tmp_path / f"copy{pace}"), "jetstream")
        assert replay(ReplayTask(str(tmp_path / "store"), (), target, pace=pace), "x").stored == 4
        assert clock.now == pytest.approx(100 + seconds)
    with pytest.raises(BadInput, match="pace -1"):
        replay(ReplayTask(str(tmp_path / "store"), (), target, pace=-1.0), "x")


def test_a_work_queue_is_drained_into_an_archive(tmp_path: Path) -> None:
    """Messages leave the stream only when the manifest has them, and never before a consumer has acknowledged them."""
    lake = str(tmp_path / "lake")
    with TestServer(tmp_path / "server") as server:
        access = read_access(server.url)

        def publish(first: int, count: int) -> None:
            with Connection(access) as connection:
                sender = Publisher(connection)
                sender.publish(headrace.batch("jobs.a", [b"%d" % n for n in range(first, first + count)]))
                sender.flush()

        def drain(**more: Any) -> int:
            seen: list[int] = []

            def released(log: str, first: int, following: int) -> None:
                with headrace.open(lake) as volume:  # committed before it is let go of
                    assert volume.open(log).state().last_seq == following - 1
                seen.append(release(access, log, following))

            options = ArchiveOptions(newest=True, logs=("JOBS",))
            archive(
                access.place, lake, options, engine=Threads(1), volume=ServerVolume(access), released=released
            )
            return sum(seen)

        with Connection(access) as connection:
            body = {"name": "JOBS", "subjects": ["jobs.*"], "storage": "file", "retention": "workqueue"}
            connection.api("STREAM.CREATE.JOBS", body)
        publish(0, 500)
        assert drain() == 500
        assert ServerVolume(access).open("JOBS").state().messages == 0
        publish(500, 100)
        with Connection(access) as connection:
            config = {"durable_name": "W", "ack_policy": "explicit"}
            connection.api("CONSUMER.DURABLE.CREATE.JOBS.W", {"stream_name": "JOBS", "config": config})
        assert drain() == 0 and ServerVolume(access).open("JOBS").state().messages == 100
    with headrace.open(lake) as volume:
        assert [int(each.data or b"") for each in volume.open("JOBS")] == list(range(600))


def test_the_script_of_spark_submit_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Python looks for modules beside a script first: nothing there may hide one of its own."""
    assert run(["pipeline", "script"]) == 0
    script = capsys.readouterr().out.strip()
    done = subprocess.run([sys.executable, script, "archive", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "headrace pipeline archive" in done.stdout, done.stderr
