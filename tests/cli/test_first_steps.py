"""What somebody meets who types the first commands: help, names of topics, times that are not there, words for positions."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

import headrace
from headrace.cli.main import run
from headrace.layouts.registry import layout_named
from headrace.layouts.report import floor_below
from headrace.ops.archive import ArchiveOptions, archive
from tests.support import vectors

PROGRAM = Path(sys.executable).with_name("headrace")
RABBIT = vectors.ROOT / "rabbitmq" / "3.10.8" / "clean_mixed"
TOPICS = {
    "kafka": ["orders-0", "orders-1", "other-0", "__consumer_offsets-0"],
    "rocketmq": ["orders-0", "orders-1", "other-0", "RMQ_SYS_TRANS_HALF_TOPIC-0"],
}


@pytest.fixture(params=TOPICS)
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two queues of a topic, another topic, and one that the broker keeps for itself."""
    path = tmp_path / request.param
    with headrace.open(path, mode="rw", create=True, layout=request.param) as volume:
        for name in TOPICS[request.param]:
            log = volume.create(name)
            volume.commit([log.append(headrace.batch("x", [b"one", b"two", b"three"]))])
    return path


@pytest.mark.parametrize("command", [[], ["pipeline"], ["store"]])
def test_a_command_that_is_missing_shows_the_help(command: list[str]) -> None:
    shown = subprocess.run([PROGRAM, *command], capture_output=True, text=True, timeout=60)
    help_text = subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2 and shown.stdout == ""
    assert shown.stderr.rstrip("\n") == help_text.stdout.rstrip("\n")
    assert len(shown.stderr.splitlines()) > 8


def test_a_wrong_option_names_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cat", "x", "--fooo"]) == 2
    assert capsys.readouterr().err == (
        "headrace: No such option: --fooo (Possible options: --follow) (see headrace cat --help)\n"
    )


def logs_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run([*arguments]) == 0
    out = capsys.readouterr().out
    return sorted({json.loads(line)["stream"] for line in out.splitlines()})


def test_a_topic_means_its_partitions(
    topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, internal = ["orders-0", "orders-1"], TOPICS[topics.name][-1]
    everything = [*mine, "other-0"]
    for given, expected in (
        (["--stream", "orders"], mine),
        (["--stream", "orders-1"], ["orders-1"]),
        (["--stream", "o*-0"], ["orders-0", "other-0"]),
        (["--stream", "*"], everything),
        ([], everything),
        (["--stream", internal], [internal]),
        (["--stream", internal.rpartition("-")[0]], [internal]),
        (["--stream", f"{internal[:2]}*"], [internal]),
    ):
        assert logs_of(capsys, "cat", str(topics), "--json", *given) == expected, given
        found = headrace.inspect(topics, log=given[1] if given else None)
        assert [log.name for log in found.logs] == expected
    with pytest.raises(headrace.NotFound, match=r"there are: .*orders-0, orders-1"):
        headrace.inspect(topics, log="order")
    # Every byte is checked all the same.
    assert internal in [log.name for log in headrace.verify(topics).logs]
    assert run(["inspect", str(topics)]) == 0
    assert f"own topics are not shown: {internal.rpartition('-')[0]}" in capsys.readouterr().out
    for given, expected in (([], everything), (["--log", "orders"], mine)):
        target = tmp_path / f"converted{len(given)}"
        assert run(["convert", str(topics), str(target), "--to", "jetstream", *given]) == 0
        assert (internal.rpartition("-")[0] in capsys.readouterr().out) == (not given)
        with headrace.open(target) as volume:
            assert volume.logs() == expected
    for logs, expected in (((), everything), (("orders",), mine)):
        lake = tmp_path / f"lake{len(logs)}"
        archive(str(topics), str(lake), ArchiveOptions(newest=True, logs=logs))
        with headrace.open(lake) as volume:
            assert volume.logs() == expected
    assert logs_of(capsys, "cat", str(tmp_path / "lake0"), "--json", "--stream", "orders") == mine


def test_a_name_is_itself_before_it_is_a_topic_or_a_pattern() -> None:
    names = ["a-0", "a-0-0", "q[1]", "q1"]
    assert layout_named("kafka").log_names.choose(names, ["a-0"], path="") == ["a-0"]
    assert layout_named("kafka").log_names.choose(names, ["a"], path="") == ["a-0"]
    assert layout_named("rabbitmq").log_names.choose(names, ["q[1]"], path="") == ["q[1]"]
    assert layout_named("rabbitmq").log_names.choose(["__q-0"], [], path="") == ["__q-0"], (
        "only brokers with such topics have them"
    )


def test_messages_without_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RabbitMQ keeps no time of its own: nothing says 1970."""
    assert run(["cat", str(RABBIT), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines and {line["time"] for line in lines} == {None}
    assert run(["cat", str(RABBIT)]) == 0
    text = capsys.readouterr().out
    assert "(no time)" in text and "1970" not in text
    with headrace.open(RABBIT) as volume:
        log = next(iter(volume))
        rows: Any = log.to_arrow(columns=["time", "time_ns"]).to_pylist()
        assert rows and all(row == {"time": None, "time_ns": None} for row in rows)
        record = next(iter(log))
        assert record.time is None and "1970" not in repr(record)
    archive(str(RABBIT), str(tmp_path / "lake"), ArchiveOptions(newest=True, by=("date",)))
    files = list((tmp_path / "lake").rglob("*.parquet"))
    assert files and {file.parent.name for file in files} == {"date=__HIVE_DEFAULT_PARTITION__"}
    table: Any = parquet
    assert table.ParquetFile(files[0]).read().column("time").null_count > 0
    assert run(["cat", str(tmp_path / "lake"), "--json"]) == 0
    back = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["data"] for line in back] == [line["data"] for line in lines]
    assert run(["convert", str(RABBIT), str(tmp_path / "js"), "--to", "jetstream"]) == 0
    capsys.readouterr()
    assert run(["cat", str(tmp_path / "js"), "--json"]) == 0
    converted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert converted and all(line["time"] > "2020" for line in converted)


def test_a_floor_is_the_last_that_is_acked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.open(tmp_path / "k", mode="rw", create=True, layout="kafka") as volume:
        log = volume.create("orders-0")
        volume.commit([log.append(headrace.batch("x", [b"m"] * 9))])
        volume.create("__consumer_offsets-0")
        volume.write_offsets("worker", {"orders-0": 6})
        volume.write_offsets("idle", {"orders-0": 0})
    assert run(["inspect", str(tmp_path / "k")]) == 0
    out = capsys.readouterr().out
    assert "worker: next 6, acked up to 5, 0 pending" in out
    assert "idle: next 0, nothing acked, 0 pending" in out
    assert (floor_below(1, origin=1), floor_below(2, origin=1)) == (None, 1)


def test_converting_shows_no_bytes_in_its_progress(topics: Path, tmp_path: Path) -> None:
    """Its steps are messages, each copied and then compared: a percentage."""
    master, slave = pty.openpty()
    started = subprocess.Popen(
        [PROGRAM, "convert", topics, tmp_path / "out", "--to", "jetstream"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65_536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    assert started.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace"))
    assert "copying, then comparing" in text and "%" in text
    assert not re.search(r"\d (bytes|KiB|MiB)", text), text


@pytest.mark.parametrize("command", ["inspect", "verify", "cat"])
def test_directories_that_nobody_knows(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme.txt").write_text("x")
    for name, seen in (
        ("empty", "found an empty directory, "),
        ("other", "found files of no product that Headrace knows, "),
        ("other/readme.txt", "found a file, "),
        ("nowhere", "no such directory"),
    ):
        assert run([command, str(tmp_path / name)]) == 2
        line = capsys.readouterr().err
        assert f"{tmp_path / name}: {seen}" in line and line.count("\n") == 1
        assert name == "nowhere" or "Kafka, RocketMQ or RabbitMQ, or an archive" in line


@pytest.mark.parametrize("command", ["inspect", "verify", "cat"])
def test_a_directory_that_may_not_be_read(
    command: str, topics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(topics))  # root may read everything
    assert run([command, str(topics)]) == 2
    assert capsys.readouterr().err == f"headrace: {topics}: no permission to read it\n"


@pytest.mark.parametrize(
    "command",
    [
        ["pipeline", "archive", "SRC", "", "--engine", "local"],
        ["pipeline", "replay", "SRC", "", "--layout", "kafka", "--engine", "local"],
        ["convert", "SRC", "", "--to", "kafka"],
        ["salvage", "SRC", ""],
        ["store", "open", "", "--create", "--layout", "kafka"],
    ],
)
def test_no_target_is_no_path(
    command: list[str], topics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable in a script must not mean the root, or the directory that one is in."""
    monkeypatch.chdir(topics.parent)
    before = sorted(path.name for path in Path("/").iterdir()), sorted(topics.parent.iterdir())
    assert run([str(topics) if word == "SRC" else word for word in command]) == 2
    assert "'' is not a path" in capsys.readouterr().err
    assert before == (sorted(path.name for path in Path("/").iterdir()), sorted(topics.parent.iterdir()))


def test_a_source_is_looked_for_before_spark_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # a session could not be started
    for command in (
        ["pipeline", "archive", "nowhere", "lake"],
        ["pipeline", "verify", "nowhere"],
        ["pipeline", "replay", "nowhere", "x", "--layout", "kafka"],
        ["pipeline", "convert", "nowhere", "x", "--to", "kafka"],
    ):
        assert run(command) == 2
        assert capsys.readouterr().err == "headrace: nowhere: no such directory\n"
