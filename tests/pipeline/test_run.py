"""What `scripts/pipeline` calls growth, and whom it kills when."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.pipeline.run import KILLED_IN, planned_kills
from tests.pipeline.service import LONG_S, MIB, WARM_S, Life

HOUR_S = 3600


def life(size_mib) -> Life:
    """A process of an hour, sampled every five seconds."""
    samples = [(age, Counter(java=int(size_mib(age / 60) * MIB))) for age in range(0, HOUR_S, 5)]
    return Life(0.0, samples)


@pytest.mark.parametrize(
    ("size_mib", "slope", "grows"),
    [
        (lambda minute: 600 + 4 * minute, 4, True),
        (lambda minute: 600 + 200 * min(1, minute / 4), 0, False),  # while it warms up
        (lambda minute: 600 + 50 * (minute % 3), 0, False),  # a heap between two collections
        (lambda minute: 600 + 5 * max(0, minute - 30), 4.2, True),
    ],
    ids=["leak", "plateau", "saw", "late-leak"],
)
def test_memory_of_a_process_grows_where_its_line_rises(size_mib, slope, grows) -> None:
    line = life(size_mib).lines()["all"]
    assert line.grows is grows
    assert line.slope_mib_per_minute == pytest.approx(slope, abs=0.4)


def test_programs_of_a_process_have_lines_of_their_own() -> None:
    samples = [
        (age, Counter(java=900 * MIB, python=(100 + age // 60) * MIB)) for age in range(0, 1800, 5)
    ]
    lines = Life(0.0, samples).lines()
    assert {name: round(line.slope_mib_per_minute) for name, line in lines.items()} == {
        "java": 0, "python": 1, "all": 1,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_kills_are_shared_out_and_leave_every_process_a_long_life(seed) -> None:
    kills = planned_kills(random.Random(seed), 20, HOUR_S)
    assert [at_s for at_s, _ in kills] == sorted(at_s for at_s, _ in kills)
    assert Counter(actor for _, actor in kills) == dict.fromkeys(KILLED_IN, 5)
    ours = [at_s for at_s, actor in kills if actor in ("writer", "resolver")]
    assert HOUR_S - max(ours) > LONG_S + WARM_S
