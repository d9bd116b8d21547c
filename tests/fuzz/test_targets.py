"""A fixed number of inputs per target; `scripts/fuzz` runs more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.target import CORPUS
from tests.fuzz.targets.all_targets import TARGETS
from tests.support.goals import goal

pytestmark = pytest.mark.xdist_group("fuzz")  # one process imports and forks for all of them
ROOT = Path(__file__).resolve().parents[2]
SEED = 1


@pytest.fixture(scope="module")
def fuzzer():
    """Ask for a target and a number of inputs; answers with the report."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--serve"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask(name, inputs):
            request = {"target": name, "inputs": inputs, "seed": SEED}
            print(json.dumps(request), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_gives_a_value_or_a_typed_error_within_its_limits(fuzzer, name):
    target = TARGETS[name]
    report = fuzzer(name, target.inputs)
    assert report["failures"] == []
    assert report["inputs"] == target.inputs + len(target.corpus())
    goal("G14", inputs=report["inputs"])


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_many_inputs_give_a_value_or_a_typed_error_within_their_limits(fuzzer, name):
    assert fuzzer(name, 10 * TARGETS[name].inputs)["failures"] == []


def test_every_folder_of_the_corpus_is_that_of_a_target():
    used = {target.corpus_of or name for name, target in TARGETS.items()}
    assert {path.name for path in CORPUS.iterdir()} == used
