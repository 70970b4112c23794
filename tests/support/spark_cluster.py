"""A real Spark standalone cluster on the loopback interface: a master and workers, each a process, ended by its PID.

with SparkCluster(tmp_path, workers=2) as cluster:
    SparkSession.builder.master(cluster.url)
    cluster.workers[0].kill()            kill -9 of a worker
    cluster.executors(0)                 the processes of its executors
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.support.peers import PeerFailed, free_port
from tests.support.processes import children, command

START_LIMIT_S = 90.0
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class Daemon:
    """One Java process of Spark and its log."""

    def __init__(self, name: str, place: Path, arguments: list[str]) -> None:
        self.name, self.log_path = name, place / f"{name}.log"
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(place / f"{name}-local"),
            "SPARK_DAEMON_MEMORY": "512m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [home / "bin" / "spark-class", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def log(self, lines: int = 30) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def await_line(self, text: str) -> None:
        """Until its log says so."""
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until and self.process.poll() is None:
            if text in self.log_path.read_text(errors="replace"):
                return
            time.sleep(0.05)
        raise PeerFailed(f"spark's {self.name} never said {text!r}:\n{self.log()}")

    def kill(self) -> None:
        """kill -9; a no-op when it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class SparkCluster:
    """A master and workers of one core each."""

    def __init__(self, place: Path, workers: int = 2, memory: str = "1g") -> None:
        self._place, self._count, self._memory = place, workers, memory
        self._port = 0
        self.master: Daemon | None = None
        self.workers: list[Daemon] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._place.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        try:
            where = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
            self.master = Daemon("master", self._place, [MASTER, *where])
            self.workers = [self._worker(number) for number in range(self._count)]
            for worker in self.workers:
                worker.await_line("Successfully registered with master")
        except BaseException:
            self._stop()
            raise
        return self

    def _worker(self, number: int) -> Daemon:
        own = ["--host", "127.0.0.1", "--cores", "1", "--memory", self._memory, "--webui-port", "0"]
        work = ["--work-dir", str(self._place / f"work-{number}")]
        return Daemon(f"worker-{number}", self._place, [WORKER, *own, *work, self.url])

    def executors(self, worker: int) -> list[int]:
        """The processes that a worker started for applications."""
        pid = self.workers[worker].process.pid
        return [each for each in children(pid) if "CoarseGrainedExecutorBackend" in command(each)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for each in [*self.workers, self.master]:
            if each is not None:
                each.stop()
