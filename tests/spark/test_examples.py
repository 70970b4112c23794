"""The examples, run as they stand: windows with a watermark, a join, state that survives a restart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.testing.server import TestServer
from tests.support.peers import free_port

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
REGIONS = ("eu", "us", "asia")
START_NS = 1_790_000_000_000_000_000


@pytest.fixture(scope="module")
def examples(spark: Any) -> Iterator[Any]:
    """The scripts as modules. To Spark's workers their classes go as they do from a script: by value."""
    from pyspark import cloudpickle

    sys.path.insert(0, str(EXAMPLES))
    cloudpickle.register_pickle_by_value(import_module("running_totals"))
    yield import_module
    sys.path.remove(str(EXAMPLES))


def order(n: int) -> bytes:
    return json.dumps({"id": n, "region": REGIONS[n % 3], "amount": n / 4}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(tmp_path_factory.mktemp("examples") / "js") as made:
        access = read_access(made.url)
        ServerVolume(access).create("ORDERS", subjects=["orders.>"])
        ServerVolume(access).create("TOTALS", subjects=["totals.>"])
        publish(made, 0, 600)
        yield made


def publish(server: TestServer, first: int, count: int) -> None:
    with Connection(read_access(server.url)) as connection:
        publisher = Publisher(connection)
        numbers = range(first, first + count)
        publisher.publish(
            headrace.batch([f"orders.{REGIONS[n % 3]}" for n in numbers], [order(n) for n in numbers])
        )
        publisher.flush()


def test_windows_are_written_back_once(spark: Any, examples: Any, tmp_path: Path) -> None:
    """From files, whose times can be chosen: 600 orders, ten a second, in windows of ten seconds."""
    with headrace.open(str(tmp_path / "in"), mode="rw", create=True) as volume:
        log = volume.create("ORDERS", subjects=["orders.>"])
        times = [START_NS + n * 100_000_000 for n in range(600)]
        log.append(headrace.batch("orders.x", [order(n) for n in range(600)], times=times))
        log.commit()
    with TestServer(tmp_path / "js") as server:
        out = ServerVolume(read_access(server.url)).create("TOTALS", subjects=["totals.>"])
        sink = {"url": server.url, "stream": "TOTALS"}
        for attempt in range(2):  # another checkpoint: everything again
            query = examples("windows").totals(
                spark, {"path": str(tmp_path / "in")}, sink, str(tmp_path / f"c{attempt}")
            )
            query.awaitTermination()
        found = [
            json.loads(each.data or b"") for task in out.scan_tasks() for b in task.batches() for each in b
        ]
    expected: Counter[tuple[int, str]] = Counter((n // 100, REGIONS[n % 3]) for n in range(600))
    # The watermark is one window behind: the last ones are not final yet.
    assert len(found) == len({(each["window"], each["region"]) for each in found}) >= 12
    assert {each["orders"] for each in found} <= set(expected.values())


def test_a_join_with_a_table(spark: Any, examples: Any, server: TestServer, tmp_path: Path) -> None:
    table = spark.createDataFrame([("eu", "Europe"), ("us", "America")], "region string, name string")
    source = {"url": server.url, "stream": "ORDERS", "endingSequence": "600"}
    examples("join").with_regions(
        spark, source, table, str(tmp_path / "out"), str(tmp_path / "c")
    ).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows) == list(range(600))
    assert {(row.region, row.name) for row in rows} == {("eu", "Europe"), ("us", "America"), ("asia", None)}


def test_state_survives_a_restart(spark: Any, examples: Any, server: TestServer, tmp_path: Path) -> None:
    source = {"url": server.url, "stream": "ORDERS", "endingSequence": "900"}
    examples("running_totals").running_totals(
        spark, source, str(tmp_path / "out"), str(tmp_path / "c")
    ).awaitTermination()
    publish(server, 600, 300)
    examples("running_totals").running_totals(
        spark, source, str(tmp_path / "out"), str(tmp_path / "c")
    ).awaitTermination()
    found = sorted(spark.read.parquet(str(tmp_path / "out")).collect(), key=lambda row: row.last_seq)
    rows = {row.region: (row.orders, row.amount) for row in found}
    assert rows == {
        region: (300, sum(n / 4 for n in range(900) if REGIONS[n % 3] == region)) for region in REGIONS
    }


@pytest.mark.slow
def test_the_commands_of_the_readme_run_as_written(tmp_path: Path) -> None:
    """In a plain shell, the environment not activated: only `headrace` and `python` are spelled out."""
    text = (EXAMPLES / "README.md").read_text()
    (commands,) = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for script in EXAMPLES.glob("*.py"):
        assert script.name == "common.py" or f"examples/{script.name}" in commands
    programs = Path(sys.executable).parent
    lines = re.sub(r"^(headrace|python) ", rf"{programs}/\1 ", commands, flags=re.MULTILINE)
    commands = lines.replace("4222", str(free_port())).replace("examples/", f"{EXAMPLES}/")
    output = tmp_path / "output"
    with output.open("w") as file:
        # Not a pipe: a server that a failed line left behind would hold it open. Its group is ended with the shell.
        shell = subprocess.Popen(
            ["bash", "-euc", commands],
            cwd=tmp_path,
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(timeout=540)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    printed = output.read_text()
    assert code == 0, printed
    assert "600 orders published" in printed
    assert re.search(r'\{"window":.*"region":"eu"', printed), printed
    assert re.search(r"\| *Europe *\| *200\|", printed), printed
    assert re.search(r"\| *asia *\| *15\d+\.\d+ *\| *200\|", printed), printed


def test_the_source_is_found_where_the_environment_is_not_activated(tmp_path: Path) -> None:
    """`headrace.spark` imported before the session starts, or after it."""
    with headrace.open(str(tmp_path / "data"), mode="rw", create=True) as volume:
        volume.create("ORDERS", subjects=["orders.>"]).append(headrace.batch("orders.new", [b"one"] * 7))
    start = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
    )
    count = "print('rows', spark.read.format('headrace').load('data').count())\n"
    for program in (f"import headrace.spark\n{start}{count}", f"{start}import headrace.spark\n{count}"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert "rows 7" in done.stdout.splitlines()


def plain_environment() -> dict[str, str]:
    """What a service or a script starts with: a path to the system's programs, and where Java is."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "JAVA_HOME", "LANG")}
    return kept | {"PATH": "/usr/local/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
