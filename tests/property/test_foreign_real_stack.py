"""Random histories of icefold and another tool on the real stack: staged changes come once.

SQLite, local files, RocksDB; the other tool is written without product code, DuckDB says what main
holds. A failure prints the seed and the fewest steps that were found to fail, for `replay`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from tests.support.foreign_histories import STEPS, Step, failure_of, run, shrink, steps_of

STEPS_PER_SEED = 30
SHRINK_RUNS_MAX = 40


def check_seeds(seeds: Iterable[int]) -> Counter[str]:
    done: Counter[str] = Counter()
    for seed in seeds:
        steps = steps_of(seed, STEPS_PER_SEED)
        error = None
        try:
            done += run(seed, steps)
        except Exception as failed:
            error = failed
        if error is not None:
            fewer = shrink(seed, steps, SHRINK_RUNS_MAX)
            raise AssertionError(
                f"seed {seed}: {error}\nreplay({seed}, {fewer!r})\n{failure_of(seed, fewer)}"
            ) from error
    return done


def replay(seed: int, steps: Sequence[Step]) -> None:
    """A failure again: paste what it printed."""
    run(seed, steps)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 20, 5))
def test_history_with_another_tool_equals_the_model(start):
    done = check_seeds(range(start, start + 5))
    assert done["published"]
    assert done["stranded"] + done["untold"] <= 2


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_200_histories_with_another_tool_equal_the_model():
    done = check_seeds(range(200))
    assert done.keys() >= STEPS.keys(), "some step never applied"
    assert done["stranded"] + done["untold"] <= 30, "too many histories end before their end"
    assert done["went on"] * 2 > done["from staging state"], "the way on is closed too often"
    print(dict(done))
