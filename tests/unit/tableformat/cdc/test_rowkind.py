from __future__ import annotations

import pytest

from tableformat.cdc.debezium_options import MODE
from tableformat.cdc.rowkind import (
    ALL_KINDS,
    INSERT_ONLY,
    ChangelogMode,
    RowKind,
    check_sink_takes,
)
from tableformat.errors import InvalidInputError


def test_row_kind_has_flinks_numbers_and_short_names() -> None:
    assert [(kind.value, kind.short) for kind in RowKind] == [
        (0, "+I"),
        (1, "-U"),
        (2, "+U"),
        (3, "-D"),
    ]
    assert [kind.adds for kind in RowKind] == [True, False, True, False]


def test_changelog_mode_without_kinds_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one row kind"):
        ChangelogMode.of([])


def test_sink_without_key_refuses_updates_before_anything_runs() -> None:
    with pytest.raises(InvalidInputError, match=r"no primary key.*produces=.\+I, \+U, -D"):
        check_sink_takes(MODE, format_name="debezium-json", has_primary_key=False)


@pytest.mark.parametrize(
    ("mode", "has_key"), [(INSERT_ONLY, False), (INSERT_ONLY, True), (ALL_KINDS, True)]
)
def test_sink_takes_what_its_key_allows(mode: ChangelogMode, has_key: bool) -> None:
    check_sink_takes(mode, format_name="any", has_primary_key=has_key)
