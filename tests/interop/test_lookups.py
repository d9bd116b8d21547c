"""Looking every key of a table up gives the rows of the dictionary, with an index and without."""

from __future__ import annotations

import pytest

from tableformat import Lookup, LookupSource
from tableformat.lookup import session
from tests.support.interop_engines import canonical_rows, check_rows, expected_rows
from tests.support.interop_tables import CASES, InteropCase

NAMES = [build.__name__ for build in CASES]


@pytest.mark.parametrize("case", NAMES, indirect=True)
@pytest.mark.parametrize("with_index", [True, False])
def test_all_keys_of_a_table_are_found(case: InteropCase, with_index, monkeypatch) -> None:
    if not with_index:
        monkeypatch.setattr(session, "open_locator", lambda _: None)
    key = list(case.table.primary_key)
    keys = [{name: row[name] for name in key} for row in case.rows]
    known = {tuple(each.values()) for each in keys}
    gone = case.table.scan(columns=key)
    others = [row for row in gone.to_arrow().to_pylist() if tuple(row.values()) not in known]
    with Lookup(case.table.environment, case.table.identifier) as lookup:
        ref = None if case.is_main else case.branch
        found = lookup.find([*keys, *others] or [dict.fromkeys(key)], case.schema.names, branch=ref)
        check_rows(expected_rows(case), canonical_rows(found.rows, case.schema))
        assert set(found.missing) == set(range(len(keys), found.key_count))
        if not with_index:
            assert found.source == LookupSource.SCAN
        # One by one, in another order: single pages, then what is cached.
        for _ in range(2):
            for at in range(len(keys) - 1, -1, -max(7, len(keys) // 10)):
                [row] = lookup.find(keys[at], key, branch=ref).to_pylist()
                assert row == {name: case.rows[at][name] for name in key}
