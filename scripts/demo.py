"""The demonstration behind `make demo`: a server is killed in the middle, and nothing acknowledged is lost.

    1  `headrace serve` on an empty directory; a real client (nats-py) publishes and counts acknowledgements
    2  half way the server is killed with kill -9 and started again; every message is compared with what was sent, the
       client publishes the rest
    3  a consumer takes messages and confirms each with a double ack; after another kill -9 none of them comes again
    4  the command line inspects, verifies and prints the store of the running server; Spark counts it

Everything is in build/demo, made anew each time. Figures go to stdout, the progress bar to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nats
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import headrace
from headrace.errors import HeadraceError
from headrace.testing import TestServer

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "build" / "demo"
LAKE = ROOT / "build" / "demo-lake"
ROWS_SHOWN = 12
STREAM = "ORDERS"
SUBJECTS = ("orders.eu.new", "orders.us.new", "orders.eu.paid", "orders.us.paid")
BATCH = 1000
PAYLOAD_BYTES = 128
WINDOW = 2000
out = Console(highlight=False, soft_wrap=True)


def payload(seq: int) -> bytes:
    """What message `seq` must contain."""
    return f"order {seq} ".encode().ljust(PAYLOAD_BYTES, b".")


def subject(seq: int) -> str:
    """Where message `seq` must be."""
    return SUBJECTS[seq % len(SUBJECTS)]


async def publish(server: TestServer, first: int, last: int, kill_at: int | None) -> int:
    """Publish [first, last] with up to `WINDOW` unacknowledged; returns the highest acknowledged sequence.

    Acknowledgements come in order, so everything at or below it was acknowledged.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    client = await nats.connect(server.url, allow_reconnect=False, error_cb=_quiet)
    acknowledged = first - 1
    inbox = client.new_inbox()
    done = asyncio.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("publishing", total=last, completed=acknowledged)

        async def on_ack(message: Any) -> None:
            nonlocal acknowledged
            answer = json.loads(message.data)
            if "error" in answer:
                raise SystemExit(f"demo: refused: {answer['error']}")
            acknowledged = max(acknowledged, answer["seq"])
            if acknowledged % BATCH == 0:
                bar.update(task, completed=acknowledged)
            if acknowledged >= (last if kill_at is None else kill_at):
                done.set()

        await client.subscribe(inbox, cb=on_ack)

        async def send() -> None:
            for seq in range(first, last + 1):
                while seq - acknowledged > WINDOW:
                    await asyncio.sleep(0.001)
                await client.publish(subject(seq), payload(seq), reply=inbox)

        # A task of its own: the client waits without end when it has much to send and its server is dead.
        sending = asyncio.create_task(send())
        try:
            await asyncio.wait_for(done.wait(), 120)
            # Not in `on_ack`: the client cancels it when the connection breaks.
            if kill_at is not None:
                await asyncio.to_thread(server.kill)
        finally:
            sending.cancel()
            with contextlib.suppress(Exception):  # perhaps nobody is there to say goodbye to
                await asyncio.wait_for(client.close(), 5)
    return acknowledged


async def _quiet(_error: Exception) -> None:
    """The client reports a lost connection by itself."""


async def make_stream(server: TestServer) -> None:
    """The stream, through the API like any client."""
    client = await nats.connect(server.url)
    await client.jetstream().add_stream(name=STREAM, subjects=["orders.>"])
    await client.close()


async def consume(server: TestServer, count: int) -> int:
    """Take messages and confirm each one; returns the last confirmed sequence."""
    client = await nats.connect(server.url)
    puller = await client.jetstream().pull_subscribe("orders.>", "dispatch", stream=STREAM)
    last = 0
    while last < count:
        messages = await puller.fetch(min(100, count - last), timeout=5)
        await asyncio.gather(*(message.ack_sync(timeout=10) for message in messages))
        last = max(message.metadata.sequence.stream for message in messages)
    await client.close()
    return last


async def next_of_consumer(server: TestServer) -> int:
    """The sequence that the consumer is given next."""
    client = await nats.connect(server.url)
    puller = await client.jetstream().pull_subscribe_bind("dispatch", STREAM)
    message = (await puller.fetch(1, timeout=10))[0]
    await client.close()
    return int(message.metadata.sequence.stream)


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


def pipeline(server: TestServer, expected: int) -> None:
    """Archive and windows in Spark. What is missing for it is said in one line, and the demo goes on."""
    if subprocess.run([ROOT / "scripts" / "need.sh", "java"], check=False).returncode != 0:
        return
    if importlib.util.find_spec("pyspark") is None:
        print(
            "headrace: pyspark is missing: Spark is read through it. Install it: make demo, with Java 17 there"
        )
        return
    arguments = ("--url", server.url, "--store", str(STORE), "--stream", STREAM, "--out", str(LAKE))
    with out.status("Spark archives the orders and counts them by the second"):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "demo_pipeline.py", *arguments],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if line[:1].strip()), "no reason given"
        )
        raise SystemExit(f"demo: Spark could not do it: {reason}")
    answer = json.loads(done.stdout.splitlines()[-1])
    found = sum(count for _, count in answer["subjects"])
    out.print(
        f"archived to Parquet: {answer['archived']:,} messages in {answer['archive']:.1f} s (Spark took {answer['start']:.1f} s to start); "
        f"read back from there: {found:,}"
    )
    for name, count in answer["subjects"]:
        out.print(f"  {name:<16}{count:>10,}")
    out.print(
        f"windows of a second over the stream, written back to it as {answer['written']:,} totals in {answer['windows']:.1f} s:"
    )
    show_seconds(answer["seconds"])
    out.print(f"the same as a plot: {Path(answer['plot']).relative_to(ROOT)}")
    counted = sum(sum(counts.values()) for _, counts in answer["seconds"])
    if (found, counted) != (expected, expected):
        raise SystemExit(f"demo: Spark found {found:,} and {counted:,} messages, expected {expected:,}")


def show_seconds(seconds: list[tuple[int, dict[str, int]]]) -> None:
    """A line for each second, a bar for its messages; of many the first ones."""
    most = max(sum(counts.values()) for _, counts in seconds)
    for second, counts in seconds[:ROWS_SHOWN]:
        total = sum(counts.values())
        clock = time.strftime("%H:%M:%S", time.gmtime(second))
        out.print(f"  {clock} {total:>10,}  {'█' * max(round(total / most * 40), 1)}")
    if len(seconds) > ROWS_SHOWN:
        out.print(f"  … and {len(seconds) - ROWS_SHOWN} more")


def show(total: int, spark: bool) -> None:
    """The four parts, one after the other."""
    place = str(STORE.relative_to(ROOT))
    shutil.rmtree(STORE, ignore_errors=True)
    STORE.parent.mkdir(parents=True, exist_ok=True)
    with TestServer(STORE) as server:
        headline(
            1,
            f"headrace serve, streams in {place}; a client publishes {total:,} messages of {PAYLOAD_BYTES} bytes",
        )
        asyncio.run(make_stream(server))
        started = time.monotonic()
        acknowledged = asyncio.run(publish(server, 1, total, kill_at=total // 2))
        seconds = time.monotonic() - started
        out.print(
            f"kill -9 after {seconds:.1f} s: {acknowledged:,} messages were acknowledged as on disk "
            f"({rate(acknowledged, seconds)}; the Python client is the limit)"
        )

        headline(2, "Started again")
        started = time.monotonic()
        survivors = check_survivors(acknowledged)
        compared = time.monotonic() - started
        started = time.monotonic()
        server.start()
        out.print(
            f"up again in {time.monotonic() - started:.1f} s; {survivors:,} messages are there, compared byte for byte in "
            f"{compared:.1f} s:\nall {acknowledged:,} acknowledged ones, and {survivors - acknowledged:,} more that were "
            "on their way"
        )
        left, started = total - survivors, time.monotonic()
        if left > 0:
            asyncio.run(publish(server, survivors + 1, total, kill_at=None))
        out.print(f"the other {left:,} published in {time.monotonic() - started:.1f} s")

        headline(3, "A consumer confirms, and the server is killed once more")
        confirmed = asyncio.run(consume(server, total // 10))
        server.kill()
        server.start()
        following = asyncio.run(next_of_consumer(server))
        if following != confirmed + 1:
            raise SystemExit(
                f"demo: {confirmed:,} messages were confirmed, but then came number {following:,}"
            )
        out.print(
            f"{confirmed:,} messages confirmed by double ack; after kill -9 the next one is number {following:,}"
        )

        headline(4, "From the command line and from Spark, beside the running server")
        command("inspect", place)
        command("verify", place)
        command("cat", place, "--stream", STREAM, "--seq", f"{acknowledged - 1}..{acknowledged + 2}")
        if spark:
            pipeline(server, total)
        else:
            out.print("Spark is left out, as asked")
    if (there := check_survivors(total)) != total:
        raise SystemExit(f"demo: {there:,} messages at the end, expected {total:,}")
    out.print(f"\nThe store stays in {place}; serve it again with .venv/bin/headrace serve -sd {place}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve, publish, kill, look.")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    try:
        show(max(options.messages, 4 * BATCH), spark=not options.no_spark)
    except HeadraceError as error:
        raise SystemExit(f"demo: {error}") from None
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
