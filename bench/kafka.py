"""Kafka's layout: append, scan, the three ways to a message, recovery beside the broker's own."""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.harness import Figure, Sample, alternate, scratch, spread, timed
from headrace._core import Batch, Disk
from headrace.layouts.kafka.checkpoints import CLEAN
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from tests.support.kafka import TOOLS, Broker, run_tool

SIZE, BATCH, NAME = 128, 500, "bench-0"
LOOKUPS = 2000


def messages_of(count: int = BATCH) -> Batch:
    return Batch.build("bench", [os.urandom(SIZE) for _ in range(count)], header_codec="kafka")


def filled(place: Path, messages: int, **options: int) -> None:
    """A log of that many messages, cleanly stopped."""
    with KafkaVolume(
        str(place), mode="rw", create=True, durability="interval", options=KafkaOptions(**options)
    ) as volume:
        log, batch = volume.create(NAME), messages_of()
        for _ in range(messages // BATCH):
            log.append(batch)


def append(messages: int, runs: int) -> Figure:
    """Mode `interval`, batches of 500."""
    rounds = messages // BATCH

    def ours() -> Sample:
        with (
            scratch() as place,
            KafkaVolume(str(place), mode="rw", create=True, durability="interval") as volume,
        ):
            log, batch = volume.create(NAME), messages_of()
            with timed(rounds * BATCH) as sample:
                for _ in range(rounds):
                    log.append(batch)
        return sample

    figure = Figure(
        "Kafka: append 128 B, batches of 500, mode interval",
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
    """Uncompressed format 2 to Arrow, every checksum."""
    with scratch() as place:
        filled(place, messages)

        def whole() -> Sample:
            with KafkaVolume(str(place)) as volume:
                log = volume.open(NAME)
                with timed(messages) as sample:
                    rows = sum(batch.num_rows for batch in log.scan())
                assert rows == messages // BATCH * BATCH
            return sample

        def data_only() -> Sample:
            with KafkaVolume(str(place)) as volume:
                log = volume.open(NAME)
                with timed(messages) as sample:
                    sum(batch.num_rows for batch in log.scan(["seq", "time", "data"]))
            return sample

        runs_of = alternate(runs, {"all columns": whole, "seq, time, data": data_only})
    figure = Figure("Kafka: scan format 2 to Arrow with checks, 128 B", ">= 2 million/s", runs_of)
    rates = {who: figure.median(who, lambda s: s.rate) for who in runs_of}
    figure.met = rates["all columns"] >= 2e6
    figure.verdict = ", ".join(f"{rate / 1e6:.2f} million/s ({who})" for who, rate in rates.items())
    return figure


def lookup(messages: int, runs: int) -> Figure:
    """Side by side: sequential reading, the two searches and a scan, a linear scan; in the first segment, 1 GiB if
    there are enough messages.
    """
    with scratch() as place:
        filled(place, messages)
        chance = random.Random(1)
        with KafkaVolume(str(place)) as volume:
            log = volume.open(NAME)
            end = log.segments[1].base if len(log.segments) > 1 else log.next
            size = log.segments[0].size
            log.read(end // 2, 1)

            def sequential() -> Sample:
                with timed(end) as sample:
                    position = 0
                    while position < end and len(batch := log.read(position, 65_536)):
                        position = batch.last_position + 1
                return sample

            def two_step() -> Sample:
                wanted = [chance.randrange(end) for _ in range(LOOKUPS)]
                single: list[float] = []
                with timed(LOOKUPS) as sample:
                    for offset in wanted:
                        began = time.perf_counter()
                        found = log.read(offset, 1)
                        single.append(time.perf_counter() - began)
                        assert found.first_position == offset
                sample.extra["median_us"] = statistics.median(single) * 1e6
                sample.extra["p99_us"] = sorted(single)[int(LOOKUPS * 0.99)] * 1e6
                return sample

            def linear() -> Sample:
                segments = log.segments
                with timed(5) as sample:
                    for _ in range(5):
                        offset = chance.randrange(end)
                        at = max(n for n, s in enumerate(segments) if s.base <= offset)
                        found = log.reader(segments, at).find(offset, 0, segments[at].base - 1)
                        assert found is not None
                return sample

            runs_of = alternate(runs, {"sequential": sequential, "two-step": two_step, "linear": linear})
    figure = Figure("Kafka: a random offset, index mapped", "median under 100 us", runs_of)
    median = figure.median("two-step", lambda s: s.extra["median_us"])
    figure.met = median < 100
    figure.verdict = (
        f"segment of {size / 2**20:.0f} MiB: {median:.1f} us median, {figure.median('two-step', lambda s: s.extra['p99_us']):.0f} us p99; "
        f"a linear scan of headers takes {figure.median('linear', lambda s: s.wall_s / s.messages) * 1e3:.1f} ms; "
        f"sequential reading gives {figure.median('sequential', lambda s: s.rate) / 1e6:.2f} million/s"
    )
    return figure


# Appends without a sync and says so; then waits to be killed.
WRITER = """
import sys
from bench.kafka import BATCH, NAME, messages_of
from headrace.layouts.kafka.volume import KafkaVolume
log, batch = KafkaVolume(sys.argv[1], mode="rw", durability="interval").open(NAME), messages_of()
for _ in range(int(sys.argv[2]) // BATCH):
    log.append(batch)
print(log.next, flush=True)
sys.stdin.read()
"""


def killed_by_us(logs: Path, messages: int) -> None:
    """A process of ours fills the log and is killed with -9."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(logs), str(messages)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    written = process.stdout.readline()
    process.kill()
    process.communicate()
    assert int(written) == messages // BATCH * BATCH


def killed_broker(broker: Broker, messages: int) -> None:
    """The broker's own load tool fills the log; the broker is killed with -9."""
    run_tool(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "bench", "--num-records", str(messages // BATCH * BATCH), "--record-size", str(SIZE)),
        *("--throughput", "-1", "--bootstrap-server", broker.address),
    )
    broker.kill()


def recovery(messages: int, runs: int) -> Figure:
    """Two logs of as many messages, one left by a writer of ours killed with -9, one by a broker killed with -9. On copies
    of each: our opening for writing, and what the broker's own lines say its recovery took.
    """
    with scratch() as place:
        left = {who: place / who / "logs" for who in ("ours", "broker's")}
        for who, logs in left.items():
            broker = Broker(logs).start()
            try:
                broker.create_topic("bench")
                if who == "broker's":
                    killed_broker(broker, messages)
            finally:
                broker.stop()
            if who == "ours":
                killed_by_us(logs, messages)
            assert not (logs / CLEAN).exists()

        def copied(who: str) -> Path:
            target = place / "copy" / "logs"
            shutil.rmtree(place / "copy", ignore_errors=True)
            shutil.copytree(left[who], target, ignore=shutil.ignore_patterns(".lock", "headrace.lock"))
            return target

        def ours(who: str) -> Sample:
            logs = copied(who)
            with timed(messages) as sample:
                volume = KafkaVolume(str(logs), mode="rw", disk=Disk.real(), maintenance=False)
                assert volume.open(NAME).state().messages == messages // BATCH * BATCH
            volume.close()
            return sample

        def theirs(who: str) -> Sample:
            with Broker(copied(who)) as broker:
                deadline, line = time.monotonic() + 120, None
                while line is None and time.monotonic() < deadline:
                    line = re.search(rf"Completed load of Log\(dir=.*{NAME},.* in (\d+)ms", broker.log(2000))
                    time.sleep(0.2)
                assert line is not None, broker.log()
            return Sample(messages, int(line[1]) / 1000, 0.0)

        contestants = {
            f"{name}, {who} directory": partial(recover, who)
            for who in left
            for name, recover in (("headrace", ours), ("broker", theirs))
        }
        runs_of = alternate(runs, contestants)
    figure = Figure("Kafka: recovery after kill -9", "faster than the broker's own lines say", runs_of)
    took = {who: figure.median(who, lambda s: s.wall_s) for who in runs_of}
    pairs = {who: (took[f"headrace, {who} directory"], took[f"broker, {who} directory"]) for who in left}
    figure.met = all(mine < its for mine, its in pairs.values())
    lines = (
        f"{mine:.2f} s, the broker {its:.2f} s, in {who} directory" for who, (mine, its) in pairs.items()
    )
    figure.verdict = f"{'; '.join(lines)}; {messages} messages"
    return figure


ALL = {"kafka-append": append, "kafka-scan": scan, "kafka-lookup": lookup, "kafka-recovery": recovery}
