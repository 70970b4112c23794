"""`python -m bench.topics_plot`: docs/internals/topics.svg from bench/results/topics.json. Four panels, both axes logarithmic."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, PLOT = HERE / "results" / "topics.json", HERE.parent / "docs" / "internals" / "topics.svg"
COLOURS = {"kafka": "#1f6fb2", "rocketmq": "#c2571a"}
LABELS = {"kafka": "one log per topic (Kafka)", "rocketmq": "one shared log (RocketMQ)"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 210, 70, 70, 80
LOW, HIGH = 4, 8
TEXT = 'font-family="sans-serif" font-size="12" fill="#222"'
Sample = dict[str, Any]


def append_rate(sample: Sample) -> float:
    return sample["rate"]


def read_rate(word: str) -> Callable[[Sample], float]:
    return lambda sample: sample["extra"]["read_messages"] / sample["extra"][f"read_{word}_s"]


PANELS: list[tuple[str, str, Callable[[Sample], float]]] = [
    ("append, unsynced", "unsynced", append_rate),
    ("append, a commit per 100 batches", "synced", append_rate),
    ("read one queue, cold", "unsynced", read_rate("cold")),
    ("read one queue, hot", "unsynced", read_rate("hot")),
]


def points(
    runs: dict[str, list[Sample]], kind: str, mode: str, value: Callable[[Sample], float]
) -> list[tuple[int, float]]:
    """(topics, messages per second) of one line."""
    found: list[tuple[int, float]] = []
    for name, samples in runs.items():
        match = re.fullmatch(rf"{kind}, (\d+) topics, {mode}", name)
        if match:
            found.append((int(match[1]), value(samples[0])))
    return sorted(found)


def panel(at: int, title: str, lines: dict[str, list[tuple[int, float]]]) -> str:
    left, top = LEFT + at % 2 * (WIDTH + GAP), TOP + at // 2 * (HEIGHT + GAP)
    most = max(math.log10(count) for line in lines.values() for count, _ in line) or 1.0

    def place(count: float, rate: float) -> tuple[float, float]:
        up = (math.log10(rate) - LOW) / (HIGH - LOW)
        return left + math.log10(count) / most * WIDTH, top + HEIGHT * (1 - up)

    out = [f'<text x="{left}" y="{top - 10}" {TEXT} font-weight="bold">{title}</text>']
    for power in range(LOW, HIGH + 1):
        _, y = place(1, 10.0**power)
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        label = f"{10**power // 1000:,}k" if power < 6 else f"{10**power // 10**6:,}M"
        out.append(f'<text x="{left - 8}" y="{y + 4:.1f}" {TEXT} text-anchor="end">{label}/s</text>')
    for kind, line in lines.items():
        spots = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[kind]}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[kind]}"/>' for x, y in spots]
    for count, _ in next(iter(lines.values())):
        x, _ = place(count, 10.0**LOW)
        out.append(f'<text x="{x:.1f}" y="{top + HEIGHT + 18}" {TEXT} text-anchor="middle">{count:,}</text>')
    return "\n".join(out)


def drawn(runs: dict[str, list[Sample]]) -> str:
    """The whole picture."""
    width, height = LEFT + 2 * WIDTH + GAP + 30, TOP + 2 * HEIGHT + GAP + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">']
    out.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for at, (kind, label) in enumerate(LABELS.items()):
        x = LEFT + at * 260
        out.append(f'<rect x="{x}" y="16" width="14" height="14" fill="{COLOURS[kind]}"/>')
        out.append(f'<text x="{x + 20}" y="28" {TEXT}>{label}</text>')
    out.append(f'<text x="{LEFT + 520}" y="28" {TEXT}>messages/s of 128 B over topics</text>')
    for at, (title, mode, value) in enumerate(PANELS):
        out.append(panel(at, title, {kind: points(runs, kind, mode, value) for kind in LABELS}))
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    [figure] = json.loads(RESULTS.read_text())["figures"]
    PLOT.write_text(drawn(figure["runs"]))


if __name__ == "__main__":
    main()
