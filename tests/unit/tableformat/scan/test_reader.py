from __future__ import annotations

import functools
from collections import Counter

import pytest

from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import read_scan, to_table
from tests.support.random_tables import KEYED, random_table, rows
from tests.support.scan_tables import HandMadeTable

table_of = functools.cache(random_table)  # by seed; nothing here changes one


def scanned(table: HandMadeTable, row_filter: str | None = None) -> Counter[tuple]:
    plan = plan_scan(table.environment(), table.state(), row_filter=row_filter)
    columns = ["_file", "_pos", "_row_id", "_last_updated_sequence_number", "_spec_id"]
    result = to_table(table.environment(), plan, columns=columns)
    return Counter(tuple(row.values()) for row in result.to_pylist())


def expected(table: HandMadeTable, keep=lambda _: True) -> Counter[tuple]:
    return Counter(
        (
            row.entry.data_file.file_path,
            row.position,
            row.entry.data_file.first_row_id + row.position,
            row.entry.sequence_number,
            row.entry.data_file.spec_id,
        )
        for row in table.live_rows()
        if keep(row.values)
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_deletes_leave_the_rows_the_rules_leave(seed: int) -> None:
    table = table_of(seed)
    assert scanned(table) == expected(table)


@pytest.mark.parametrize("seed", range(20))
def test_deleted_flag_brings_every_row_and_tells_which_are_dead(seed: int) -> None:
    table = table_of(seed)
    live = {(row.entry.data_file.file_path, row.position) for row in table.live_rows()}
    for row_filter, keep in (
        (None, lambda _: True),
        ("amount > 2", lambda v: v[3] is not None and v[3] > 2),
    ):
        plan = plan_scan(table.environment(), table.state(), row_filter=row_filter)
        result = to_table(table.environment(), plan, columns=["_deleted", "_file", "_pos", "id"])
        assert Counter(tuple(row.values()) for row in result.to_pylist()) == Counter(
            ((path, row.position) not in live, path, row.position, row.values.get(1))
            for row in table.rows
            for path in [row.entry.data_file.file_path]
            if keep(row.values)
        )


@pytest.mark.parametrize("seed", range(60, 90))
@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("amount > 2", lambda v: v[3] is not None and v[3] > 2),
        ("id = 7", lambda v: v[1] == 7),
        ("region = 'a' and amount < 3", lambda v: v[2] == "a" and v[3] is not None and v[3] < 3),
        ("region is null", lambda v: v[2] is None),
        ("region != 'a'", lambda v: v[2] is not None and v[2] != "a"),
        (
            "not (id < 10 or region = 'b')",
            lambda v: None not in (v[1], v[2]) and not (v[1] < 10 or v[2] == "b"),
        ),
        ("id in (1, 2, 3) or amount = 4", lambda v: v[1] in (1, 2, 3) or v[3] == 4),
        ("region not in ('a', 'b')", lambda v: v[2] is not None and v[2] not in ("a", "b")),
    ],
)
def test_filter_keeps_exactly_its_rows(seed: int, text: str, keep) -> None:
    table = table_of(seed)
    assert scanned(table, text) == expected(table, keep)


def test_limit_stops_after_the_rows_asked_for() -> None:
    table = HandMadeTable(KEYED)
    for _ in range(5):
        table.commit()
        table.add(rows(*((i, "a", i) for i in range(10))))
    plan = plan_scan(table.environment(), table.state())
    batches = list(read_scan(table.environment(), plan, limit=13, batch_rows=4))
    assert sum(batch.num_rows for batch in batches) == 13
    assert to_table(table.environment(), plan, limit=0).num_rows == 0
