"""The store alone: append in both modes, sequential and random reading, Arrow."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import headrace
from bench.harness import Figure, Sample, alternate, scratch, spread, timed

SIZE = 128
BATCH = 500
SUBJECT = "orders.new"


def payloads(count: int = BATCH) -> list[bytes]:
    return [os.urandom(SIZE) for _ in range(count)]


def record_bytes(count: int) -> bytes:
    """As many bytes as the records of one batch have."""
    return os.urandom((30 + len(SUBJECT) + SIZE) * count)


def append_interval(messages: int, runs: int) -> Figure:
    """Mode `interval`: written to the system, not synced."""
    data = payloads()
    rounds = messages // BATCH

    def ours() -> Sample:
        with (
            scratch() as place,
            headrace.open(str(place), "rw", create=True, durability="interval") as volume,
        ):
            store = volume.create("S", subjects=[SUBJECT])
            batch = headrace.batch(SUBJECT, data)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    store.append(batch)
        return sample

    def ours_with_building() -> Sample:
        with (
            scratch() as place,
            headrace.open(str(place), "rw", create=True, durability="interval") as volume,
        ):
            store = volume.create("S", subjects=[SUBJECT])
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    store.append(headrace.batch(SUBJECT, data))
        return sample

    def plain() -> Sample:
        buffer = record_bytes(BATCH)
        with scratch() as place:
            target = os.open(place / "plain", os.O_CREAT | os.O_WRONLY)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    os.write(target, buffer)
            os.close(target)
        return sample

    contestants = {
        "headrace": ours,
        "headrace, batch built from Python bytes": ours_with_building,
        "write(2)": plain,
    }
    figure = Figure(
        "append 128 B, batches of 500, mode interval",
        "<= 0.4 us CPU per message, and >= 1.5 million/s or 60 % of write(2)",
        alternate(runs, contestants),
    )
    cpu, rate = figure.median("headrace", lambda s: s.cpu_us), figure.median("headrace", lambda s: s.rate)
    ratio = figure.ratio("headrace", "write(2)", lambda s: s.rate)
    built = figure.median("headrace, batch built from Python bytes", lambda s: s.cpu_us)
    figure.met = cpu <= 0.4 and (rate >= 1.5e6 or ratio >= 0.6)
    figure.verdict = f"{cpu:.3f} us CPU ({built:.3f} with building the batch), {rate / 1e6:.2f} million/s, {ratio:.2f} x write(2)"
    return figure


def append_sync(messages: int, runs: int) -> Figure:
    """Mode `sync`: every batch is on disk before the next."""
    data = payloads()
    rounds = messages // BATCH

    def ours() -> Sample:
        with scratch() as place, headrace.open(str(place), "rw", create=True) as volume:
            store = volume.create("S", subjects=[SUBJECT])
            batch = headrace.batch(SUBJECT, data)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    volume.commit([store.append(batch)])
        return sample

    def bare() -> Sample:
        buffer = record_bytes(BATCH)
        with scratch() as place:
            target = os.open(place / "plain", os.O_CREAT | os.O_WRONLY)
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    os.write(target, buffer)
                    os.fdatasync(target)
            os.close(target)
        return sample

    figure = Figure(
        "append in mode sync, batches of 500",
        "60 % of a bare append + fdatasync loop",
        alternate(runs, {"headrace": ours, "write + fdatasync": bare}),
    )
    ratio = figure.ratio("headrace", "write + fdatasync", lambda s: s.rate)
    figure.met = ratio >= 0.6
    rates = spread([sample.rate for sample in figure.samples["headrace"]])
    figure.verdict = f"{ratio:.2f} x the bare loop, {rates} messages/s"
    return figure


def filled(place: Path, messages: int) -> None:
    """A store of that many messages, cleanly stopped."""
    with headrace.open(str(place), "rw", create=True, durability="interval") as volume:
        store = volume.create("S", subjects=[SUBJECT])
        batch = headrace.batch(SUBJECT, payloads())
        for _ in range(messages // BATCH):
            store.append(batch)


def sequential_read(messages: int, runs: int) -> Figure:
    """Whole blocks from the page cache, every hash checked."""
    with scratch() as place:
        filled(place, messages)

        def ours() -> Sample:
            with headrace.open(str(place)) as volume:
                store = volume.open("S")
                with timed(messages) as sample:
                    count = sum(len(batch) for batch in store.batches())
                assert count == messages
            return sample

        figure = Figure(
            "sequential read of whole blocks, hashes checked",
            "3 million/s",
            alternate(runs, {"headrace": ours}),
        )
    rate = figure.median("headrace", lambda s: s.rate)
    figure.met = rate >= 3e6
    figure.verdict = f"{rate / 1e6:.2f} million/s, {figure.median('headrace', lambda s: s.cpu_us):.3f} us CPU"
    return figure


def random_load(messages: int, runs: int) -> Figure:
    """By sequence, everything in the block cache."""
    count = min(messages, 100_000)
    with scratch() as place:
        filled(place, count)
        with headrace.open(str(place), cache_bytes=256 << 20) as volume:
            store = volume.open("S")
            assert isinstance(store, headrace.StreamStore)
            wanted = [random.randint(1, count) for _ in range(200_000)]
            store.load_msgs(range(1, count + 1))

            def batches() -> Sample:
                with timed(len(wanted)) as sample:
                    for start in range(0, len(wanted), 1000):
                        store.load_msgs(wanted[start : start + 1000])
                return sample

            def singles() -> Sample:
                load = store.load_msg
                with timed(len(wanted)) as sample:
                    for seq in wanted:
                        load(seq)
                return sample

            runs_of = alternate(runs, {"in batches of 1000": batches, "one by one": singles})
    figure = Figure(
        "random load by sequence, warm cache", "1 million/s in batches, 200,000/s one by one", runs_of
    )
    many, one = (figure.median(who, lambda s: s.rate) for who in ("in batches of 1000", "one by one"))
    figure.met = many >= 1e6 and one >= 2e5
    figure.verdict = f"{many / 1e6:.2f} million/s in batches, {one / 1e3:.0f} thousand/s one by one"
    return figure


def arrow(messages: int, runs: int) -> Figure:
    """`to_arrow` of whole blocks, all columns."""
    with scratch() as place:
        filled(place, messages)
        with headrace.open(str(place)) as volume:
            store = volume.open("S")
            block = store.read(1, 1 << 30, 1 << 30)

            def ours() -> Sample:
                from headrace.arrow import to_record_batch

                rounds = max(1, messages // len(block))
                with timed(rounds * len(block)) as sample:
                    for _ in range(rounds):
                        to_record_batch(block, "S")
                return sample

            figure = Figure(
                "to_arrow() of a block, all columns",
                "2 million messages/s",
                alternate(runs, {"headrace": ours}),
            )
    rate = figure.median("headrace", lambda s: s.rate)
    figure.met = rate >= 2e6
    figure.verdict = f"{rate / 1e6:.2f} million/s"
    return figure


ALL: dict[str, Callable[[int, int], Figure]] = {
    "append-interval": append_interval,
    "append-sync": append_sync,
    "read": sequential_read,
    "load": random_load,
    "arrow": arrow,
}
