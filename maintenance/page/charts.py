"""Charts as inline SVG. Colours come from the page's CSS classes, texts are escaped here.

Every chart has a title and a description for screen readers, and a column per point that shows a
tip when it is pointed at: no script is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from maintenance.page.scales import (
    Axis,
    days_text,
    nice_limit,
    time_labels,
    time_text,
    time_ticks,
    value_ticks,
)
from tableformat.html_text import escape

WIDTH, HEIGHT = 640, 248
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 16, 48
TIP_LINE, TIP_CHAR, TIP_PAD = 17, 6.7, 9
BAR_HEIGHT, BAR_GAP, BAR_LABEL = 16, 9, 86
COLUMN_WIDTH_MAX = 22.0
GAP_FACTOR = 2.5  # events that are further apart than this many usual steps are not joined
DOT = 3.5
JOINED_MIN = 4  # of fewer events nobody can say what a usual step is

ValueText = Callable[[float], str]
Shape = Literal["line", "step", "stack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series; `None` is a gap. `colour` is the number of a CSS colour, 1 to 6."""

    name: str
    values: Sequence[float | None]
    colour: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChart:
    """Values over time.

    Attributes:
        name: Unique on the page; part of ids.
        title, text: What it shows, for readers who cannot see it.
        times_ms: One per value, rising.
        shape: `line` for events, joined where they are as close as most of them; `step` for states
            that last until the next one, `stack` for bars of parts.
        tick_text, value_text: How an axis and a tip write a value.
        is_whole: Counts: ticks are whole numbers.
        marks: Moments to point out.
        mark_name: What they are.
        limit_min: The axis reaches this value at least.
    """

    name: str
    title: str
    text: str
    times_ms: Sequence[int]
    lines: Sequence[Line]
    shape: Shape
    value_text: ValueText
    tick_text: ValueText
    is_whole: bool = False
    marks: Sequence[int] = ()
    mark_name: str = ""
    limit_min: float = 0.0


def draw_time_chart(chart: TimeChart) -> str:
    """The chart as an `<svg>`."""
    low, high = chart.times_ms[0], chart.times_ms[-1]
    across = Axis(low=low, high=high, start=LEFT + 4, end=WIDTH - RIGHT - 4)
    limit = nice_limit(max(_highest(chart), chart.limit_min))
    if chart.is_whole:
        limit = max(limit, 2.0) if limit == int(limit) else nice_limit(limit + 1)
    up = Axis(low=0, high=limit, start=HEIGHT - BOTTOM, end=TOP)
    parts = [_grid(chart, across, up, limit)]
    if chart.shape == "stack":
        parts.append(_stacks(chart, across, up))
    else:
        parts += [_curve(chart, line, across, up) for line in chart.lines]
    parts.append(_marks(chart, across))
    parts.append(_tips(chart, across, up))
    return _svg(chart.name, chart.title, chart.text, WIDTH, HEIGHT, "".join(parts))


def draw_bars(name: str, title: str, text: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: label, value, and what the bar says."""
    height = TOP + len(bars) * (BAR_HEIGHT + BAR_GAP)
    most = max((value for _, value, _ in bars), default=0) or 1
    across = Axis(low=0, high=most, start=0, end=WIDTH - BAR_LABEL - 140)
    parts = []
    for number, (label, value, shown) in enumerate(bars):
        top = TOP / 2 + number * (BAR_HEIGHT + BAR_GAP)
        middle = top + BAR_HEIGHT / 2 + 4
        length = max(across.place(value), 2.0) if value else 0.0
        parts.append(
            f'<text class="tick" x="{BAR_LABEL - 10}" y="{middle:.1f}" text-anchor="end">'
            f"{escape(label)}</text>"
            f'<rect class="track" x="{BAR_LABEL}" y="{top:.1f}" width="{across.end:.1f}" '
            f'height="{BAR_HEIGHT}" rx="4"/>'
            f'<rect class="f1" x="{BAR_LABEL}" y="{top:.1f}" width="{length:.1f}" '
            f'height="{BAR_HEIGHT}" rx="{min(4, length / 2):.1f}"><title>{escape(label)}: '
            f"{escape(shown)}</title></rect>"
            f'<text class="value" x="{BAR_LABEL + across.end + 10:.1f}" y="{middle:.1f}">'
            f"{escape(shown)}</text>"
        )
    return _svg(name, title, text, WIDTH, int(height), "".join(parts))


def _svg(name: str, title: str, text: str, width: int, height: int, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-labelledby="{name}-title {name}-text" preserveAspectRatio="xMidYMid meet">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(text)}</desc>{content}</svg>'
    )


def _highest(chart: TimeChart) -> float:
    if chart.shape == "stack":
        columns = zip(*(line.values for line in chart.lines), strict=True)
        return max((sum(value or 0 for value in column) for column in columns), default=0.0)
    return max((v for line in chart.lines for v in line.values if v is not None), default=0.0)


def _grid(chart: TimeChart, across: Axis, up: Axis, limit: float) -> str:
    parts = []
    for value in value_ticks(limit, is_whole=chart.is_whole):
        y = up.place(value)
        kind = "axis" if value == 0 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(chart.tick_text(value))}</text>"
        )
    ticks = time_ticks(across.low, across.high)
    for number, (tick, label) in enumerate(zip(ticks, time_labels(ticks), strict=True)):
        x = across.place(tick)
        if LEFT + 8 <= x <= WIDTH - RIGHT - 8:
            parts.append(
                f'<text class="tick at{" odd" * (number % 2)}" x="{x:.1f}" '
                f'y="{HEIGHT - BOTTOM + 19}" text-anchor="middle">{label}</text>'
            )
    parts.append(
        f'<text class="tick days" x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 39}" '
        f'text-anchor="end">{days_text(across.low, across.high)}</text>'
    )
    return "".join(parts)


def _curve(chart: TimeChart, line: Line, across: Axis, up: Axis) -> str:
    """A line in its stretches, a state with a light area below it."""
    parts = []
    for stretch in _stretches(chart, line):
        points = [(across.place(at), up.place(value)) for at, value in stretch]
        path = _path(points, chart.shape)
        floor = up.place(0)
        area = f"{path}L{points[-1][0]:.1f},{floor:.1f}L{points[0][0]:.1f},{floor:.1f}Z"
        if len(chart.lines) == 1 and chart.shape == "step":
            parts.append(f'<path class="a{line.colour}" d="{area}"/>')
        parts.append(f'<path class="l{line.colour}" d="{path}"/>')
        x, y = points[-1]
        if x - points[0][0] < DOT:  # too short to be seen as a line
            parts.append(f'<circle class="f{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="{DOT}"/>')
    return "".join(parts)


def _stretches(chart: TimeChart, line: Line) -> list[list[tuple[int, float]]]:
    """The points of a line in runs that are drawn through; between two runs nothing is known."""
    gap_ms = _gap_ms(chart) if chart.shape == "line" else math.inf
    stretches: list[list[tuple[int, float]]] = [[]]
    for at, value in zip(chart.times_ms, line.values, strict=True):
        if value is None or (stretches[-1] and at - stretches[-1][-1][0] > gap_ms):
            stretches.append([])
        if value is not None:
            stretches[-1].append((at, value))
    return [stretch for stretch in stretches if stretch]


def _gap_ms(chart: TimeChart) -> float:
    """Events further apart are not joined."""
    if len(chart.times_ms) < JOINED_MIN:
        return 0.0
    return GAP_FACTOR * median(after - before for before, after in pairwise(chart.times_ms))


def _path(points: Sequence[tuple[float, float]], shape: Shape) -> str:
    x, y = points[0]
    steps = [f"M{x:.1f},{y:.1f}"]
    for x, y in points[1:]:
        steps.append(f"H{x:.1f}V{y:.1f}" if shape == "step" else f"L{x:.1f},{y:.1f}")
    return "".join(steps)


def _stacks(chart: TimeChart, across: Axis, up: Axis) -> str:
    width = _column_width(chart, across)
    parts = []
    for number, at in enumerate(chart.times_ms):
        left = min(max(across.place(at) - width / 2, LEFT), WIDTH - RIGHT - width)
        total = 0.0
        for line in chart.lines:
            value = line.values[number] or 0.0
            if value <= 0:
                continue
            bottom, top = up.place(total), up.place(total + value)
            parts.append(
                f'<rect class="f{line.colour}" x="{left:.1f}" y="{top:.2f}" '
                f'width="{width:.1f}" height="{max(bottom - top, 0.3):.2f}"/>'
            )
            total += value
    return "".join(parts)


def _column_width(chart: TimeChart, across: Axis) -> float:
    """Columns stand in spans of equal time: the nearest two tell how wide one is."""
    places = [across.place(at) for at in chart.times_ms]
    nearest = min((b - a for a, b in pairwise(places)), default=COLUMN_WIDTH_MAX)
    return min(max(nearest - 1.5, 1.0), COLUMN_WIDTH_MAX)


def _marks(chart: TimeChart, across: Axis) -> str:
    return "".join(
        f'<path class="mark" d="M{x - 4:.1f},{TOP - 10}h8l-4,7z"/>'
        f'<line class="markline" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 3}" y2="{HEIGHT - BOTTOM}"/>'
        for x in map(across.place, chart.marks)
    )


def _tips(chart: TimeChart, across: Axis, up: Axis) -> str:
    """One invisible column per point; pointed at, it shows a line and a tip."""
    places = [across.place(at) for at in chart.times_ms]
    parts = []
    for number, (at, x) in enumerate(zip(chart.times_ms, places, strict=True)):
        before = LEFT if number == 0 else (places[number - 1] + x) / 2
        after = WIDTH - RIGHT if number == len(places) - 1 else (x + places[number + 1]) / 2
        texts = [time_text(at)]
        dots = ""
        for line in chart.lines:
            value = line.values[number]
            if value is None:
                continue
            texts.append(f"{line.name}: {chart.value_text(value)}")
            if chart.shape != "stack":
                y = up.place(value)
                dots += f'<circle class="f{line.colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        parts.append(
            f'<g class="hit"><rect x="{before:.1f}" y="0" width="{max(after - before, 0.5):.1f}" '
            f'height="{HEIGHT - BOTTOM}"/><g class="tip"><line class="cursor" x1="{x:.1f}" '
            f'x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>{dots}{_tip_box(x, texts)}</g></g>'
        )
    return "".join(parts)


def _tip_box(x: float, texts: Sequence[str]) -> str:
    width = max(map(len, texts)) * TIP_CHAR + 2 * TIP_PAD
    height = len(texts) * TIP_LINE + TIP_PAD
    left = x + 10 if x + 10 + width < WIDTH else x - 10 - width
    lines = "".join(
        f'<text x="{left + TIP_PAD:.1f}" y="{TOP + 6 + TIP_LINE * (number + 1) - 3:.1f}"'
        f"{' class=head' if number == 0 else ''}>{escape(text)}</text>"
        for number, text in enumerate(texts)
    )
    return (
        f'<rect class="box" x="{left:.1f}" y="{TOP + 2}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="6"/>{lines}'
    )
