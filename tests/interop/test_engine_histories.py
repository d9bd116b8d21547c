"""Random histories of SQL engines beside icefold's staging, publishes and maintenance."""

from __future__ import annotations

import pytest

from tests.support.engine_histories import run
from tests.support.trino import trino

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(3))
def test_history_with_spark_equals_the_model(shared, tmp_path, seed) -> None:
    run(shared, None, tmp_path, seed, steps=15)


@pytest.mark.parametrize("seed", range(100, 102))
def test_history_with_spark_and_trino_equals_the_model(shared, tmp_path, seed) -> None:
    run(shared, trino(), tmp_path, seed, steps=15)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_long_history_equals_the_model(shared, tmp_path, seed) -> None:
    run(shared, trino() if seed % 2 else None, tmp_path, seed, steps=30)
