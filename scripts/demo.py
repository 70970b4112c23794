"""The demonstration behind `make demo`: a writer is killed in the middle, and nothing acknowledged is lost.

    1  a child process appends messages in batches and reports each batch once it is on disk
    2  half way it is killed with kill -9
    3  the store is opened again, every message is compared with what was sent, another writer appends the rest
    4  the command line inspects, verifies and prints; Spark counts

Everything is in build/demo, made anew each time. Figures go to stdout, the progress bar to stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import headrace
from headrace.errors import HeadraceError

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "build" / "demo"
STREAM = "ORDERS"
SUBJECTS = ("orders.eu.new", "orders.us.new", "orders.eu.paid", "orders.us.paid")
BATCH = 1000
PAYLOAD_BYTES = 128
out = Console(highlight=False, soft_wrap=True)


def payload(seq: int) -> bytes:
    """What message `seq` must contain."""
    return f"order {seq} ".encode().ljust(PAYLOAD_BYTES, b".")


def subject(seq: int) -> str:
    """Where message `seq` must be."""
    return SUBJECTS[seq % len(SUBJECTS)]


def write(first: int, last: int) -> int:
    """Append [first, last] and print the last sequence of each batch when it is durable."""
    with headrace.open(str(STORE), mode="rw", create=True) as volume:
        orders = volume.create(STREAM, subjects=["orders.>"])
        for start in range(first, last + 1, BATCH):
            seqs = range(start, min(start + BATCH, last + 1))
            batch = headrace.batch([subject(seq) for seq in seqs], [payload(seq) for seq in seqs])
            ticket = orders.append(batch)
            volume.commit([ticket])
            print(ticket.next - 1, flush=True)
    return 0


def run_writer(first: int, last: int, kill_at: int | None) -> int:
    """Run `write` in a child process; returns the highest sequence it acknowledged.

    After the kill the pipe is read to its end: an acknowledgement that was on its way counts.
    """
    child = subprocess.Popen(
        [sys.executable, __file__, "--write", str(first), str(last)], stdout=subprocess.PIPE, text=True
    )
    acknowledged = first - 1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("appending", total=last, completed=acknowledged)
        assert child.stdout is not None
        for line in child.stdout:
            acknowledged = int(line)
            bar.update(task, completed=acknowledged)
            if kill_at is not None and acknowledged >= kill_at:
                child.kill()
                kill_at = None
    code = child.wait()
    if code not in (0, -9):
        raise SystemExit(f"demo: the writer ended with exit code {code}")
    return acknowledged


def check_survivors(acknowledged: int) -> int:
    """Compare every message with what was sent; returns the last sequence that is there."""
    wrong = expected = 0
    with headrace.open(str(STORE)) as volume:
        for expected, record in enumerate(volume.open(STREAM), 1):
            sent = (expected, subject(expected), payload(expected))
            wrong += (record.position, record.subject, record.data) != sent
    if wrong or expected < acknowledged:
        raise SystemExit(f"demo: LOST: {acknowledged:,} acknowledged, {expected:,} found, {wrong:,} wrong")
    return expected


def headline(number: int, text: str) -> None:
    out.print(f"\n[bold]{number}. {text}[/bold]")


def rate(count: int, seconds: float) -> str:
    """How fast, for people."""
    return f"{count / max(seconds, 1e-6):,.0f} messages/s"


def command(*arguments: str) -> None:
    """Run `headrace …` as a user would and show it."""
    out.print(f"[dim]$ headrace {' '.join(arguments)}[/dim]")
    program = Path(sys.executable).with_name("headrace")
    done = subprocess.run([program, *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"demo: headrace {arguments[0]} ended with exit code {done.returncode}")


def count_with_spark(expected: int) -> None:
    """Count in Spark. What is missing for it is said in one line, and the demo goes on."""
    if subprocess.run([ROOT / "scripts" / "need.sh", "java"], check=False).returncode != 0:
        return
    if importlib.util.find_spec("pyspark") is None:
        print(
            "headrace: pyspark is missing: Spark is read through it. Install it: make demo, with Java 17 there"
        )
        return
    with out.status("Spark is starting"):
        done = subprocess.run(
            [sys.executable, __file__, "--count"],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if line[:1].strip()), "no reason given"
        )
        raise SystemExit(f"demo: Spark could not count: {reason}")
    counted = json.loads(done.stdout.splitlines()[-1])
    for name, count in counted["subjects"]:
        out.print(f"  {name:<16}{count:>10,}")
    found = sum(count for _, count in counted["subjects"])
    out.print(
        f"Spark counts {found:,} messages in {counted['seconds']:.1f} s (and took {counted['start']:.1f} s to start)"
    )
    if found != expected:
        raise SystemExit(f"demo: Spark found {found:,}, expected {expected:,}")


def count() -> int:
    """The Spark part, in a process of its own so that its chatter does not drown the figures."""
    from pyspark.sql import SparkSession

    started = time.monotonic()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    ready = time.monotonic()
    store = spark.read.format("headrace").option("columns", "subject").load(str(STORE))
    frame = store.groupBy("subject").count().orderBy("subject")
    subjects = [(row["subject"], row["count"]) for row in frame.collect()]
    done = time.monotonic()
    spark.stop()
    print(json.dumps({"subjects": subjects, "start": ready - started, "seconds": done - ready}))
    return 0


def show(total: int, spark: bool) -> None:
    """The five parts, one after the other."""
    place = str(STORE.relative_to(ROOT))
    shutil.rmtree(STORE, ignore_errors=True)
    STORE.parent.mkdir(parents=True, exist_ok=True)

    headline(
        1,
        f"A stream in {place}: {total:,} messages of {PAYLOAD_BYTES} bytes, every batch of {BATCH:,} synced",
    )
    started = time.monotonic()
    acknowledged = run_writer(1, total, kill_at=total // 2)
    seconds = time.monotonic() - started
    out.print(f"kill -9 after {seconds:.1f} s: {acknowledged:,} messages were acknowledged as on disk")

    headline(2, "Opened again")
    started = time.monotonic()
    with headrace.open(str(STORE)) as volume:
        volume.open(STREAM)
    opened = time.monotonic() - started
    survivors = check_survivors(acknowledged)
    seconds = time.monotonic() - started
    out.print(
        f"opened in {opened:.2f} s, every hash checked; {survivors:,} messages are there, compared byte for byte in "
        f"{seconds:.1f} s:\nall {acknowledged:,} acknowledged ones, and {survivors - acknowledged:,} more that were "
        "on their way"
    )
    started = time.monotonic()
    if survivors < total:
        run_writer(survivors + 1, total, kill_at=None)
    seconds = time.monotonic() - started
    left = total - survivors
    out.print(
        f"the other {left:,} appended in {seconds:.1f} s ({rate(left, seconds)}), each batch durable before the next"
    )
    if (there := check_survivors(total)) != total:
        raise SystemExit(f"demo: {there:,} messages at the end, expected {total:,}")

    headline(3, "From the command line")
    command("inspect", place)
    command("verify", place)
    command("cat", place, "--stream", STREAM, "--seq", f"{acknowledged - 1}..{acknowledged + 2}")
    command("cat", place, "--subject", "orders.*.paid", "--limit", "1", "--json")

    headline(4, "From Spark")
    if spark:
        count_with_spark(total)
    else:
        out.print("left out, as asked")
    out.print(f"\nThe store stays in {place}; go on with .venv/bin/headrace --help")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write, kill, reopen, look.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--write", nargs=2, type=int, metavar=("FIRST", "LAST"), help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        return write(*options.write)
    if options.count:
        return count()
    try:
        show(max(options.messages, 4 * BATCH), spark=not options.no_spark)
    except HeadraceError as error:
        raise SystemExit(f"demo: {error}") from None
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
