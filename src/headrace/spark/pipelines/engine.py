"""Work on blocks, spread over a Spark cluster: one small row per item goes out and one comes back; messages never do.

    sparkContext.parallelize(items, one each) → map(work) → collect

Items go to the workers in waves, so that a plan of a million blocks is never shipped whole,
results come back while others run, and a commit needs not wait for the end. Two waves are under way at a time: no core
waits for the last item of a wave.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import BadInput, HeadraceError
from headrace.randomness import random_hex
from headrace.spark.interpreter import SUBMITTED

Item = TypeVar("Item")
Result = TypeVar("Result")

WAVES_AT_ONCE = 2
ITEMS_PER_CORE = 4
NO_JAVA = (
    "Spark needs Java 17 or newer and finds none (neither JAVA_HOME nor `java` on the PATH): install one, or take "
    "--engine local, which needs none"
)


class SparkEngine:
    """Over a session: the one that is there, the one that is given, or a new one for `master`."""

    name = "spark"

    def __init__(self, session: SparkSession | None = None, master: str | None = None) -> None:
        active = session or SparkSession.getActiveSession()
        self._own = active is None
        self.session = active if active is not None else new_session(master)

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Results as their waves come back."""
        cores, tag = _cores(self.session), f"headrace-{random_hex()}"
        size = max(cores * ITEMS_PER_CORE, 1)
        waves = [range(at, min(at + size, len(items))) for at in range(0, len(items), size)]
        with ThreadPoolExecutor(WAVES_AT_ONCE, thread_name_prefix="headrace-spark") as pool:
            waiting: set[Future[list[tuple[int, bytes]]]] = set()
            try:
                for wave in waves:
                    if len(waiting) == WAVES_AT_ONCE:
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        yield from _unpacked(done)
                    waiting.add(pool.submit(self._wave, work, items, wave, tag))
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from _unpacked(done)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._cancel(tag)
                raise

    def _wave(
        self, work: Callable[[Any], Any], items: Sequence[Any], wave: range, tag: str
    ) -> list[tuple[int, bytes]]:
        shipped = [(number, pickle.dumps(items[number])) for number in wave]

        def do(one: tuple[int, bytes]) -> tuple[int, bytes]:
            number, item = one
            try:
                return number, pickle.dumps((True, work(pickle.loads(item))))
            except HeadraceError as error:
                # As a result, not as a failed task: what is wrong with the data is wrong at the second try too.
                return number, pickle.dumps((False, error))

        self.session.sparkContext.addJobTag(tag)
        try:
            return self.session.sparkContext.parallelize(shipped, len(shipped)).map(do).collect()
        except (PySparkException, Py4JError) as error:
            raise HeadraceError(f"Spark gave up: {_first_line(error)}") from error

    def _cancel(self, tag: str) -> None:
        """Our own jobs only: the session may be the user's, with queries of theirs."""
        context = getattr(self.session, "sparkContext", None)
        if context is not None:
            context.cancelJobsWithTag(tag)

    def close(self) -> None:
        """Stop the session, if it was made here."""
        if self._own:
            self.session.stop()


def new_session(master: str | None = None) -> SparkSession:
    """A session for a pipeline. BadInput in one line where there is no Java."""
    if not master or master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if SUBMITTED not in os.environ and not java_found():
        raise BadInput(NO_JAVA)
    builder: Any = SparkSession.builder
    if master or SUBMITTED not in os.environ:
        builder = builder.master(master or "local[*]")
        builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    made: SparkSession = builder.appName("headrace").getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def java_found() -> bool:
    """Whether Spark will find Java where it looks."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return os.access(f"{home}/bin/java", os.X_OK)
    return shutil.which("java") is not None


def _cores(session: SparkSession) -> int:
    context = getattr(session, "sparkContext", None)
    return context.defaultParallelism if context is not None else 8


def _unpacked(done: set[Future[list[tuple[int, bytes]]]]) -> Iterator[tuple[int, Any]]:
    for future in done:
        for number, made in future.result():
            good, value = pickle.loads(made)
            if not good:
                raise value
            yield number, value


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines and "Traceback" in str(error) else (lines[0] if lines else type(error).__name__)
