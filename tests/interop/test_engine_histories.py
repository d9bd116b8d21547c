"""Random histories of Spark SQL beside icefold's staging, publishes and maintenance."""

from __future__ import annotations

import pytest

from tests.support.engine_histories import EngineHistory
from tests.support.engine_meddlers import MeddledHistory
from tests.support.table_histories import run

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(2))
def test_history_with_spark_equals_the_model(shared, seed) -> None:
    run(EngineHistory, shared, seed, steps=15)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_long_history_with_spark_equals_the_model(shared, seed) -> None:
    run(EngineHistory, shared, seed, steps=30)


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2000, 2060))],
)
def test_history_with_meddlers_equals_the_model(shared, seed) -> None:
    run(MeddledHistory, shared, seed, steps=25)
