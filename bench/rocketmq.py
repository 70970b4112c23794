"""RocketMQ's layout: append and scan. Many topics: topics.py."""

from __future__ import annotations

import os

from bench.harness import Figure, Sample, alternate, scratch, spread, timed
from headrace._core import Batch
from headrace.layouts.rocketmq.volume import RocketVolume

SIZE, BATCH = 128, 500


def messages_of(count: int = BATCH) -> Batch:
    return Batch.build("bench", [os.urandom(SIZE) for _ in range(count)], header_codec="kafka")


def append(messages: int, runs: int) -> Figure:
    """Mode `interval`, batches of 500."""
    rounds = messages // BATCH

    def ours() -> Sample:
        with (
            scratch() as place,
            RocketVolume(str(place), mode="rw", create=True, durability="interval") as volume,
        ):
            log, batch = volume.create("bench-0"), messages_of()
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    log.append(batch)
        return sample

    figure = Figure(
        "RocketMQ: append 128 B, batches of 500, mode interval",
        "<= 0.8 us CPU per message",
        alternate(runs, {"headrace": ours}),
    )
    cpu = figure.median("headrace", lambda s: s.cpu_us)
    figure.met = cpu <= 0.8
    figure.verdict = (
        f"{cpu:.3f} us CPU, {spread([s.rate / 1e6 for s in figure.samples['headrace']])} million/s"
    )
    return figure


def scan(messages: int, runs: int) -> Figure:
    """One queue to Arrow, every checksum."""
    with scratch() as place:
        with RocketVolume(str(place), mode="rw", create=True, durability="interval") as volume:
            log, batch = volume.create("bench-0"), messages_of()
            for _ in range(messages // BATCH):
                log.append(batch)

        def whole() -> Sample:
            with RocketVolume(str(place)) as volume:
                log = volume.open("bench-0")
                with timed(messages) as sample:
                    assert sum(batch.num_rows for batch in log.scan()) == messages // BATCH * BATCH
            return sample

        runs_of = alternate(runs, {"all columns": whole})
    figure = Figure("RocketMQ: scan a queue to Arrow with checks, 128 B", ">= 1.5 million/s", runs_of)
    rate = figure.median("all columns", lambda s: s.rate)
    figure.met = rate >= 1.5e6
    figure.verdict = f"{rate / 1e6:.2f} million/s"
    return figure


ALL = {"rocketmq-append": append, "rocketmq-scan": scan}
