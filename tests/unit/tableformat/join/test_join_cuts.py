"""Kept joins from cut to cut: all tables as of one point of the stream that feeds them."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from resolver import resolve, resolve_group
from tableformat import NotFoundError, TableCatalog
from tableformat.cdc.cuts import Cut, CutName, newest_cut
from tests.support.bank import QUERY, Bank
from tests.support.memory_tables import memory_catalog

DEFINITION: dict[str, Any] = {
    "into": "joins.both",
    "from": {"table": "bank.a", "as": "a"},
    "join": [{"table": "bank.b", "as": "b", "on": {"a.id": "b.id"}}],
    "select": {"id": "a.id", "a": "a.balance", "b": "b.balance"},
}


class World:
    """Two tables of a bank; money moves between them, so that only cuts have all of it."""

    def __init__(self, catalog: TableCatalog) -> None:
        self.catalog = catalog
        self.bank = Bank(("bank.a", "bank.b"))
        self.tables = self.bank.create(catalog)

    def transfer(self) -> None:
        self.bank.stage(self.tables, self.bank.transfer(random.Random(len(self.bank.batches))))

    def publish(self) -> None:
        resolve_group(list(self.tables.values()))

    def round(self, **options: Any) -> tuple[str | None, bool]:
        """The cut of a round, and whether it staged something."""
        with self.catalog.delta_join(DEFINITION, **options) as join:
            done = join.run()
        return done.cut, done.snapshot_id is not None

    def shows(self, number: int) -> bool:
        """Whether the result is the join of the tables after some batches."""
        rows = self.catalog.load_table("joins.both").scan(branch="staging").to_arrow().to_pylist()
        a, b = (self.bank.states[number][name] for name in self.bank.names)
        return {row["id"]: (row["a"], row["b"]) for row in rows} == {i: (a[i], b[i]) for i in a}


@pytest.fixture
def world(tmp_path) -> World:
    return World(memory_catalog(str(tmp_path / "index")))


def test_rounds_go_from_cut_to_cut_whatever_single_tables_show(world):
    world.transfer()
    world.publish()
    assert world.round(cut="bank") == (f"{QUERY}/0", True)
    assert world.shows(1)
    world.transfer()
    resolve(world.tables["bank.a"])
    assert world.round(cut="bank") == (f"{QUERY}/0", False)
    assert world.shows(1)
    world.publish()
    assert world.round(cut="bank") == (f"{QUERY}/1", True)
    assert world.shows(2)
    result = world.catalog.load_table("joins.both").state.head("staging")
    said = json.loads(result.summary["icefold.source-offsets"])
    assert said["cut"] == f"{QUERY}/1"


def test_round_beyond_the_cut_is_taken_back_by_one_with_it(world):
    world.transfer()
    world.publish()
    world.round(cut="bank")
    world.transfer()
    resolve(world.tables["bank.a"])
    assert world.round() == (None, True)
    assert not world.shows(1)
    assert world.round(cut="bank") == (f"{QUERY}/0", True)
    assert world.shows(1)


def test_tables_without_a_common_cut_are_named(world):
    with pytest.raises(NotFoundError, match=r"no cut has all .*bank\.a.*bank\.b.*resolve --cut"):
        world.round(cut="bank")
    world.transfer()
    world.publish()
    world.catalog.create_table("bank.c", pa.schema([("id", pa.int64())]), primary_key=["id"])
    step = {"table": "bank.c", "as": "c", "on": {"a.id": "c.id"}}
    with (
        world.catalog.delta_join(
            DEFINITION | {"into": "joins.more", "join": [*DEFINITION["join"], step]}, cut="bank"
        ) as join,
        pytest.raises(NotFoundError, match=r"no cut has all .*tables=\['bank\.c'\]"),
    ):
        join.run()


def test_command_names_the_cut(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tf.open_catalog("local", warehouse="warehouse"))
    world.transfer()
    world.publish()
    (tmp_path / "join.json").write_text(json.dumps(DEFINITION))
    done = CliRunner().invoke(cli, ["join", "join.json", "--cut", "bank"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"round 0, cut {QUERY}/0: all rows; 4 rows and 0 deletes staged")


def test_newest_cut_is_that_of_the_stream_of_the_tables_and_never_an_older_one():
    def cut(query: str, batch: int, *tables: str) -> Cut:
        name = CutName(query, batch)
        return Cut(name=name, published_ms=0, tables=tables, snapshots=dict.fromkeys(tables, 1))

    cuts = [cut("other", 9, "s.x"), cut("q", 4, "s.a", "s.b"), cut("q", 3, "s.a", "s.b", "s.c")]
    assert newest_cut(cuts, ["s.a", "s.b"]) is cuts[1]
    with pytest.raises(NotFoundError, match=r"newest cut lacks a table; tables=\['s\.c'\], .*q/4"):
        newest_cut(cuts, ["s.a", "s.c"])  # set aside since: the join would stand still unnoticed
