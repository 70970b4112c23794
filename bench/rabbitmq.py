"""RabbitMQ layout: append, scan to Arrow, and many queues of which nearly all are idle.

python -m bench rabbit-append rabbit-scan rabbit-reopen rabbit-idle
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import headrace
from bench.harness import Figure, Sample, alternate, rss_bytes, scratch, timed
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume

SIZE = 128
BATCH = 500
QUEUES = (1, 100, 10_000)


def append_interval(messages: int, runs: int) -> Figure:
    """Journal, map and flushes into segments; written to the system, synced every 200 ms."""
    data = [os.urandom(SIZE) for _ in range(BATCH)]
    # The runs' files are removed at the end: for a minute ext4 searches past every inode that was just freed.
    with scratch() as place:
        numbers = count()

        def ours() -> Sample:
            path = f"{place}/{next(numbers)}"
            with RabbitVolume(path, mode="rw", create=True, durability="interval") as volume:
                log = volume.create("q1")
                batch = headrace.batch("q1", data)
                with timed(messages // BATCH * BATCH) as sample:
                    for _ in range(messages // BATCH):
                        log.append(batch)
            return sample

        samples = alternate(runs, {"headrace": ours})
    figure = Figure(
        "RabbitMQ layout: append 128 B, batches of 500, mode interval", "<= 0.8 us CPU per message", samples
    )
    cpu = figure.median("headrace", lambda s: s.cpu_us)
    figure.met = cpu <= 0.8
    figure.verdict = f"{cpu:.2f} us CPU, {figure.median('headrace', lambda s: s.rate) / 1e6:.2f} million/s"
    return figure


def scan(messages: int, runs: int) -> Figure:
    """An opened queue's segments to Arrow, all columns; every record compared with its message's own id and length."""
    with scratch() as place:
        with RabbitVolume(str(place), mode="rw", create=True, durability="interval") as volume:
            log = volume.create("q1")
            batch = headrace.batch("q1", [os.urandom(SIZE) for _ in range(BATCH)])
            for _ in range(messages // BATCH):
                log.append(batch)

        def ours(opened: bool) -> Callable[[], Sample]:
            def run() -> Sample:
                with RabbitVolume(str(place)) as volume:
                    log = volume.open("q1")
                    if opened:
                        log.state()
                    with timed(messages) as sample:
                        rows = sum(part.num_rows for part in log.scan())
                    assert rows == messages
                return sample

            return run

        runs_of = alternate(runs, {"scan": ours(True), "open and scan": ours(False)})
    figure = Figure("RabbitMQ layout: scan to Arrow, 128 B, all columns", ">= 1.5 million/s", runs_of)
    rate = figure.median("scan", lambda s: s.rate)
    figure.met = rate >= 1.5e6
    whole = figure.median("open and scan", lambda s: s.rate)
    figure.verdict = f"{rate / 1e6:.2f} million/s, {whole / 1e6:.2f} with building the map"
    return figure


def reopen(messages: int, runs: int) -> Figure:
    """Opening for writing after a clean stop, with a tenth of the messages, with all, and all without the checkpoint."""
    samples: dict[str, list[Sample]] = {}
    for total in (messages // 10, messages):
        with scratch() as place:
            with RabbitVolume(str(place), mode="rw", create=True, durability="interval") as volume:
                for n in range(10):
                    log = volume.create(f"q{n}")
                    batch = headrace.batch("q", [os.urandom(SIZE) for _ in range(BATCH)])
                    for _ in range(max(total // 10 // BATCH, 1)):
                        log.append(batch)
                path = next(iter(volume.vhosts.values())).path

            def ours(known: bool, place: str = str(place), path: str = path) -> Callable[[], Sample]:
                def run() -> Sample:
                    if not known:
                        Path(path, files.CLEAN).unlink()
                    before = rss_bytes()
                    with timed(1) as sample:
                        volume = RabbitVolume(place, mode="rw")
                        assert volume.open("q0").state().messages > 0
                    sample = Sample(1, sample.wall_s, sample.cpu_s, {"rss": rss_bytes() - before})
                    volume.close()
                    return sample

                return run

            kinds = {f"{total}": ours(True)}
            if total == messages:
                kinds[f"{total}, everything read"] = ours(False)
            samples |= alternate(runs, kinds)
    figure = Figure(
        "RabbitMQ layout: opening after a clean stop, 10 queues", "does not grow with the messages", samples
    )
    few, many, read = (figure.median(name, lambda s: s.wall_s) for name in samples)
    figure.met = many < max(5 * few, 0.05)
    figure.verdict = (
        f"{few * 1e3:.1f} ms with {messages // 10:,} messages, {many * 1e3:.1f} ms with {messages:,}; "
        f"{read * 1e3:.0f} ms when everything is read"
    )
    return figure


def idle(messages: int, runs: int) -> Figure:
    """1, 100, 10,000 queues; one is used, the others had two messages each and sleep."""
    options = RabbitOptions(queue_hibernate_after=300)
    parts: list[str] = []
    samples: dict[str, list[Sample]] = {}
    met = True
    for queues in QUEUES if messages > 20_000 else (1, 100):
        with (
            scratch() as place,
            RabbitVolume(
                str(place), mode="rw", create=True, durability="interval", options=options
            ) as volume,
        ):
            before = rss_bytes()
            logs = [volume.create(f"q{n}") for n in range(queues)]
            for log in logs:
                log.append(headrace.batch("q", [b"x" * SIZE] * 2))
            awake_bytes = rss_bytes() - before
            while volume.awake:
                time.sleep(0.05)
            asleep_bytes = rss_bytes() - before
            with timed(1) as quiet:
                time.sleep(2)
            batch = headrace.batch("q0", [b"y" * SIZE] * BATCH)
            with timed(100 * BATCH) as busy:
                for _ in range(100):
                    logs[0].append(batch)
            journals = [log.disk.entry(log.journal_path) for log in logs[1:]]
            flushed = sum(entry is not None and entry.size == 0 for entry in journals)
            met &= flushed == queues - 1 and quiet.cpu_s < 0.02
            sample = Sample(
                1, quiet.wall_s, quiet.cpu_s, {"awake_bytes": awake_bytes, "asleep_bytes": asleep_bytes}
            )
            samples[f"{queues} queues"] = [sample]
            parts.append(
                f"{queues}: {quiet.cpu_s * 1e3 / quiet.wall_s:.1f} ms CPU per idle second, "
                f"{awake_bytes / queues / 1024:.1f} KiB awake, {asleep_bytes / queues / 1024:.1f} KiB asleep per queue, "
                f"{busy.cpu_us:.2f} us CPU per message into one"
            )
    figure = Figure(
        "RabbitMQ layout: mostly idle queues", "idle ones flushed, memory given back, no CPU", samples
    )
    figure.met, figure.verdict = met, "; ".join(parts)
    return figure


ALL: dict[str, Callable[[int, int], Figure]] = {
    "rabbit-append": append_interval,
    "rabbit-scan": scan,
    "rabbit-reopen": reopen,
    "rabbit-idle": idle,
}
