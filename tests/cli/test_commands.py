"""The commands as a user runs them: answers, formats, exit codes; directories stay as they are."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import run
from tests.ops.helpers import STREAMS, fingerprint, small_store
from tests.support import vectors

PROGRAM = Path(sys.executable).with_name("headrace")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Run in this process with --json; the document."""
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_version_and_help() -> None:
    for arguments, expected in ((["--version"], headrace.__version__), (["--help"], "Exit codes: 0")):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in done.stdout


def test_completion_installs_and_completes(tmp_path: Path) -> None:
    # By its name: there need not be a shell among the processes above a test.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    environment = os.environ | {"HOME": str(tmp_path), "SHELL": "/bin/bash", **named}
    done = subprocess.run(
        [PROGRAM, "--install-completion", "bash"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "headrace" in (tmp_path / ".bash_completions/headrace.sh").read_text()
    variables = environment | {
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": "headrace ver",
        "COMP_CWORD": "1",
    }
    done = subprocess.run([PROGRAM], env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["verify"]


def test_verify_golden_directories(
    jetstream_vector: vectors.Vector, capsys: pytest.CaptureFixture[str]
) -> None:
    store = jetstream_vector.folder / "store"
    document = answer(capsys, "verify", str(store))
    assert document["sound"] is True
    assert {stream["name"] for stream in document["streams"]} == set(jetstream_vector.streams())
    assert run(["verify", str(store)]) == 0
    assert ": sound (" in capsys.readouterr().out


@pytest.mark.parametrize("version", vectors.versions("jetstream"))
def test_verify_damaged_directories(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = vectors.load("jetstream", version)
    case = next(case for case in vector.recovery() if case.name == "payload-flip-seq-8")
    store = vector.copy(tmp_path)
    vectors.apply_ops(case.ops, store)
    document = answer(capsys, "verify", str(store), code=1)
    (damage,) = [each for stream in document["streams"] for each in stream["damage"]]
    assert (damage["offset"], damage["length"], damage["kind"]) == (418, 53, "bad-record")
    assert run(["verify", str(store)]) == 1
    assert "1.blk: bytes 418..470: bad-record, sequence 8" in capsys.readouterr().out
    assert run(["inspect", str(store)]) == 1
    assert "bytes 418..470" in capsys.readouterr().out
    assert run(["cat", str(store), "-s", "ORDERS"]) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 8
    assert "damaged messages are not printed" in printed.err


def test_inspect(jetstream_vector: vectors.Vector, capsys: pytest.CaptureFixture[str]) -> None:
    store = jetstream_vector.folder / "store"
    before = fingerprint(store)
    document = answer(capsys, "inspect", str(store))
    for stream in document["streams"]:
        expected = jetstream_vector.streams()[stream["name"]]["state"]
        assert stream["state"]["messages"] == expected["messages"]
        assert stream["state"]["last_seq"] == expected["last_seq"]
    assert run(["inspect", str(store)]) == 0
    text = capsys.readouterr().out
    assert "NATS JetStream" in text and "consumer   DISPATCH: delivered 12" in text
    assert "\x1b" not in text and "█" not in text, "plain output where there is no terminal"
    assert fingerprint(store) == before


def test_cat_formats(jetstream_vector: vectors.Vector, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    store = str(jetstream_vector.folder / "store")
    expected = list(jetstream_vector.messages("ORDERS"))
    assert run(["cat", store, "--stream", "ORDERS", "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [line["seq"] for line in lines] == [message.seq for message in expected]
    for line, message in zip(lines, expected, strict=True):
        assert list(line) == ["stream", "seq", "time", "subject", "key", "headers", "data"]
        assert line["subject"] == message.subject
        assert message.data_matches(base64.b64decode(line["data"]))
    assert lines[5]["headers"] == {"Multi": ["one", "two"], "Empty": [""]}
    for message in expected:
        assert run(["cat", store, "--stream", "ORDERS", "--seq", str(message.seq), "--format", "raw"]) == 0
        assert message.data_matches(capsysbinary.readouterr().out)
    assert run(["cat", store, "--stream", "ORDERS", "--seq", "2..5"]) == 0
    assert [line.split()[0] for line in capsysbinary.readouterr().out.splitlines()] == [b"2", b"3", b"5"]


def test_cat_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(small_store(tmp_path / "store"))
    for arguments, expected in (
        (["--seq", "..3"], [1, 2, 3]),
        (["--seq", "299.."], [299, 300]),
        (["--subject", "orders.1", "--limit", "2"], [1, 5]),
        (["--subject", "orders.1", "--subject", "orders.2", "-n", "3"], [1, 2, 5]),
        (["--until", "2001-01-01"], []),
        (["--since", "2001-01-01T00:00:00+02:00", "--seq", "1..1"], [1]),
    ):
        assert run(["cat", store, "--json", *arguments]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["seq"] for line in lines] == expected, arguments


def test_text_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.open(str(tmp_path / "s"), mode="rw", create=True) as volume:
        evil = volume.create("EVIL", subjects=["x"])
        volume.commit([evil.append(headrace.batch("x", [b"\x1b]0;owned\x07 two\nlines \xff"]))])
    assert run(["cat", str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "\x1b" not in out and r"\x1b]0;owned\x07 two\nlines \xff" in out


def test_encrypted_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = vectors.load("jetstream", "2.15.2")
    store, key = str(vector.folder / "store-encrypted"), vector.manifest["encrypted"]["key"]
    (tmp_path / "key").write_text(f"{key}\n")
    for options in (["--key", key], ["--key-file", str(tmp_path / "key")]):
        assert run(["verify", store, *options]) == 0
        assert run(["inspect", store, *options]) == 0
        assert run(["cat", store, *options]) == 0
        assert run(["salvage", store, str(tmp_path / options[0]), *options]) == 0
    capsys.readouterr()
    for options in ([], ["--key", "wrong"]):
        assert run(["verify", store, *options]) == 2
        assert "key" in capsys.readouterr().err
    assert key not in repr(run)


def test_salvage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = small_store(tmp_path / "store")
    vectors.xor(store / STREAMS / "ORDERS/msgs/1.blk", 40, 0x55)
    before = fingerprint(store)
    assert run(["salvage", str(store), str(tmp_path / "out")]) == 1
    text = capsys.readouterr().out
    assert "296 messages saved" in text and "1.blk: bytes" in text and "verified as sound" in text
    assert fingerprint(store) == before
    assert run(["verify", str(tmp_path / "out")]) == 0
    document = (
        answer(capsys, "salvage", str(tmp_path / "out"), str(tmp_path / "again"))
        if capsys.readouterr()
        else {}
    )
    assert document["complete"] is True and document["messages"] == 296


def test_a_picture_on_a_terminal(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    vectors.xor(store / STREAMS / "ORDERS/msgs/1.blk", 40, 0x55)
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.Popen(
        [PROGRAM, "inspect", str(store)], stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert done.wait(30) == 1
    text = shown.decode()
    assert "█" in text and "!" in text and "\x1b[" in text


def test_progress_stays_off_stdout_and_off_pipes(tmp_path: Path) -> None:
    store = str(small_store(tmp_path / "store"))
    done = subprocess.run([PROGRAM, "verify", store], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == "" and "\x1b" not in done.stdout


def test_nobody_reads_any_more(tmp_path: Path) -> None:
    store = str(small_store(tmp_path / "store", messages=5000, block_bytes=1 << 20))
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" cat "$1" | head -n 1', PROGRAM, store],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "" and done.stdout.startswith("1  ")


def test_follow_and_interrupt(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with headrace.open(path, mode="rw", create=True) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        volume.commit([orders.append(headrace.batch("orders.new", [b"before"]))])
        follower = subprocess.Popen(
            [PROGRAM, "cat", path, "--follow", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert follower.stdout is not None and follower.stderr is not None
            assert json.loads(follower.stdout.readline())["seq"] == 1
            volume.commit([orders.append(headrace.batch("orders.new", [b"after"]))])
            assert json.loads(follower.stdout.readline())["seq"] == 2
            time.sleep(0.1)
            follower.send_signal(signal.SIGINT)
            assert follower.wait(30) == 130
            assert follower.stderr.read() == b""
        finally:
            follower.kill()
            follower.wait()
            for pipe in (follower.stdout, follower.stderr):
                if pipe is not None:
                    pipe.close()
