"""`python -m bench [names] [--smoke] [--messages N] [--runs N] [--json FILE]`: run benchmarks, print, save."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from bench import convert, kafka, nats_streaming, rabbitmq, reopen, rocketmq, store, topics

ALL = (
    store.ALL
    | reopen.ALL
    | nats_streaming.ALL
    | kafka.ALL
    | rocketmq.ALL
    | topics.ALL
    | rabbitmq.ALL
    | convert.ALL
)
SIZES = {
    "append-interval": 3_000_000,
    "append-sync": 500_000,
    "read": 2_000_000,
    "load": 100_000,
    "arrow": 1_000_000,
    "streaming-scan": 2_000_000,
    "streaming-append": 2_000_000,
    "streaming-sync": 200_000,
    "streaming-channels": 10_000,
    "kafka-append": 3_000_000,
    "kafka-scan": 2_000_000,
    "kafka-lookup": 7_900_000,
    "rocketmq-append": 3_000_000,
    "rocketmq-scan": 2_000_000,
    "topics": 1_000_000,
    "rabbit-append": 1_000_000,
    "rabbit-scan": 1_000_000,
    "rabbit-reopen": 1_000_000,
    "rabbit-idle": 1_000_000,
}
LARGE = 5_000_000
SMALL = {"streaming-channels": 300}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of: {', '.join(ALL)}")
    parser.add_argument("--smoke", action="store_true", help="small and once: does everything still run?")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "store.local.json")
    given = parser.parse_args()
    figures = []
    for name in given.names or ALL:
        messages = given.messages or (SMALL.get(name, 20_000) if given.smoke else SIZES.get(name, LARGE))
        figure = ALL[name](messages, 1 if given.smoke else given.runs)
        figures.append(figure)
        mark = "" if given.smoke else ("met  " if figure.met else "SHORT")
        print(
            f"{mark} {figure.name}\n      required: {figure.required}\n      seen:  {figure.verdict}",
            flush=True,
        )
    if not given.smoke:
        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine, "figures": [figure.as_json() for figure in figures]}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
