"""SIGKILL at the fail points of a group publish: all tables show the cut, or none does."""

from __future__ import annotations

import random

import pytest

import tableformat as tf
from resolver import resolve_group
from tableformat.catalog.pointer import PointerCatalog
from tests.support.bank import Bank, balances_of
from tests.support.crash_child import KILLED, lock_of, open_table, run_until_killed
from tests.support.table_checker import check_table

NAMES = ("bank.a", "bank.b", "bank.c")
POINTS = [
    ("group.after_compute", 1), ("resolve.after_dv_write", 2), ("catalog.before_metadata_put", 2),
    ("catalog.before_swap", 1), ("catalog.after_swap", 1), ("group.after_publish", 1),
    ("resolve.after_publish", 2), ("resolve.after_apply", 1), ("resolve.after_apply", 2),
]  # fmt: skip
ALONE = [("group.between_tables", 1), ("group.between_tables", 2), ("catalog.after_swap", 2)]


def run_group(table):
    catalog = tf.TableCatalog(table.environment)
    resolve_group([catalog.load_table(name) for name in NAMES], lock=lock_of(table))


def run_alone(table):
    """In a catalog that commits one table at a time."""
    PointerCatalog.commits_groups = property(lambda _: False)
    run_group(table)


class World:
    """Three tables with a published cut, and two batches that wait."""

    def __init__(self, folder):
        self.warehouse = str(folder / "warehouse")
        self.bank = Bank(NAMES)
        self.tables = self.bank.create(tf.open_catalog("local", warehouse=self.warehouse))
        self.rng = random.Random(7)
        self.batch(2)
        run_group(self.tables[NAMES[0]])
        self.batch(3)
        self.batch(3)

    def batch(self, tables):
        self.bank.stage(self.tables, self.bank.transfer(self.rng, None, tables))

    def shown(self):
        """The newest batch that each table's main shows."""
        states = self.bank.states
        held = {name: balances_of(table.refresh()) for name, table in self.tables.items()}
        return {max(n for n, s in enumerate(states) if s[name] == held[name]) for name in NAMES}

    def check_pinned(self):
        cut = tf.open_catalog("local", warehouse=self.warehouse).cut("bank")
        held = {n: balances_of(self.tables[n].refresh(), cut.snapshot_id(n)) for n in cut.tables}
        state = self.bank.states[cut.cut.name.batch + 1]
        assert held == {name: state[name] for name in cut.tables}

    def check_end(self):
        assert self.shown() == {len(self.bank.batches)}
        for table in self.tables.values():
            check_table(table.environment.store.get, table.refresh().metadata_location)
        self.check_pinned()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.mark.parametrize(("point", "hits"), POINTS)
def test_killed_group_publish_shows_one_cut_and_run_again_ends_the_same(world, point, hits):
    code = run_until_killed(run_group, world.warehouse, NAMES[0], point=point, hits=hits)
    assert code == KILLED
    assert len(world.shown()) == 1
    world.check_pinned()
    world.batch(2)
    run_group(open_table(world.warehouse, NAMES[0]))
    world.check_end()


@pytest.mark.parametrize(("point", "hits"), ALONE)
def test_killed_between_tables_where_they_are_published_one_by_one(world, monkeypatch, point, hits):
    code = run_until_killed(run_alone, world.warehouse, NAMES[0], point=point, hits=hits)
    assert code == KILLED
    assert len(world.shown()) == 2
    world.check_pinned()
    world.batch(2)
    monkeypatch.setattr(PointerCatalog, "commits_groups", property(lambda _: False))
    begun = tf.open_catalog("local", warehouse=world.warehouse)
    run_group(open_table(world.warehouse, NAMES[0]))
    assert [each.name.batch for each in begun.cuts("bank")] == [2, 0]
    run_group(open_table(world.warehouse, NAMES[0]))
    world.check_end()
