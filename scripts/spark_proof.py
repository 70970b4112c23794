"""`make proof`: exactly once under faults, counted with a million messages.

    faults     one server, Spark with two executors: tasks, an executor, drivers and the server are killed;
               stream → transform → stream, stream → Parquet, stream → archive at the same time; then limits pass a reader
    clusters   the same three on a Spark standalone cluster and on a NATS cluster of three (R3); a node and a worker are killed

At the end everything is read back and compared with what was there: 0 lost, 0 double, or exit code 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.spark_faults import Report, by_faults, on_clusters

SCENES = ("faults", "clusters")
MASTER = "local-cluster[2,1,1024]"


def main() -> int:
    parser = argparse.ArgumentParser(description="Spark and Headrace, exactly once under faults, counted.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--scene", choices=SCENES, action="append", help="only this one")
    parser.add_argument("--master", default=MASTER, help="for the scene faults")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    parser.add_argument("--keep", type=Path, help="work in this new directory and leave everything there")
    arguments = parser.parse_args()
    # An end by SIGTERM ends what was started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr, flush=True)

    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-proof-") as made:
        place = arguments.keep or Path(made)
        for scene in arguments.scene or SCENES:
            say(scene)
            if scene == "faults":
                reports[scene] = by_faults(
                    place / scene, arguments.messages, master=arguments.master, say=say
                )
            else:
                reports[scene] = on_clusters(place / scene, arguments.messages, say=say)
    if arguments.json:
        print(json.dumps({name: report.to_dict() for name, report in reports.items()}, indent=2))
    else:
        for name, report in reports.items():
            show(name, report)
    return 0 if all(right(report) for report in reports.values()) else 1


def right(report: Report) -> bool:
    """Exact, and the limits were told as promised."""
    limits = [report.limits[name] for name in ("named", "logged", "went_on")] if report.limits else []
    return report.exact and all(limits)


def show(name: str, report: Report) -> None:
    print(f"\n{name}: {report.messages} messages, {report.seconds} s, {report.batches} batches of the copy")
    for what, times in report.faults.items():
        print(f"  {times:3} × {what}")
    print(f"  {'':16} {'rows':>9} {'lost':>6} {'double':>6} {'foreign':>7}")
    for what, each in report.counted.items():
        print(f"  {what:16} {each.rows:9} {each.lost:6} {each.double:6} {each.foreign:7}")
    if report.limits:
        first, last = report.limits["missing"]
        print(f"  limits passed a reader: {first} to {last} are gone", end="; ")
        print(", ".join(f"{each}: {report.limits[each]}" for each in ("named", "logged", "went_on")))
    print(f"  {'exactly once' if right(report) else 'NOT exactly once'}")


if __name__ == "__main__":
    sys.exit(main())
