"""The health of consumers as one HTML page: tables and plots drawn here as SVG; it loads nothing from anywhere."""

from __future__ import annotations

from html import escape

from headrace.ops.health import HealthResult, HealthRow
from headrace.units import format_time_ns

WIDTH, HEIGHT, LEFT, BOTTOM = 760, 180, 70, 24
SERIES = (
    ("ack_p50_ns", "p50", "#2a9d8f"),
    ("ack_p95_ns", "p95", "#e9a23b"),
    ("ack_p99_ns", "p99", "#c8553d"),
)
CONSUMERS_MAX = 100
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}h2{margin-top:2rem}svg{width:100%;height:auto}"
)


def page(result: HealthResult) -> str:
    """The whole document."""
    head = (
        "<tr><th>consumer</th><th>samples</th><th>p50</th><th>p95</th><th>p99</th><th>redelivered</th><th>naks</th>"
        "<th>given up</th><th>terminated</th><th>lag</th></tr>"
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Consumers</title>",
        f"<style>{STYLE}</style><h1>Consumers</h1>",
        f"<p>{escape(result.source)}: {result.events:,} events, windows of {duration(result.window_ns)}.</p>",
        f"<table>{head}{''.join(_line(row) for row in result.totals)}</table>",
    ]
    for total in result.totals[:CONSUMERS_MAX]:
        mine = [row for row in result.rows if (row.stream, row.consumer) == (total.stream, total.consumer)]
        parts.append(f"<h2>{escape(_name(total))}</h2>{_plot(mine)}")
    return "".join(parts) + "</html>\n"


def duration(ns: int | None) -> str:
    """Short: 250 µs, 3.2 ms, 1.5 s."""
    if ns is None:
        return "–"
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"


def _name(row: HealthRow) -> str:
    return f"{row.stream} > {row.consumer}"


def _line(row: HealthRow) -> str:
    cells = [
        f"{row.samples:,}",
        duration(row.ack_p50_ns),
        duration(row.ack_p95_ns),
        duration(row.ack_p99_ns),
        *(f"{count:,}" for count in (row.redelivered, row.naked, row.given_up, row.terminated)),
        "–" if row.lag is None else f"{row.lag:,}",
    ]
    return f"<tr><td>{escape(_name(row))}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _plot(rows: list[HealthRow]) -> str:
    """Ack times over the windows, and a bar for each window with trouble."""
    drawn = [row for row in rows if row.ack_p99_ns is not None]
    if not drawn:
        return "<p>No ack samples: set the consumer's sample_freq.</p>"
    top = max(max(row.ack_p99_ns or 0 for row in drawn), 1)
    first, last = rows[0].start_ns, max(rows[-1].start_ns, rows[0].start_ns + 1)

    def x(row: HealthRow) -> float:
        return LEFT + (row.start_ns - first) / (last - first) * (WIDTH - LEFT - 10)

    def y(value: int) -> float:
        return 10 + (1 - value / top) * (HEIGHT - BOTTOM - 10)

    made = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="ack time">']
    made += [
        f'<line x1="{x(row):.1f}" x2="{x(row):.1f}" y1="10" y2="{HEIGHT - BOTTOM}" stroke="#c8553d" opacity=".25"/>'
        for row in rows
        if row.given_up or row.naked or row.terminated
    ]
    for value in (0, top // 2, top):
        made.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" font-size="11" text-anchor="end">{duration(value)}</text>'
        )
    for at, (field, label, colour) in enumerate(SERIES):
        points = [(x(row), y(getattr(row, field) or 0)) for row in drawn]
        if len(points) == 1:
            made.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>')
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        made.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{line}"/>')
        made.append(f'<text x="{WIDTH - 110 + at * 34}" y="20" font-size="11" fill="{colour}">{label}</text>')
    for anchor, place, when in (("start", LEFT, first), ("end", WIDTH - 10, rows[-1].start_ns)):
        made.append(
            f'<text x="{place}" y="{HEIGHT - 6}" font-size="11" text-anchor="{anchor}">{format_time_ns(when)[:19]}Z</text>'
        )
    return "".join(made) + "</svg>"
