"""Spark's commits with icefold in their middle, the other way round, and PyIceberg beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.commit_gate import CommitGate, commit_gate
from tests.support.engine_crossings import CrossedHistory, run

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def gate(java, server) -> Iterator[CommitGate]:
    gate = commit_gate(server.uri)
    java.add_catalog("gate", {"type": "rest", "uri": gate.uri})
    yield gate
    java.configure({"spark.wap.id": None, "spark.wap.branch": None})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seed",
    [107, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1000, 1060))],
)
def test_history_with_engines_in_the_middle_equals_the_model(shared, gate, seed) -> None:
    run(replace(shared, prefix="gate"), gate, seed, steps=14)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(2000, 2030))
def test_history_with_a_spark_of_icefolds_own_equals_the_model(
    shared, gate, spark, seed, monkeypatch
) -> None:
    monkeypatch.setattr(CrossedHistory, "engine", spark)
    run(replace(shared, prefix="gate"), gate, seed, steps=14)
