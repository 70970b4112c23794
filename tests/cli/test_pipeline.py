"""`headrace pipeline`: plan, run, JSON, exit codes, one clear line for what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import run
from headrace.cli.pipeline_line import text
from headrace.ops.engines import Done
from tests.ops.helpers import STREAMS, small_store

LOCAL = ["--engine", "local"]


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["pipeline", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, lake = str(small_store(tmp_path / "store")), str(tmp_path / "lake")
    code, out, _ = called(capsys, "archive", store, lake, "--dry-run", "--newest", "--file-size", "8k")
    assert code == 0 and "ORDERS  1.." in out and "--dry-run" in out and not Path(lake).exists()
    code, out, err = called(capsys, "archive", store, lake, "--newest", "--json", *LOCAL)
    result: dict[str, Any] = json.loads(out)
    assert (code, err, result["rows"], result["engine"]) == (0, "", 297, "local")
    code, out, _ = called(capsys, "archive", store, lake, *LOCAL)
    assert code == 0 and "0 messages added in 0 files, 297 in all" in out


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, lake = str(small_store(tmp_path / "store")), str(tmp_path / "lake")
    for arguments, line in (
        (["--engine", "flink"], "--engine 'flink'; known are: spark, local"),
        (["--by", "week"], "divide by 'week'"),
        (["--format", "orc", *LOCAL], "format 'orc'"),
        (["--master", "local[1]", *LOCAL], "--master is Spark's"),
    ):
        code, _, err = called(capsys, "archive", store, lake, *arguments)
        assert code == 2 and line in err and len(err.splitlines()) == 1
    # In a process of its own: in this one another test may have started a session, which needs no Java any more.
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    command = [sys.executable, "-m", "headrace.cli", "pipeline", "archive", store, lake]
    done = subprocess.run(
        command, env=environment | {"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "Java 17" in done.stderr and "--engine local" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_verify_has_the_exit_codes_of_headrace_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = small_store(tmp_path / "store")
    code, out, _ = called(capsys, "verify", str(store), "--json", *LOCAL)
    assert code == 0 and len(json.loads(out)["streams"][0]["blocks"]) > 3
    block = sorted((store / STREAMS / "ORDERS/msgs").glob("*.blk"))[1]
    content = bytearray(block.read_bytes())
    content[40:44] = b"oops"
    block.write_bytes(content)
    code, out, _ = called(capsys, "verify", str(store), *LOCAL)
    assert code == 1 and "NOT SOUND" in out
    assert called(capsys, "verify", str(tmp_path / "none"), *LOCAL)[0] == 2


def test_interrupted_it_ends_at_once_and_goes_on_later(tmp_path: Path) -> None:
    store, lake = str(small_store(tmp_path / "store", 3000)), str(tmp_path / "lake")
    command = [sys.executable, "-m", "headrace.cli", "pipeline", "archive", store, lake, "--newest"]
    command += ["--file-size", "4k", *LOCAL]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (tmp_path / "lake/_headrace/lock").exists() and child.poll() is None:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode in (130, 0) and b"Traceback" not in err
    done = subprocess.run([*command, "--json"], capture_output=True, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)["rows_all"] == 2997


def test_the_progress_line() -> None:
    shown = text("archive", Done(12, 40, 3_200_000, 410_000_000, 820_000_000), 1.0)
    assert shown == "archive  12/40 blocks  3,200,000 rows  410 MB/s  1 s left"
