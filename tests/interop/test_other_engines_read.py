"""Every engine reads the same rows from what icefold writes: the plain fold of what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.goals import goal
from tests.support.interop_engines import (
    LINEAGE,
    canonical_rows,
    check_rows,
    engine_parameters,
    expected_rows,
    plain_rows,
)
from tests.support.interop_tables import CASES
from tests.support.table_checker import check_table

pytestmark = pytest.mark.interop

CASE_NAMES = [build.__name__ for build in CASES]
WITH_ROW_IDS = [name for name in CASE_NAMES if not name.startswith("v2_")]


@pytest.mark.parametrize("case", CASE_NAMES, indirect=True)
def test_table_keeps_the_spec(case) -> None:
    check_table(lambda location: _path(location).read_bytes(), case.location)


@pytest.mark.parametrize("engine", engine_parameters())
@pytest.mark.parametrize("case", CASE_NAMES, indirect=True)
def test_engine_reads_the_rows_that_were_written(case, engine) -> None:
    refusal = engine.refusal(case)
    if refusal is not None:
        with pytest.raises(Exception, match=refusal):
            engine.read(case, case.schema.names)
        return
    found = engine.read(case, case.schema.names)
    check_rows(expected_rows(case), canonical_rows(found, case.schema))
    goal("G20", tables=1)


@pytest.mark.parametrize("engine", engine_parameters(lambda engine: engine.lineage))
@pytest.mark.parametrize("case", WITH_ROW_IDS, indirect=True)
def test_engine_sees_the_row_ids_and_sequence_numbers_that_we_see(case, engine) -> None:
    columns = [*case.table.primary_key, *LINEAGE]
    ours = plain_rows(case.table.scan(columns=columns, branch=case.ref).to_arrow())
    row_ids = [row[-2] for row in ours]
    assert len(ours) == len(case.rows)
    assert None not in row_ids
    assert len(set(row_ids)) == len(row_ids)
    assert plain_rows(engine.read(case, columns)) == ours


def _path(location: str) -> Path:
    return Path(location.removeprefix("file:").replace("//", ""))
