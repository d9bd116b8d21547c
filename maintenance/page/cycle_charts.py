"""The charts of the report: what each one draws, says and lists."""

from __future__ import annotations

from collections.abc import Sequence

from maintenance.cycle_history import Cycle, Point
from maintenance.page.charts import Line, TimeChart
from maintenance.page.series import (
    PHASES,
    folded,
    group_by_time,
    last,
    mean,
    percentile,
    spans_of_time,
)
from resolver.number_text import bytes_text, count_text, plural, span_text

_SPAN_UNITS = ((86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"), (1_000.0, "s"))


def freshness_chart(cycles: Sequence[Cycle]) -> TimeChart:
    """Age of the oldest change at its publish."""
    values = [each.freshness_ms for each in cycles]
    middle, high = percentile(values, 0.5), percentile(values, 0.99)
    text = "How old the oldest change of a cycle was when it was published."
    if middle is not None and high is not None:
        text += f" Half within {span_text(middle)}, 99 % within {span_text(high)}."
    groups = group_by_time([each for each in cycles if each.freshness_ms is not None])
    worst = folded(groups, lambda each: each.freshness_ms, max)
    lines = [("freshness", worst)]
    return _time_chart("freshness", "Freshness", text, _times(groups), lines, "line")


def backlog_chart(cycles: Sequence[Cycle]) -> TimeChart:
    """Staged commits per publish: the backlog that each cycle found."""
    groups = group_by_time(cycles)
    most = folded(groups, lambda each: each.staged_commits, max)
    changes = sum(each.rows + each.deleted_rows for each in cycles)
    text = (
        f"Staged commits that each cycle found waiting. {plural(len(cycles), 'cycle')} published "
        f"{plural(sum(each.staged_commits for each in cycles), 'commit')}, "
        f"{plural(changes, 'row')} written or deleted."
    )
    lines = [("staged commits", most)]
    return _count_chart("backlog", "Backlog", text, groups, lines, shape="line")


def files_chart(points: Sequence[Point]) -> TimeChart:
    """Data files and delete files over time."""
    groups = group_by_time(points)
    marks = [each.at_ms for each in points if each.kind == "compaction"]
    text = (
        f"Files of the published branch: {plural(points[-1].totals['data_files'], 'data file')} "
        f"and {plural(points[-1].totals['delete_files'], 'deletion vector')} at the end; "
        f"{plural(len(marks), 'compaction')}."
    )
    lines = [
        ("data files", folded(groups, lambda each: each.totals["data_files"], last)),
        ("deletion vectors", folded(groups, lambda each: each.totals["delete_files"], last)),
    ]
    return _count_chart("files", "Files", text, groups, lines, shape="step", marks=marks)


def share_chart(points: Sequence[Point]) -> TimeChart:
    """Share of rows hidden by DVs."""
    groups = group_by_time(points)
    shares = folded(groups, lambda each: each.dv_share * 100, last)
    text = (
        "Rows in data files that deletion vectors hide: what readers read for nothing. "
        f"{points[-1].dv_share:.1%} at the end; compaction takes it down."
    )
    return TimeChart(
        name="dv-share",
        title="Rows hidden by deletion vectors",
        text=text,
        times_ms=_times(groups),
        lines=[Line(name="hidden rows", values=shares, colour=3)],
        shape="step",
        value_text=lambda value: f"{value:.2f} %",
        tick_text=lambda value: f"{value:g} %",
        limit_min=1.0,
        marks=[each.at_ms for each in points if each.kind == "compaction"],
        mark_name="compaction",
    )


def phases_chart(cycles: Sequence[Cycle]) -> TimeChart:
    """Where the time of a cycle goes, up to its commit."""
    spans = spans_of_time(cycles)
    groups = list(spans.values())
    lines = [
        (phase, folded(groups, lambda each, phase=phase: each.phases_ms.get(phase, 0), mean))  # type: ignore[misc]
        for phase in PHASES
    ]
    total = percentile([sum(each.phases_ms.values()) for each in cycles], 0.5)
    text = "Time per phase until a cycle's commit" + (
        "." if total is None else f"; half of the cycles took at most {span_text(total)}."
    )
    used = [(name, values) for name, values in lines if any(values)]
    return _time_chart("phases", "Cycle phases", text, list(spans), used or lines[:1], "stack")


def rows_chart(points: Sequence[Point]) -> TimeChart:
    """Live rows over time."""
    groups = group_by_time(points)
    live = folded(
        groups, lambda each: each.totals["records"] - each.totals["position_deletes"], last
    )
    size = points[-1].totals["size_bytes"]
    text = f"Rows that readers see; {bytes_text(size)} of files at the end."
    return _count_chart("rows", "Live rows", text, groups, [("live rows", live)], shape="step")


Named = Sequence[tuple[str, Sequence[float | None]]]


def _count_chart(
    name: str,
    title: str,
    text: str,
    groups: Sequence[Sequence[Point]] | Sequence[Sequence[Cycle]],
    named: Named,
    *,
    shape: str,
    marks: Sequence[int] = (),
) -> TimeChart:
    return TimeChart(
        name=name,
        title=title,
        text=text,
        times_ms=_times(groups),
        lines=_lines(named),
        shape="step" if shape == "step" else "line",
        value_text=count_text,
        tick_text=short_count,
        is_whole=True,
        marks=marks,
        mark_name="compaction" if marks else "",
    )


def _time_chart(
    name: str,
    title: str,
    text: str,
    times_ms: Sequence[int],
    named: Named,
    shape: str,
) -> TimeChart:
    """Durations, in the unit that suits the longest of them."""
    longest = max((v for _, values in named for v in values if v is not None), default=0.0)
    if shape == "stack":
        columns = zip(*(values for _, values in named), strict=True)
        longest = max((sum(v or 0 for v in column) for column in columns), default=0.0)
    size, unit = next(((s, u) for s, u in _SPAN_UNITS if longest >= s), (1.0, "ms"))
    scaled = [(n, [None if v is None else v / size for v in values]) for n, values in named]
    return TimeChart(
        name=name,
        title=title,
        text=text,
        times_ms=times_ms,
        lines=_lines(scaled),
        shape="stack" if shape == "stack" else "line",
        value_text=lambda value: span_text(value * size),
        tick_text=lambda value: f"{value:g} {unit}",
    )


def _lines(named: Named) -> list[Line]:
    return [
        Line(name=name, values=values, colour=number)
        for number, (name, values) in enumerate(named, start=1)
    ]


def _times(groups: Sequence[Sequence[Point]] | Sequence[Sequence[Cycle]]) -> list[int]:
    """When each group ends; a clock that went back is held, so that times rise."""
    times: list[int] = []
    for group in groups:
        times.append(max(group[-1].at_ms, times[-1] if times else 0))
    return times


def short_count(value: float) -> str:
    """A count for an axis: `1.5k`, `20M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
