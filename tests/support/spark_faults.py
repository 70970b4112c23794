"""Exactly once under faults, counted: drivers that are killed, and everything that they use.

    fill(url, N)                  IN: N messages, each with its number
    by_faults(place, N, …)        one server; drivers killed at their worst moments, workers, executors and the server killed
    on_clusters(place, N, …)      a Spark standalone cluster and a NATS cluster of three; one worker and one node killed
    count(url, place, N)          read back what was made of IN: lost, double, for each way out

The drivers are processes of `spark_job`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace
from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.testing.server import TestServer
from tests.support.nats_cluster import NatsCluster
from tests.support.processes import children, command, python_workers
from tests.support.spark_cluster import SparkCluster

JOB = Path(__file__).with_name("spark_job.py")
BODY = b"%09d" + b"abcdefg" * 17
PIECE = 50_000
RUNS_MAX = 8
RUN_LIMIT_S = 900.0
WINDOW_NS = 100_000_000
"""Shorter than any restart: what is written again is known by the producer's mark, not by the window."""

DEATHS = ("archive", "copy", "parquet")
Say = Callable[[str], None]
Trouble = Callable[["Run"], None]


@dataclass
class Counted:
    """One way out, read back."""

    rows: int
    lost: int
    double: int
    foreign: int = 0

    @property
    def exact(self) -> bool:
        return not (self.lost or self.double or self.foreign)


@dataclass
class Report:
    """What happened, and what is left."""

    messages: int
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    counted: dict[str, Counted] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    batches: int = 0

    def happened(self, what: str) -> None:
        self.faults[what] = self.faults.get(what, 0) + 1

    @property
    def exact(self) -> bool:
        return bool(self.counted) and all(each.exact for each in self.counted.values())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.exact}


class Run:
    """A driver at work."""

    def __init__(self, job: dict[str, Any], number: int) -> None:
        self.place = Path(job["place"])
        self.out, self.err = self.place / f"driver-{number}.out", self.place / f"driver-{number}.err"
        (self.place / "started").unlink(missing_ok=True)
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(JOB), json.dumps(job)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def until(self, ready: Callable[[], bool], pause_s: float = 0.01) -> bool:
        """False when the driver ended before."""
        while self.alive:
            if ready():
                return True
            time.sleep(pause_s)
        return False

    def committed(self, query: str) -> int:
        """The number of the newest batch that Spark has committed; -1 for none."""
        return newest(self.place / f"{query}.checkpoint" / "commits")

    def kill(self) -> None:
        """Python and Java: the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def result(self) -> dict[str, Any]:
        return json.loads(self.out.read_text().splitlines()[-1])


def newest(directory: Path) -> int:
    """Of Spark's logs of batches: files named by number."""
    if not directory.is_dir():
        return -1
    names = [each.name.partition(".")[0] for each in directory.iterdir()]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def drive(job: dict[str, Any], number: int, trouble: Trouble | None = None) -> Run:
    """One driver to its end, whatever that is."""
    run = Run(job, number)
    thread = threading.Thread(target=trouble, args=(run,)) if trouble else None
    try:
        if thread is not None:
            thread.start()
        run.process.wait(RUN_LIMIT_S)
    finally:
        run.kill()  # what is left of the group
        run.process.wait()
        if thread is not None:
            thread.join()
    return run


# Troubles


def kill_workers(report: Report, times: int, gap_s: float = 1.0) -> Trouble:
    """Python workers that are using a processor, by PID."""

    def trouble(run: Run) -> None:
        if not run.until((run.place / "started").exists):
            return
        for _ in range(times):
            time.sleep(gap_s)
            if not run.until(lambda: _kill_one(run.process.pid)):
                return
            report.happened("tasks killed")

    return trouble


def _kill_one(root: int) -> bool:
    # Below executors only: what the driver itself asks Python for is not repeated by Spark.
    before = {pid: _ticks(pid) for each in executors(root) for pid in python_workers(each)}
    time.sleep(0.03)
    for pid, ticks in before.items():
        if _ticks(pid) > ticks >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def _ticks(pid: int) -> int:
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(parts[11]) + int(parts[12])
    except (OSError, IndexError):
        return -1


def executors(root: int) -> list[int]:
    return [pid for pid in children(root) if "CoarseGrainedExecutorBackend" in command(pid)]


def kill_executor(report: Report) -> Trouble:
    def trouble(run: Run) -> None:
        found: list[int] = []

        def ready() -> bool:
            found[:] = [pid for pid in executors(run.process.pid) if python_workers(pid)]
            return bool(found)

        if run.until(ready, 0.2):
            os.kill(found[0], signal.SIGKILL)
            report.happened("executors killed")

    return trouble


def kill_server(report: Report, server: TestServer, down_s: float = 1.0) -> Trouble:
    """After another batch of the copy."""

    def trouble(run: Run) -> None:
        at = run.committed("copy")
        if run.until(lambda: run.committed("copy") > at):
            server.kill()
            time.sleep(down_s)
            server.start()
            report.happened("server killed")

    return trouble


def kill_between(run: Run) -> None:
    """The driver, when a batch of the Parquet sink is in the sink's log and not in Spark's."""
    log = run.place / "parquet" / "_spark_metadata"
    at = max(newest(log), 0)

    def between() -> bool:
        return newest(log) > max(at, run.committed("parquet"))

    if run.until(between, 0.002):
        run.kill()


def together(*troubles: Trouble) -> Trouble:
    """One after the other would wait for the first; so beside each other."""

    def trouble(run: Run) -> None:
        threads = [threading.Thread(target=each, args=(run,)) for each in troubles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return trouble


# Scenes


def by_faults(
    place: Path, messages: int, *, master: str, deaths: Sequence[str] = DEATHS, say: Say = print
) -> Report:
    """One server. Drivers are killed in the archive's commit, in the stream sink's commit, and between the Parquet sink's
    commit and Spark's; meanwhile workers, an executor and the server. `master` is a local-cluster: it has executors of its own."""
    report, began = Report(messages), time.monotonic()
    place.mkdir(parents=True)
    with TestServer(place / "js") as server:
        fill(server.url, messages, duplicate_window=WINDOW_NS)
        say(f"{messages} messages are in IN")
        job = _job(place, messages, master, server.url)
        troubles: dict[str, Trouble] = {
            "archive": kill_workers(report, 2),
            "copy": kill_workers(report, 1),
            "parquet": together(kill_between, kill_executor(report)),
        }
        number = 0
        for kind in deaths:
            number = _until_killed(
                job | {"die": kind, "die_after": 2}, number, troubles[kind], report, kind, say
            )
        last = together(kill_server(report, server), kill_workers(report, 2))
        run = _finish(job | {"limits": True}, number, last, report, say)
        report.limits = _limits(run, server.url)
        count(server.url, place, report, run.result()["parquet"])
    report.seconds = round(time.monotonic() - began, 1)
    return report


def on_clusters(place: Path, messages: int, say: Say = print) -> Report:
    """Spark standalone with two workers, nats-server × 3 with streams on all of them; one of each is killed."""
    report, began = Report(messages), time.monotonic()
    place.mkdir(parents=True)
    with (
        SparkCluster(place / "spark") as spark,
        NatsCluster(place / "nats", "2.15.2") as nats,
    ):
        fill(nats.url, messages, num_replicas=3)
        say(f"{messages} messages are in IN, on three nodes")

        def trouble(run: Run) -> None:
            at = run.committed("copy")
            if "Spark workers killed" in report.faults or not run.until(lambda: run.committed("copy") > at):
                return
            leader = nats.leader("OUT") or 0
            nats.nodes[leader].kill()
            report.happened("NATS nodes killed (the leader of OUT)")
            found = spark.executors(0)
            spark.workers[0].kill()
            report.happened("Spark workers killed")
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    report.happened("executors killed")
            say(f"killed node {leader} and a worker after batch {run.committed('copy')} of the copy")

        run = _finish(_job(place, messages, spark.url, nats.url), 0, trouble, report, say)
        count(nats.url, place, report, run.result()["parquet"])
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _job(place: Path, messages: int, master: str, url: str) -> dict[str, Any]:
    size = messages * 180
    return {
        "master": master,
        "url": url,
        "place": str(place),
        "batch": max(messages // 20, 1000),
        "partition_bytes": max(size // 40, 1 << 16),
        "file_bytes": max(size // 60, 1 << 16),
    }


def _until_killed(
    job: dict[str, Any], number: int, trouble: Trouble, report: Report, what: str, say: Say
) -> int:
    """A driver that dies where it was told to. One that ends otherwise (Spark gives up on a busy machine) is started again."""
    place = Path(job["place"])
    for turn in range(number, number + RUNS_MAX):
        after = {"die_after": newest(place / "copy.checkpoint" / "commits") + 2}
        run = drive(job | (after if job.get("die") == "copy" else {}), turn, trouble)
        if run.process.returncode == 0:
            raise AssertionError(f"the driver was to die ({what}), but it came to its end")
        late = what == "parquet" and newest(place / "parquet/_spark_metadata") <= run.committed("parquet")
        if run.process.returncode == -signal.SIGKILL and not late:
            report.happened(f"drivers killed, {what} written and not committed")
            done = f"copy {run.committed('copy') + 1}, parquet {run.committed('parquet') + 1}"
            say(f"driver {turn} was killed ({what}); batches done: {done}")
            return turn + 1
        report.happened("driver killed elsewhere" if late else "drivers that gave up and were started again")
        say(f"driver {turn}: {'killed too late' if late else _end_of(run)}")
    raise AssertionError(f"no driver died as it should ({what})")


def _finish(job: dict[str, Any], number: int, trouble: Trouble, report: Report, say: Say) -> Run:
    """Started again until everything is done: what an operator's supervisor does."""
    for turn in range(RUNS_MAX):
        run = drive(job, number + turn, trouble)
        if run.process.returncode == 0:
            report.batches = run.committed("copy") + 1
            return run
        report.happened("drivers that gave up and were started again")
        say(f"driver {number + turn} ended: {_end_of(run)}")
    raise AssertionError(f"{RUNS_MAX} drivers did not bring it to an end")


def _end_of(run: Run) -> str:
    lines = [
        line for line in run.err.read_text(errors="replace").splitlines() if not line.startswith("\tat ")
    ]
    return f"it ended with {run.process.returncode}:\n" + "\n".join(lines[-25:])[-3000:]


def _limits(run: Run, url: str) -> dict[str, Any]:
    """Did the query name the range, go on when told to, and log it?"""
    limits = run.result()["limits"]
    first, last = limits["missing"]
    # Each batch names what it misses: together they are the whole range.
    refused, logged = _ranges(limits["refused"]), _ranges(run.err.read_text(errors="replace"))
    copied = _origins(url, "SHORTOUT")
    wanted = [*range(1, first), *range(last + 1, last + first)]
    return {
        "missing": [first, last],
        "named": bool(refused) and min(refused) == first and max(refused) <= last,
        "logged": logged == set(range(first, last + 1)),
        "went_on": not limits["first"] and not limits["went_on"] and sorted(copied.tolist()) == wanted,
    }


def _ranges(text: str) -> set[int]:
    found = re.findall(r"log SHORT no longer holds (\d+) to (\d+)", text)
    return {each for first, last in found for each in range(int(first), int(last) + 1)}


# Before and after


def fill(url: str, messages: int, num_replicas: int = 1, **out: Any) -> None:
    """Message n (from 0) says n; its sequence is n + 1 unless a leader changed meanwhile."""
    volume = ServerVolume(read_access(url))
    volume.create("IN", subjects=["in.>"], num_replicas=num_replicas)
    volume.create("OUT", subjects=["out.>"], num_replicas=num_replicas, **out)
    with Connection(read_access(url)) as connection:
        publisher = Publisher(connection)
        for first in range(0, messages, PIECE):
            numbers = range(first, min(first + PIECE, messages))
            batch = headrace.batch(
                [f"in.{n % 7}" for n in numbers], [BODY % n for n in numbers], positions=list(numbers)
            )
            publisher.publish(batch, id_prefix="fill:")
        publisher.flush()


def count(url: str, place: Path, report: Report, parquet: dict[str, int]) -> None:
    """Everything read back and compared with 1 … N."""
    n = report.messages
    report.counted["in"] = _compare(_bodies(url, "IN"), 0, n)
    report.counted["copy (origins)"] = _compare(_origins(url, "OUT"), 1, n)
    report.counted["copy (bodies)"] = _compare(_bodies(url, "OUT"), 0, n)
    whole = parquet["first"] == 1 and parquet["last"] == n
    report.counted["parquet"] = Counted(
        parquet["rows"], n - parquet["distinct"], parquet["rows"] - parquet["distinct"], 0 if whole else 1
    )
    with headrace.open(str(place / "archive")) as volume:
        report.counted["archive"] = _compare(
            volume.open("IN").to_arrow(["seq"]).column("seq").to_numpy(), 1, n
        )


def _compare(found: Any, first: int, messages: int) -> Counted:
    distinct = np.unique(found)
    right = int(((distinct >= first) & (distinct < first + messages)).sum())
    return Counted(len(found), messages - right, len(found) - len(distinct), len(distinct) - right)


def _data(url: str, stream: str) -> Any:
    kernels: Any = pc
    table = ServerVolume(read_access(url)).open(stream).to_arrow(["data"])
    return kernels.cast(table.column("data"), pa.string())


def _origins(url: str, stream: str) -> Any:
    """`origin:BODY` → origin."""
    kernels: Any = pc
    parts = kernels.split_pattern(_data(url, stream), ":", max_splits=1)
    return kernels.cast(kernels.list_element(parts, 0), pa.int64()).to_numpy()


def _bodies(url: str, stream: str) -> Any:
    """The number in the body: its last part is the filler."""
    kernels: Any = pc
    ends = kernels.utf8_slice_codeunits(_data(url, stream), -len(BODY % 0), -len(BODY % 0) + 9)
    return kernels.cast(ends, pa.int64()).to_numpy()
