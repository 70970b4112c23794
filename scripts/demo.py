"""The demonstration behind `make demo`: a writer is killed in the middle, and nothing acknowledged is lost.

    1  a child process appends messages in batches and reports each batch once it is on disk
    2  half way it is killed with kill -9
    3  the store is opened again, every acknowledged message is compared with what was sent, the rest is appended
    4  the command line inspects, verifies and prints; Spark counts

Everything is in build/demo, made anew each time. Figures go to stdout, the progress bar to stderr.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import headrace

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "build" / "demo"
STREAM = "ORDERS"
BATCH = 1000
PAYLOAD_BYTES = 128
out = Console(highlight=False, soft_wrap=True)


def payload(seq: int) -> bytes:
    """What message `seq` must contain."""
    return f"order {seq} ".encode().ljust(PAYLOAD_BYTES, b".")


def write(first: int, last: int) -> int:
    """Append [first, last] and print the last sequence of each batch when it is durable."""
    with headrace.open(str(STORE), mode="rw", create=True) as volume:
        orders = volume.create(STREAM, subjects=["orders.>"])
        for start in range(first, last + 1, BATCH):
            stop = min(start + BATCH, last + 1)
            ticket = orders.append(headrace.batch("orders.new", [payload(seq) for seq in range(start, stop)]))
            volume.commit([ticket])
            print(ticket.next - 1, flush=True)
    return 0


def run_writer(first: int, last: int, kill_at: int | None) -> int:
    """Run `write` in a child process; returns the highest sequence it acknowledged."""
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
            wrong += record.seq != expected or record.data != payload(expected)
    if wrong or expected < acknowledged:
        raise SystemExit(f"demo: LOST: {acknowledged:,} acknowledged, {expected:,} found, {wrong:,} wrong")
    return expected


def headline(number: int, text: str) -> None:
    out.print(f"\n[bold]{number}. {text}[/bold]")


def command(*arguments: str) -> None:
    """Run `headrace …` as a user would and show it."""
    out.print(f"[dim]$ headrace {' '.join(arguments)}[/dim]")
    program = Path(sys.executable).with_name("headrace")
    done = subprocess.run([program, *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"demo: headrace {arguments[0]} ended with exit code {done.returncode}")


def count_with_spark(expected: int) -> None:
    """Count in Spark. Without Java, need.sh says in one line what to install, and that is all."""
    if subprocess.run([ROOT / "scripts" / "need.sh", "java"], check=False).returncode != 0:
        return
    from pyspark.sql import SparkSession

    started = time.monotonic()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    ready = time.monotonic()
    found = spark.read.format("headrace").load(str(STORE)).count()
    done = time.monotonic()
    spark.stop()
    out.print(
        f"Spark counts {found:,} messages in {done - ready:.1f} s (and took {ready - started:.1f} s to start)"
    )
    if found != expected:
        raise SystemExit(f"demo: Spark found {found:,}, expected {expected:,}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write, kill, reopen, look.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--write", nargs=2, type=int, metavar=("FIRST", "LAST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        return write(*options.write)

    shutil.rmtree(STORE, ignore_errors=True)
    STORE.parent.mkdir(parents=True, exist_ok=True)
    total = options.messages
    place = str(STORE.relative_to(ROOT))

    headline(
        1, f"A stream in {place}, {total:,} messages of {PAYLOAD_BYTES} bytes, each batch of {BATCH:,} synced"
    )
    started = time.monotonic()
    acknowledged = run_writer(1, total, kill_at=total // 2)
    out.print(
        f"kill -9 after {time.monotonic() - started:.1f} s; {acknowledged:,} messages were acknowledged as on disk"
    )

    headline(2, "Opened again")
    started = time.monotonic()
    survivors = check_survivors(acknowledged)
    out.print(
        f"{survivors:,} messages are there, byte for byte ({time.monotonic() - started:.1f} s to open and compare): "
        f"all {acknowledged:,} acknowledged ones and {survivors - acknowledged:,} that were on their way"
    )
    started = time.monotonic()
    if survivors < total:
        run_writer(survivors + 1, total, kill_at=None)
    seconds = time.monotonic() - started
    out.print(
        f"the other {total - survivors:,} appended in {seconds:.1f} s, every batch durable before the next"
    )

    headline(3, "From the command line")
    command("inspect", place)
    command("verify", place)
    command("cat", place, "--stream", STREAM, "--seq", f"{acknowledged - 1}..{acknowledged + 2}")

    headline(4, "From Spark")
    if options.no_spark:
        out.print("left out, as asked")
    else:
        count_with_spark(total)
    out.print(f"\nThe store stays in {place}; go on with .venv/bin/headrace --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
