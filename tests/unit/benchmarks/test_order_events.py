"""The order events have the promised shape, and DuckDB's fold of them is the dict's."""

import json

import duckdb
import numpy as np
import pytest

from benchmarks.support.order_events import DELETE, INSERT, KEY, UPDATE, OrderEvents, OrderFold

EVENTS = 20_000


@pytest.fixture(scope="module")
def drawn():
    return OrderEvents.draw(EVENTS, files=4, seed=5)


def events_of(drawn, numbers, **options):
    return [json.loads(line) for line in bytes(drawn.json_lines(numbers, **options)).splitlines()]


def key_of(row):
    return tuple(row[name] for name in KEY)


def test_equal_seeds_draw_equal_events(drawn):
    again = OrderEvents.draw(EVENTS, files=4, seed=5)
    other = OrderEvents.draw(EVENTS, files=4, seed=6)
    lines = [bytes(each.json_lines(each.files[0])) for each in (drawn, again, other)]
    assert lines[0] == lines[1] != lines[2]


def test_mix_is_the_one_promised(drawn):
    share = np.bincount(drawn.operation, minlength=3) / EVENTS
    assert share[DELETE] == pytest.approx(0.05, abs=0.01)
    assert share[UPDATE] > 0.5
    regions = drawn.rows["region"].to_numpy(zero_copy_only=False)
    updates = np.flatnonzero(drawn.operation == UPDATE)
    moved = (regions[updates] != regions[drawn.previous[updates]]).mean()
    assert moved == pytest.approx(0.08, abs=0.02)  # a tenth is drawn, a fifth of it stays in place
    arrived = np.concatenate(drawn.files)
    late = (np.diff(arrived) < 0).mean()
    assert 0.005 < late < 0.015
    keys = drawn.rows.group_by(list(KEY)).aggregate([("version", "count")])["version_count"]
    counts = np.sort(keys.to_numpy())[::-1]
    assert counts[: int(EVENTS * 0.3 * 0.2)].sum() > 0.75 * EVENTS


def test_operations_of_a_key_follow_each_other(drawn):
    before = np.where(drawn.previous >= 0, drawn.operation[drawn.previous], DELETE)
    assert ((drawn.operation == INSERT) == (before == DELETE)).all()


def test_events_carry_the_row_before_and_after(drawn):
    rows = {}
    in_order = np.sort(drawn.files[0])
    for event in events_of(drawn, in_order, before="full"):
        old, new = event["before"], event["after"]
        assert rows.pop(key_of(old or new), None) == old
        if new is not None:
            rows[key_of(new)] = new


@pytest.mark.parametrize("late_across_files", [False, True])
def test_fold_equals_a_dict(tmp_path, late_across_files):
    drawn = OrderEvents.draw(EVENTS, files=4, seed=7, late_across_files=late_across_files)
    fold, newest = OrderFold(duckdb.connect()), {}
    for path in drawn.write(tmp_path):
        fold.add(path)
        for line in path.read_text().splitlines():
            event = json.loads(line)
            row = event["after"] or event["before"]
            value = (event["source"]["lsn"], event["after"])
            newest[key_of(row)] = max(newest.get(key_of(row), (0, None)), value, key=lambda v: v[0])
        live = [row for _, row in newest.values() if row is not None]
        found = fold.duck.execute(
            "SELECT count(*), sum(version), sum(o_id), count(carrier_id) FROM orders_now"
        ).fetchone()
        assert found == (
            len(live),
            sum(row["version"] for row in live),
            sum(row["o_id"] for row in live),
            sum(row["carrier_id"] is not None for row in live),
        )
    assert fold.differences("orders_now") == 0
