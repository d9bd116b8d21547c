"""Seeds of groups: several tables of one stream, published together (`sim_groups`)."""

from __future__ import annotations

import pytest

import resolver.cut_plan
from tableformat.catalog.pointer import PointerCatalog
from tests.support.goals import goal
from tests.support.sim_groups import run_group_seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
def test_group_seed_shows_one_cut_at_every_instant(seed):
    result = run_group_seed(seed, steps=1_000)
    goal("G1", seeds=1, steps=result.steps)
    assert result.violation is None, f"seed {seed}: {result.violation}"


@pytest.mark.slow
def test_the_same_group_seed_twice_is_the_same_run():
    first, second = (run_group_seed(3, steps=600).log_hash for _ in range(2))
    assert first == second


def one_by_one(monkeypatch):
    """Members are published one by one, in a catalog that commits groups."""

    def swap(self, swaps):
        return all(
            self._pointers.swap(each.identifier, expected=each.expected, new=each.new)
            for each in swaps
        )

    monkeypatch.setattr(PointerCatalog, "_swap_pointers", swap)


def incomplete(monkeypatch):
    """A batch counts as whole wherever it is staged."""
    real = resolver.cut_plan._newest_whole

    def newest(batches, staged, **given):
        return real(batches, dict.fromkeys(staged, 1 << 40), **given)

    monkeypatch.setattr(resolver.cut_plan, "_newest_whole", newest)


def all_that_waits(monkeypatch):
    """A table is published with all that waits on it, whatever the cut."""

    def covered(self, cut):
        return self.waiting[-1].snapshot.snapshot_id if self.waiting else None

    monkeypatch.setattr(resolver.cut_plan._Member, "covered", covered)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant", [one_by_one, incomplete, all_that_waits], ids=lambda p: p.__name__
)
def test_planted_bug_of_group_publishes_is_found(plant, monkeypatch):
    plant(monkeypatch)
    assert any(run_group_seed(seed, steps=900).violation is not None for seed in range(1, 31))
