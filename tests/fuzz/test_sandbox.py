"""The fuzzer sees what it is there to see."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import bad_parsers
from tests.fuzz.targets.all_targets import TARGETS

pytestmark = pytest.mark.xdist_group("fuzz")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reports():
    command = [sys.executable, "-m", "tests.fuzz.bad_parsers"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", [parse.__name__ for parse in bad_parsers.BAD])
def test_bad_parser_is_found_with_its_input_and_the_other_inputs_are_still_run(reports, name):
    report = reports[name]
    assert [(each["data"], each["ordinal"]) for each in report["failures"]] == [("eHg=", 1)]
    assert report["inputs"] == 3


@pytest.mark.parametrize("name", [parse.__name__ for parse in bad_parsers.GOOD])
def test_good_parser_has_no_failure(reports, name):
    assert reports[name]["failures"] == []
    assert reports[name]["inputs"] == 3


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_depend_on_seed_and_ordinal_alone(name):
    target = TARGETS[name]
    corpus = [data for _, data in target.corpus()]

    def made(order):
        return {at: target.generate(corpus, seed=7, ordinal=at) for at in order}

    ordinals = list(range(30))
    forwards = made(ordinals)
    random.Random(1).shuffle(ordinals)
    assert made(ordinals) == forwards
    assert len(set(forwards.values())) > 20
