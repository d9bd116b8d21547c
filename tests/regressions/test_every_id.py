"""The regression list of docs/guarantees.md: no id without a test of its name, and none besides."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.goals import goal
from tests.support.guarantees import PAGE, ids_in

NAME = re.compile(r"^def test_(r\d\d|p\d)_\w", re.MULTILINE)


def test_every_id_of_the_regression_list_has_a_test_named_after_it():
    ids = {found.lower() for found in ids_in(PAGE.read_text()) if found[0] in "RP"}
    folder = Path(__file__).parent
    found = {name for path in folder.glob("test_*.py") for name in NAME.findall(path.read_text())}
    assert found == ids
    goal("G21", ids=len(ids))
