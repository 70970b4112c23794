"""The NATS Streaming layout: scan to Arrow with checks, append in both modes, 10,000 channels under a limit of files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bench.harness import Figure, Sample, alternate, scratch, timed
from headrace._core import Batch
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.volume import StreamingVolume

SIZE, BATCH, CHANNEL = 128, 500, "orders.new"


def opened(place: Path, durability: str = "interval", **options: Any) -> StreamingVolume:
    """A new store."""
    made = StreamingOptions.of({"max_channels": 0, **options})
    return StreamingVolume(
        str(place / "ds"), mode="rw", create=True, durability=durability, options=made  # type: ignore[arg-type]
    )  # fmt: skip


def filled(place: Path, messages: int) -> None:
    """A store of one channel."""
    batch = Batch.build(CHANNEL, [os.urandom(SIZE) for _ in range(BATCH)])
    with opened(place) as volume:
        log = volume.create(CHANNEL)
        for _ in range(messages // BATCH):
            log.append(batch)


def scan(messages: int, runs: int) -> Figure:
    """Every message with its CRC and its index entry checked, as Arrow columns."""
    with scratch() as place:
        filled(place, messages)

        def columns(names: list[str] | None) -> Sample:
            with StreamingVolume(str(place / "ds")) as volume, timed(messages) as sample:
                rows = sum(batch.num_rows for batch in volume.open(CHANNEL).scan(names))
            assert rows == messages
            return sample

        samples = alternate(
            runs,
            {
                "all columns": lambda: columns(None),
                "seq, time, data": lambda: columns(["seq", "time", "data"]),
            },
        )
    figure = Figure("NATS Streaming: scan 128 B messages to Arrow, checked", ">= 2 million/s", samples)
    rate = figure.median("all columns", lambda s: s.rate)
    few = figure.median("seq, time, data", lambda s: s.rate)
    figure.met = rate >= 2e6
    figure.verdict = f"{rate / 1e6:.2f} million/s with all columns, {few / 1e6:.2f} with three"
    return figure


def append(messages: int, runs: int) -> Figure:
    """Batches of 500, written and not synced."""
    batch = Batch.build(CHANNEL, [os.urandom(SIZE) for _ in range(BATCH)])
    rounds = messages // BATCH

    def ours() -> Sample:
        with scratch() as place, opened(place) as volume:
            log = volume.create(CHANNEL)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    volume.commit([log.append(batch)])
        return sample

    def plain() -> Sample:
        buffer = os.urandom((SIZE + 26 + 40) * BATCH)
        with scratch() as place:
            target = os.open(place / "plain", os.O_CREAT | os.O_WRONLY)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    os.write(target, buffer)
            os.close(target)
        return sample

    figure = Figure(
        "NATS Streaming: append 128 B in batches of 500, mode interval",
        "<= 0.8 us CPU per message",
        alternate(runs, {"headrace": ours, "write(2)": plain}),
    )
    cpu, bare = (figure.median(who, lambda s: s.cpu_us) for who in ("headrace", "write(2)"))
    figure.met = cpu <= 0.8
    figure.verdict = f"{cpu:.3f} us CPU per message (a bare write of as many bytes {bare:.3f})"
    return figure


def synced(messages: int, runs: int) -> Figure:
    """Batches of 500, each on disk (data and index) before the next."""
    batch = Batch.build(CHANNEL, [os.urandom(SIZE) for _ in range(BATCH)])
    rounds = messages // BATCH

    def ours() -> Sample:
        with scratch() as place, opened(place, "sync") as volume:
            log = volume.create(CHANNEL)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    volume.commit([log.append(batch)])
        return sample

    figure = Figure(
        "NATS Streaming: append, mode sync", "no figure required", alternate(runs, {"headrace": ours})
    )
    figure.met = True
    figure.verdict = f"{figure.median('headrace', lambda s: s.rate) / 1e3:.0f} thousand/s"
    return figure


def channels(messages: int, runs: int) -> Figure:
    """10,000 channels in turn, one message each: with all files open, and with a limit that closes and reopens them."""
    count = min(messages, 10_000)

    def under(limit: int, count: int = count) -> Sample:
        with scratch() as place, opened(place, fds_limit=limit) as volume:
            logs = [volume.create(f"c{n}") for n in range(count)]
            for log in logs:
                log.append(Batch.build("", [b"first"]))
            before = volume.home.files.opened
            with timed(count) as sample:
                for log in logs:
                    log.append(Batch.build("", [b"second"]))
            sample.extra = {"most open": volume.home.files.most, "opened": volume.home.files.opened - before}
            began = time.monotonic()
        sample.extra["close_s"] = time.monotonic() - began
        return sample

    figure = Figure(
        f"NATS Streaming: one message to each of {count} channels",
        "no figure required: the cost of closing and reopening",
        alternate(
            runs,
            {
                "limit 100": lambda: under(100),
                "limit 1000": lambda: under(1000),
                "2000 of them, all open": lambda: under(0, min(count, 2000)),
            },
        ),
    )
    first = figure.samples["limit 100"][0]
    figure.met = first.extra["most open"] <= 102
    costs = {who: figure.median(who, lambda s: s.wall_s / s.messages * 1e6) for who in figure.samples}
    figure.verdict = (
        f"{', '.join(f'{who}: {cost:.0f} us each' for who, cost in costs.items())}; {first.extra}"
    )
    return figure


ALL = {
    "streaming-scan": scan,
    "streaming-append": append,
    "streaming-sync": synced,
    "streaming-channels": channels,
}
