"""Random histories of Iceberg's core API beside icefold's staging, publishes and maintenance."""

from __future__ import annotations

import pytest

from tests.support.core_histories import CoreHistory
from tests.support.table_histories import run

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(2))
def test_history_with_the_core_api_equals_the_model(shared, seed) -> None:
    run(CoreHistory, shared, seed, steps=20)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_long_history_with_the_core_api_equals_the_model(shared, seed) -> None:
    run(CoreHistory, shared, seed, steps=50)
