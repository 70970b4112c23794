"""A claim often made: many topics in one shared log (RocketMQ) against one log per partition (Kafka).

    python -m bench topics --json bench/results/topics.json      the figures
    python -m bench.topics_plot                                  docs/internals/topics.svg from them

Batches of 10 messages of 128 B go round-robin over the topics. Unsynced: nothing is synced while we measure. Synced: a
commit after every 100 batches (or after every round, if there are fewer topics). Then a few queues are read back, each
whole: cold (the pages of all files were dropped), and once more, hot.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Figure, Sample, scratch, timed
from headrace._core import Batch
from headrace.layouts.base import Log
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.layouts.rocketmq.volume import RocketVolume

SIZE, PER_BATCH, PER_COMMIT = 128, 10, 100
TOPICS = (1, 10, 100, 1000, 10_000)
KINDS = {"kafka": KafkaVolume, "rocketmq": RocketVolume}
MODES = ("unsynced", "synced")
LEAST_PER_TOPIC = 100
UNSYNCED_LIMIT_S = 40.0
SYNCED_S = 4.0
SYNCED_LIMIT_S = 25.0
READ_BACK = 5
SYNC_THREADS = 16


@contextmanager
def opened(kind: str, place: Path, mode: str) -> Generator[KafkaVolume | RocketVolume]:
    durability = "sync" if mode == "synced" else "interval"
    volume = KINDS[kind](str(place), mode="rw", create=True, durability=durability, maintenance=False)
    try:
        yield volume
    finally:
        volume.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def files_in(place: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(place))


def made(volume: KafkaVolume | RocketVolume, count: int, sample: Sample) -> list[Log]:
    began = time.perf_counter()
    logs = list[Log](volume.create_many([f"t{n}-0" for n in range(count)]))
    sample.extra["create_s"] = time.perf_counter() - began
    return logs


def unsynced(kind: str, count: int, messages: int, place: Path) -> Sample:
    """Page cache only; the clean stop, which syncs everything, is timed by itself."""
    sample, batch, before = Sample(0, 0.0, 0.0), messages_of(), descriptors()
    with opened(kind, place, "unsynced") as volume:
        logs = made(volume, count, sample)
        with timed(0) as writing:
            end = time.perf_counter() + UNSYNCED_LIMIT_S
            while writing.messages < messages and time.perf_counter() < end:
                for log in logs:
                    log.append(batch)
                writing.messages += count * PER_BATCH
        sample.extra["descriptors"] = descriptors() - before
        logs.clear()
        began = time.perf_counter()
    sample.extra["stop_s"] = time.perf_counter() - began
    sample.extra["files"] = files_in(place)
    sample.messages, sample.wall_s, sample.cpu_s = writing.messages, writing.wall_s, writing.cpu_s
    return sample


def synced(kind: str, count: int, seconds: float, place: Path) -> Sample:
    """At least one round after a first one that is not timed, then until the time is over; each commit covers up to 100 topics."""
    sample, batch, commits = Sample(0, 0.0, 0.0), messages_of(), 0
    with opened(kind, place, "synced") as volume:
        logs = made(volume, count, sample)
        volume.commit([log.append(batch) for log in logs])  # a first round for everybody: files are made
        with timed(0) as writing:
            began, rounds, took = time.perf_counter(), 0, 0.0
            while (rounds == 0 or took < seconds) and took < SYNCED_LIMIT_S:
                for at in range(0, count, PER_COMMIT):
                    tickets = [log.append(batch) for log in logs[at : at + PER_COMMIT]]
                    volume.commit(tickets)
                    commits, writing.messages = commits + 1, writing.messages + len(tickets) * PER_BATCH
                    took = time.perf_counter() - began
                    if took > SYNCED_LIMIT_S:
                        break
                rounds += 1
        logs.clear()
    sample.messages, sample.wall_s, sample.cpu_s = writing.messages, writing.wall_s, writing.cpu_s
    sample.extra["commit_ms"] = writing.wall_s / commits * 1e3
    return sample


def read_back(kind: str, count: int, place: Path, sample: Sample) -> None:
    """A few queues, whole, one after the other: cold, then hot. Opening is not timed: it warms the cache."""
    chosen = sorted({count * n // READ_BACK for n in range(READ_BACK)} | {0})
    volume = KINDS[kind](str(place))
    try:
        logs = [volume.open(f"t{n}-0") for n in chosen]
        drop_caches(place)
        for word in ("cold", "hot"):
            began, total = time.perf_counter(), 0
            for log in logs:
                position = 0
                while len(found := log.read(position, 65_536)):
                    position, total = found.last_position + 1, total + len(found)
            sample.extra[f"read_{word}_s"] = time.perf_counter() - began
        sample.extra["read_messages"], sample.extra["read_queues"] = total, len(logs)
    finally:
        volume.close()


def drop_caches(place: Path) -> None:
    """Ask the system to forget the pages of every file: they are synced first, or it would keep them."""

    def drop(path: str) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

    paths = [f"{folder}/{name}" for folder, _, names in os.walk(place) for name in names]
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(drop, paths))


def messages_of() -> Batch:
    return Batch.build("bench", [os.urandom(SIZE) for _ in range(PER_BATCH)], header_codec="kafka")


def topics(messages: int, runs: int) -> Figure:
    """Each count once (`runs` is not used: the whole takes minutes), the two layouts in turn."""
    samples: dict[str, list[Sample]] = {}
    counts = [count for count in TOPICS if count * LEAST_PER_TOPIC <= messages]
    seconds = min(SYNCED_S, SYNCED_S * messages / 1_000_000)
    for count in counts:
        for kind in KINDS:
            with scratch() as place:
                sample = unsynced(kind, count, messages, place)
                gc.collect()
                read_back(kind, count, place, sample)
            samples[f"{kind}, {count} topics, unsynced"] = [sample]
        for kind in KINDS:
            with scratch() as place:
                samples[f"{kind}, {count} topics, synced"] = [synced(kind, count, seconds, place)]
            gc.collect()
    figure = Figure(
        "Many topics: one log each (Kafka) against one shared log (RocketMQ)", "what came out", samples
    )
    figure.met, figure.verdict = (
        True,
        "; ".join(line for count in counts for line in lines_for(samples, count)),
    )
    return figure


def lines_for(samples: dict[str, list[Sample]], count: int) -> Iterator[str]:
    """Two lines per count, Kafka first."""
    for mode in MODES:
        pair = [samples[f"{kind}, {count} topics, {mode}"][0] for kind in KINDS]
        yield f"{count} topics {mode} " + " : ".join(f"{sample.rate:,.0f}/s" for sample in pair)
        if mode == "unsynced":
            for word in ("cold", "hot"):
                rates = (s.extra["read_messages"] / max(s.extra[f"read_{word}_s"], 1e-9) for s in pair)
                yield f"read back {word} " + " : ".join(f"{rate:,.0f}/s" for rate in rates)


ALL = {"topics": topics}
