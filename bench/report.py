"""`python -m bench.report`: docs/internals/speed.md from bench/results/store.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "store.json"
PAGE = ROOT / "docs" / "internals" / "speed.md"

HEAD = """# Speed of the store

Written by `python -m bench.report` from `bench/results/store.json`; the runs are made by `python -m bench --json bench/results/store.json`.
Everybody runs in turn in one process run, so compare within a table only: the machine is shared, and absolute rates move from hour to hour.
Values are medians, with the range in brackets. CPU is user and system time of the whole process.

Machine: {machine}.

| what | asked | seen | |
|---|---|---|---|
"""


def main() -> None:
    told = json.loads(RESULTS.read_text())
    machine = ", ".join(f"{key} {value}" for key, value in told["machine"].items())
    lines = [HEAD.format(machine=machine)]
    for figure in told["figures"]:
        mark = "met" if figure["met"] else "short"
        lines.append(f"| {figure['name']} | {figure['asked']} | {figure['verdict']} | {mark} |\n")
    for figure in told["figures"]:
        lines.append(
            f"\n## {figure['name']}\n\n| who | messages/s | CPU us per message | seconds |\n|---|---|---|---|\n"
        )
        for who, runs in figure["runs"].items():
            row = [spread(runs, "rate"), spread(runs, "cpu_us"), spread(runs, "wall_s")]
            if figure["name"].startswith("memory"):
                row = ["", "", f"grown by {spread([run['extra'] for run in runs], 'grown')} bytes"]
            lines.append(f"| {who} | {' | '.join(row)} |\n")
    PAGE.write_text("".join(lines))


def spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in runs]
    low, middle, high = min(values), statistics.median(values), max(values)
    form = ",.0f" if middle >= 1000 else ".3f"
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
