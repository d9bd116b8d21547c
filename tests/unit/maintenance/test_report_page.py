"""The HTML report: what it draws, that nothing can break it, and that a browser shows it."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import PurePosixPath
from urllib.parse import quote

import pytest

from maintenance.cycle_history import Cycle, Point
from maintenance.page.charts import Line, TimeChart, draw_time_chart
from maintenance.page.index import page_name, render_index
from maintenance.page.report import render_report
from maintenance.page.scales import days_text, nice_limit, time_labels, time_ticks, value_ticks
from maintenance.page.series import COLUMNS_MAX, group_by_time, percentile, spans_of_time
from maintenance.status import IndexStatus, LockStatus, SizeBin, TableStatus, TaskStatus
from tests.support.headless_browser import HeadlessBrowser, png_size

NOW = 1_790_000_000_000
HOSTILE = "a'\"><script>alert(1)</script>&\u202e.x\n"
VOID = {"meta", "link", "br", "img", "input", "hr"}


def totals(**counts):
    names = ("records", "data_files", "delete_files", "position_deletes", "equality_deletes",
             "size_bytes")  # fmt: skip
    return {name: counts.get(name, 0) for name in names}


def status(table="shop.orders", **values):
    defaults = {
        "target_snapshot_id": 1, "target_age_ms": 5, "staging_snapshot_id": 2,
        "backlog_snapshots": 0, "backlog_rows": 0, "backlog_deletes": 0, "backlog_bytes": 0,
        "lag_ms": 0, "staging_lag_ms": 0, "source_ms": None, "dead_letters": 0,
        "set_aside": None,
        "problem": None, "totals": totals(records=10, data_files=2),
        "dv_share": 0.0, "snapshots": 3, "manifests": 2, "metadata_bytes": 100,
        "sizes": [SizeBin(below_bytes=1 << 20, files=2, size_bytes=9),
                  SizeBin(below_bytes=None, files=0, size_bytes=0)],
        "index": IndexStatus(state="missing"), "lock": LockStatus(), "cycles": [],
    }  # fmt: skip
    return TableStatus(table=table, **(defaults | values))


def point(number, *, at_ms=None, kind="publish", **cycle):
    at_ms = NOW - 100_000 + number * 1000 if at_ms is None else at_ms
    found = Cycle(
        at_ms=at_ms, snapshot_id=number, staged_commits=number % 4 + 1, equality_deletes=5,
        rows=10, deleted_rows=3, freshness_ms=900 + number,
        phases_ms={"plan": 1, "read": 20, "index": 40, "match": 5, "write": 10}, **cycle,
    )  # fmt: skip
    counts = totals(records=100, data_files=number, delete_files=number, position_deletes=number)
    return Point(
        at_ms=at_ms, snapshot_id=number, kind=kind, totals=counts,
        cycle=found if kind == "publish" else None,
    )  # fmt: skip


def history(count):
    return [point(n, kind="compaction" if n % 10 == 9 else "publish") for n in range(count)]


class Outline(HTMLParser):
    """Checks that tags nest, and collects what matters."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts, self.ids = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


@pytest.mark.parametrize("count", [0, 1, 2, 37, 3_000])
def test_page_is_well_formed_and_bounded_for_any_history(count):
    page = render_report(status(), history(count), now_ms=NOW)
    outline = Outline(page)
    assert outline.count("svg") == (7 if count else 1)
    assert len(outline.ids) == len(set(outline.ids))
    assert len(page) < 1_000_000
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<style>.*</style>", "", page))


def test_page_needs_nothing_from_outside_and_runs_no_script():
    outline = Outline(render_report(status(), history(30), now_ms=NOW))
    for tag, attributes in outline.tags:
        assert tag not in {"script", "img", "link", "iframe", "object", "use"}
        assert not {"src", "href", "onload", "onclick"} & attributes.keys()
    policy = next(a["content"] for t, a in outline.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_hostile_texts_stay_texts():
    page = render_report(
        status(
            table=HOSTILE,
            problem=HOSTILE,
            lock=LockStatus(holder=HOSTILE),
            tasks=[TaskStatus(task="compact", is_due=False, why=HOSTILE, error=HOSTILE)],
            runs=[{"task": HOSTILE, "outcome": HOSTILE, "text": HOSTILE}],
        ),
        history(5),
        now_ms=NOW,
    )
    outline = Outline(page)
    assert outline.count("script") == 0
    assert "\u202e" not in page
    assert any("a'\"><script>alert(1)</script>&\ufffd.x" in text for text in outline.texts)


def test_charts_can_be_read_without_seeing_them():
    outline = Outline(render_report(status(), history(30), now_ms=NOW))
    for tag, attributes in outline.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert set(attributes["aria-labelledby"].split()) <= set(outline.ids)
    assert outline.count("details") == 6
    assert ("html", {"lang": "en"}) in outline.tags


def test_verdict_names_what_is_wrong():
    def chip(**values):
        page = render_report(status(**values), [], now_ms=NOW)
        return re.search(r'chip (\w+)".*?</span>([^<]+)<', page).groups()

    assert chip() == ("good", "up to date")
    assert chip(backlog_snapshots=2, lag_ms=900) == ("good", "following")
    assert chip(lag_ms=120_000, backlog_snapshots=1) == ("warn", "2.0 min behind")
    assert chip(problem="cursor lost")[0] == "bad"
    failing = TaskStatus(task="compact", is_due=False, why="", failures=2, error="boom")
    assert chip(tasks=[failing]) == ("bad", "failing: compact")


def test_clock_that_went_back_does_not_turn_the_charts_around():
    points = [point(n, at_ms=NOW + (n % 3) * 1000) for n in range(9)]
    page = render_report(status(), points, now_ms=NOW)
    places = [
        float(x) for x in re.findall(r'class="cursor" x1="([\d.]+)"', page.split("Backlog")[0])
    ]
    assert len(places) == 9
    assert all(a <= b for a, b in pairwise(places))


def test_long_history_keeps_its_extremes():
    points = history(5_000)
    cycles = [each.cycle for each in points if each.cycle]
    groups = group_by_time(cycles)
    assert len(groups) <= COLUMNS_MAX
    assert sum(map(len, groups)) == len(cycles)
    spans = spans_of_time(cycles)
    assert sum(map(len, spans.values())) == len(cycles)
    assert list(spans) == sorted(spans)


@pytest.mark.parametrize("value", [0, 1e-3, 0.9, 1, 7, 99, 101, 4_999, 8.1e8, 9.9e12])
@pytest.mark.parametrize("is_whole", [True, False])
def test_axis_covers_the_value_with_few_round_ticks(value, is_whole):
    limit = nice_limit(value)
    assert value <= limit <= max(value * 2, 1)
    ticks = value_ticks(limit, is_whole=is_whole)
    assert (ticks[0], ticks[-1]) == (0, pytest.approx(limit))
    assert 2 <= len(ticks) <= 6


@pytest.mark.parametrize("span_ms", [1, 900, 30_000, 7_200_000, 86_400_000 * 9, 86_400_000 * 900])
def test_time_ticks_are_inside_and_differ(span_ms):
    ticks = time_ticks(NOW, NOW + span_ms)
    assert len(ticks) <= 8
    assert all(NOW <= tick <= NOW + span_ms for tick in ticks)
    assert len(set(time_labels(ticks))) == len(ticks)


def test_gap_in_a_series_is_not_drawn_over():
    chart = TimeChart(
        name="c", title="t", text="d", times_ms=[1, 2, 3, 4], shape="line", value_text=str,
        tick_text=str, lines=[Line(name="a", values=[1.0, None, 2.0, 3.0])],
    )  # fmt: skip
    drawn = draw_time_chart(chart)
    assert drawn.count('class="l1"') == 2


def drawn_line(times_ms, shape="line"):
    chart = TimeChart(
        name="c", title="t", text="d", times_ms=times_ms, shape=shape, value_text=str,
        tick_text=str, lines=[Line(name="a", values=[1.0] * len(times_ms))],
    )  # fmt: skip
    return draw_time_chart(chart)


DAY = 86_400_000


def test_no_line_is_drawn_across_time_in_which_nothing_was_measured():
    shifts = [day * DAY + minute * 60_000 for day in range(3) for minute in range(20)]
    assert drawn_line(shifts).count('class="l1"') == 3
    assert drawn_line([minute * 60_000 for minute in range(60)]).count('class="l1"') == 1
    assert drawn_line([0, DAY]).count('class="l1"') == 2  # nobody knows what is usual
    assert drawn_line(shifts, "step").count('class="l1"') == 1  # what lasts until the next commit
    assert 'class="a1"' not in drawn_line(shifts)


def test_event_that_stands_alone_is_a_dot():
    drawn = drawn_line([0, 1000, 2000, 3000, 4000, DAY])
    assert re.findall(r'<circle class="f1" cx="[\d.]+"', drawn)
    assert drawn.count('r="3.5"') == 2  # the five at the left, in one pixel, and the last one


def test_axis_says_its_days_and_zone():
    assert days_text(NOW, NOW + 1000) == "2026-09-21, UTC"
    assert days_text(NOW, NOW + 2 * DAY) == "2026-09-21 to 2026-09-23, UTC"
    page = render_report(status(), history(30), now_ms=NOW)
    assert page.count("2026-09-21, UTC</text>") == 6


def test_the_two_counts_of_snapshots_say_what_they_count():
    text = " ".join(Outline(render_report(status(snapshots=41), history(30), now_ms=NOW)).texts)
    assert "30 snapshots of the published branch" in text
    assert "41 snapshots of all branches" in text


def test_print_is_light_and_shows_no_tips():
    page = render_report(status(), history(3), now_ms=NOW)
    assert "@media screen and (prefers-color-scheme:dark)" in page
    assert "details,.tip{display:none}" in page.partition("@media print{")[2]


def test_index_has_a_line_for_each_table_and_says_what_it_could_not_read():
    tables = [status(), status(table=HOSTILE, problem="cursor lost"), ("a.b", "no <metadata>")]
    outline = Outline(render_index(tables, now_ms=NOW))
    links = [attributes["href"] for tag, attributes in outline.tags if tag == "a"]
    assert links == ["shop.orders.html", quote(page_name(HOSTILE))]
    assert not any(link.startswith("/") or ":" in link for link in links)
    assert outline.count("script") == 0
    assert outline.count("tr") == 4
    assert {"up to date", "needs an operator", "cannot be read"} <= set(outline.texts)
    assert "no <metadata>" in outline.texts


@pytest.mark.parametrize("name", ["shop.orders", "a.../../b", "ü.ß" * 200, "x." + "y" * 500])
def test_page_of_a_table_is_one_file_in_the_folder(name):
    file = page_name(name)
    assert len(file.encode()) < 255
    assert PurePosixPath(file).name == file
    assert file != page_name(name + "z")


def test_cells_of_rows_that_stack_on_a_phone_say_their_column():
    index = render_index([status()], now_ms=NOW)
    assert re.findall('data-head="([^"]+)"', index) == [
        "state", "waiting", "behind", "live rows", "hidden", "files", "size", "snapshots",
    ]  # fmt: skip
    numbers = render_report(status(), history(3), now_ms=NOW)
    assert "<table>" in numbers, "tables of numbers stay tables"


def test_percentile_ignores_what_is_unknown():
    assert percentile([None, 1, 3], 0.5) == 2
    assert percentile([None], 0.5) is None


@pytest.fixture
def browser(tmp_path):
    return HeadlessBrowser(tmp_path)


@pytest.mark.slow
@pytest.mark.services
def test_browser_lays_the_page_out_in_light_and_dark(tmp_path, browser):
    page = tmp_path / "report.html"
    page.write_text(render_report(status(), history(60), now_ms=NOW), encoding="utf-8")
    assert browser.dom(page).count("<svg") == 7
    assert browser.log(page) == []
    light = browser.screenshot(page)
    assert png_size(light) == (1280, 1600)
    before = light.read_bytes()
    assert browser.screenshot(page, dark=True).read_bytes() != before
    assert len(before) > 60_000  # a blank page takes a few kB
    for width in (400, 1400):
        assert len(browser.screenshot(page, width=width, height=900).read_bytes()) > 20_000
    printed = browser.print_pages(page)
    assert 2 <= printed <= 3


@pytest.mark.slow
@pytest.mark.services
def test_browser_runs_nothing_that_a_table_name_says(tmp_path, browser):
    page = tmp_path / "hostile.html"
    hostile = (
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    )
    text = render_report(status(table=hostile), history(3), now_ms=NOW)
    page.write_text(text, encoding="utf-8")
    dom = browser.dom(page)
    assert "<title>owned" not in dom
    assert dom.count("<img") == 0
    assert browser.log(page) == []
