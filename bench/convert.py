"""Conversion: 5 million messages of 128 B from JetStream to Kafka, in a process of its own (its memory counts)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import headrace
from bench.harness import Figure, Sample, alternate, scratch

SIZE, BATCH = 128, 500
MEMORY_MIB_MAX = 500
# What the child does; it reports its own CPU time and the most memory it had.
PROGRAM = """
import json, resource, sys, time
from headrace.ops.conversion import convert
before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
report = convert(sys.argv[1], sys.argv[2], "kafka")
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps([report.messages, time.perf_counter() - began, cpu, after.ru_maxrss // 1024]))
"""


def filled(place: Path, messages: int) -> None:
    with headrace.open(str(place), "rw", create=True, durability="interval") as volume:
        store = volume.create("BENCH", subjects=["bench.>"])
        subjects = [f"bench.{number % 10}" for number in range(BATCH)]
        batch = headrace.batch(subjects, [os.urandom(SIZE) for _ in range(BATCH)])
        for _ in range(messages // BATCH):
            store.append(batch)


def to_kafka(messages: int, runs: int) -> Figure:
    """Read, recast, written, both sides read again and hashed."""
    most = 0
    with scratch() as place:
        filled(place / "js", messages)
        number = 0

        def ours() -> Sample:
            nonlocal most, number
            number += 1
            target = place / f"kafka{number}"
            output = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(place / "js"), str(target)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            count, seconds, cpu, memory = json.loads(output)
            most = max(most, memory)
            subprocess.run(["rm", "-rf", str(target)], check=True)
            return Sample(count, seconds, cpu)

        figure = Figure(
            f"convert {messages:,} messages of 128 B, JetStream to Kafka, verified",
            f"<= 2 us CPU per message, memory under {MEMORY_MIB_MAX} MiB",
            alternate(runs, {"headrace": ours}),
        )
    cpu = figure.median("headrace", lambda s: s.cpu_us)
    figure.met = cpu <= 2.0 and most < MEMORY_MIB_MAX
    figure.verdict = f"{cpu:.2f} us CPU per message, {most} MiB at most"
    return figure


ALL = {"convert": to_kafka}
