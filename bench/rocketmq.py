"""RocketMQ's layout, and the source document's claim: many topics in one shared log against one log per partition."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import Figure, Sample, alternate, scratch, spread, timed
from headrace._core import Batch
from headrace.layouts.base import Volume
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.rocketmq.volume import RocketVolume

SIZE, BATCH = 128, 500
TOPICS = (1, 10, 100, 1000, 10_000)
PER_TURN = 10
SYNCED_SHARE = 20
MESSAGES_PER_TOPIC = 100


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


def opened(kind: str, place: Path, synced: bool) -> Volume:
    made: dict[str, Callable[..., Volume]] = {"kafka": KafkaVolume, "rocketmq": RocketVolume}
    settings: dict[str, Any] = {"mode": "rw", "create": True, "maintenance": False}
    return made[kind](str(place), durability="sync" if synced else "interval", **settings)


def topics(messages: int, runs: int) -> Figure:
    """Appends of 10 messages to each topic in turn; a commit covers one turn over up to 100 topics. Then one queue is read back."""
    samples: dict[str, list[Sample]] = {}
    batch = messages_of(PER_TURN)
    # Making ten thousand logs takes minutes: only for a run that is worth it.
    counts = [count for count in TOPICS if count * MESSAGES_PER_TOPIC <= messages]
    for count in counts:
        for synced in (False, True):
            total = max(messages // (SYNCED_SHARE if synced else 1), count * PER_TURN)
            for kind in ("kafka", "rocketmq"):
                name = f"{kind}, {count} topics, {'synced' if synced else 'unsynced'}"
                with scratch() as place, opened(kind, place, synced) as volume:
                    logs = [volume.create(f"t{n}-0") for n in range(count)]
                    with timed(total) as sample:
                        written = 0
                        while written < total:
                            for at in range(0, count, 100):
                                tickets = [log.append(batch) for log in logs[at : at + 100]]
                                volume.commit(tickets)
                                written += len(tickets) * PER_TURN
                    sample.messages = written
                    sample.extra["read_hot_s"] = read_back(logs[0])
                    drop_caches(place)
                    sample.extra["read_cold_s"] = read_back(logs[0])
                    sample.extra["read_messages"] = written // count
                    samples.setdefault(name, []).append(sample)
                    logs.clear()
                gc.collect()
    figure = Figure(
        "Many topics: one log each (Kafka) against one shared log (RocketMQ)", "what came out", samples
    )
    figure.met = True
    lines = list[str]()
    for count in counts:
        for word in ("unsynced", "synced"):
            pair = [samples[f"{kind}, {count} topics, {word}"][0] for kind in ("kafka", "rocketmq")]
            rates = " : ".join(f"{sample.rate:,.0f}/s" for sample in pair)
            cold = " : ".join(
                f"{s.extra['read_messages'] / max(s.extra['read_cold_s'], 1e-9):,.0f}/s" for s in pair
            )
            lines.append(f"{count} topics {word} {rates}, read back cold {cold}")
    figure.verdict = "; ".join(lines)
    return figure


def read_back(log: Any) -> float:
    began = time.perf_counter()
    position = 0
    while len(found := log.read(position, 65_536)):
        position = found.last_position + 1
    return time.perf_counter() - began


def drop_caches(place: Path) -> None:
    """Ask the system to forget the pages of every file: they are synced first, or it would keep them."""
    for path in place.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


ALL = {"rocketmq-append": append, "rocketmq-scan": scan, "topics": topics}
