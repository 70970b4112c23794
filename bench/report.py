"""`python -m bench.report`: docs/internals/speed.md from bench/results/{compare,spark,store}.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "store.json"
SPARK = ROOT / "bench" / "results" / "spark.json"
COMPARED = ROOT / "bench" / "results" / "compare.json"
PAGE = ROOT / "docs" / "internals" / "speed.md"

SERVER_HEAD = """# Speed

## The server beside nats-server 2.15.2

Written by `python -m bench.report` from `bench/results/compare.json`; the runs are made by
`python -m bench.compare --json bench/results/compare.json`: both servers on fresh directories, alternating, the same load generator
(`bench/load`, or the `nats` command where it says so), the same durability mode unless the name says otherwise. Ratios of medians of three runs;
CPU is the server's, per message, from /proc. For latencies the ratio is nats-server's over ours.

| workload | throughput | required | CPU | required | Headrace | nats-server | |
|---|---|---|---|---|---|---|---|
"""

SPARK_HEAD = """
## Spark beside its Kafka connector and Parquet

Written by `python -m bench.report` from `bench/results/spark.json`; the runs are made by
`python -m bench.spark --json bench/results/spark.json`: one session (local[2]) on this machine, {rows:,} messages of 128 bytes, everybody in turn
after one round that is not counted. Medians with their range; CPU is of Spark's JVM, its Python workers and the server, per message.
`ready` is a Python source that sends ready batches, `discard` a Python sink that throws its rows away: what no Python source or sink can outrun. `kafka synced` acks when a record is on disk, as Headrace does; `kafka` when it is in memory.

| what | required | seen | |
|---|---|---|---|
"""

HEAD = """
# Speed of the store

Written by `python -m bench.report` from `bench/results/store.json`; the runs are made by `python -m bench --json bench/results/store.json`.
Everybody runs in turn in one process run, so compare within a table only: the machine is shared, and absolute rates move from hour to hour.
Values are medians, with the range in brackets. CPU is user and system time of the whole process.

Machine: {machine}.

| what | required | seen | |
|---|---|---|---|
"""


def main() -> None:
    results = json.loads(RESULTS.read_text())
    machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = [SERVER_HEAD, *(compared(figure) for figure in json.loads(COMPARED.read_text()))]
    spark = json.loads(SPARK.read_text())
    lines.append(SPARK_HEAD.format(rows=spark["rows"]))
    lines += [one_line(figure) for figure in spark["figures"]]
    lines.append(HEAD.format(machine=machine).replace("# Speed of the store", "## Speed of the store"))
    lines += [one_line(figure) for figure in results["figures"]]
    for figure in results["figures"]:
        lines.append(
            f"\n### {figure['name']}\n\n| who | messages/s | CPU us per message | seconds |\n|---|---|---|---|\n"
        )
        for who, runs in figure["runs"].items():
            row = [spread(runs, "rate"), spread(runs, "cpu_us"), spread(runs, "wall_s")]
            if figure["name"].startswith("memory"):
                row = ["", "", f"grown by {spread([run['extra'] for run in runs], 'grown')} bytes"]
            lines.append(f"| {who} | {' | '.join(row)} |\n")
    PAGE.write_text("".join(lines))


def one_line(figure: dict[str, Any]) -> str:
    """A row of a table of figures."""
    mark = "met" if figure["met"] else "short"
    return f"| {figure['name']} | {figure['required']} | {figure['verdict']} | {mark} |\n"


def compared(figure: dict[str, Any]) -> str:
    """One row of the server's table."""

    def side(which: dict[str, Any]) -> str:
        p99 = f", p99 {which['p99_us']:.0f} us" if which["p99_us"] else ""
        return f"{which['rate']:,.0f}/s, {which['cpu_us']:.2f} us{p99}"

    required = "" if figure["ratio_required"] is None else f">= {figure['ratio_required']} x"
    cpu = "" if figure["cpu_required"] is None else f"<= {figure['cpu_required']}"
    mark = "met" if figure["met"] else "short"
    return (
        f"| {figure['name']} | {figure['ratio']} x | {required} | {figure['cpu_ratio']} | {cpu} "
        f"| {side(figure['ours'])} | {side(figure['theirs'])} | {mark} |\n"
    )


def spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in runs]
    low, middle, high = min(values), statistics.median(values), max(values)
    form = ",.0f" if middle >= 1000 else ".3f"
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
