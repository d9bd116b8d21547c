"""The planted bugs still fit the code, and the tests notice the most telling of them.

All of them: `scripts/mutants`.
"""

from __future__ import annotations

import re

import pytest

from tests.mutants.catalogue import PACKAGES, ROOT, load_mutants
from tests.mutants.run import run_mutants
from tests.mutants.trees import Verdict
from tests.support.goals import goal

MUTANTS = load_mutants()
QUICK = [mutant for mutant in MUTANTS if mutant.quick]
COUNT_MIN = 40
TIE = re.compile(r"[RIPG]\d+")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mutant_fits_the_code(mutant):
    assert mutant.file.split("/")[0] in PACKAGES
    mutant.mutate((ROOT / mutant.file).read_text())
    goal("G22", mutants=1)
    assert TIE.fullmatch(mutant.tie)
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in source, test


def test_every_mutant_is_another_one():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    assert len(MUTANTS) >= COUNT_MIN


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a dozen runs of pytest, on a machine that may be busy
def test_most_telling_mutants_are_killed(tmp_path):
    results = run_mutants(QUICK, tmp_path, jobs=1)
    assert {each: run for each, run in results.items() if run.verdict is not Verdict.KILLED} == {}
