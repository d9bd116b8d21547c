from __future__ import annotations

import pytest

from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import to_table
from tests.support.scan_cases import CASES, ScanCase, comparable
from tests.support.scan_tables import HandMadeTable


def read(case: ScanCase, row_filter: str | None = None) -> list[str]:
    environment = case.table.environment()
    plan = plan_scan(environment, case.table.state(), row_filter=row_filter)
    return comparable([tuple(row.values()) for row in to_table(environment, plan).to_pylist()])


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_table_reads_as_its_schema_says(build) -> None:
    case = build(HandMadeTable)
    assert read(case) == comparable(case.expected)


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_filter_on_table_keeps_its_rows(build) -> None:
    case = build(HandMadeTable)
    for row_filter, expected in case.filters.items():
        assert read(case, row_filter) == comparable(expected), row_filter
