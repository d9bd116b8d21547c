"""REPLACE TABLE with columns of other types: what was written before is read as it was, or told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from maintenance import CompactOptions, compact
from resolver import resolve
from resolver.cursor import LostCursorError
from tableformat import open_catalog
from tableformat.errors import CommitConflictError, UnsupportedError
from tests.support.foreign_tool import ForeignTool
from tests.support.interruptions import interrupt

LONG = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
NEW = {
    "text": {"id": "string", "note": "string"},
    "narrower": {"id": "int", "note": "string"},
    "another column": {"key": "long", "id": "string"},
}
TOLD = r"schema 0 cannot be read with schema 1, as the table was replaced .*by snapshot \d+"


class World:
    """A table with a row, a publish and a staged change, that comes back with other columns."""

    def __init__(self, folder, columns: dict[str, str]) -> None:
        self.columns = columns
        catalog = open_catalog("local", warehouse=f"{folder}/warehouse")
        self.table = catalog.create_table("t.rows", LONG, primary_key=["id"])
        self.foreign = ForeignTool(folder / "warehouse", "t", "rows")
        self.table.append(rows(1, 2, 3))
        self.table.stage(rows(3, 4), pa.table({"id": [2]}))
        resolve(self.table)
        self.published = self.head()

    def head(self) -> int:
        return self.table.refresh().current_snapshot().snapshot_id

    def stage(self) -> None:
        self.table.refresh().stage(rows(5), pa.table({"id": [1]}))

    def replace(self) -> None:
        self.foreign.replace_columns(self.columns)
        self.table.refresh().append(self.new())

    def new(self) -> pa.Table:
        kinds = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
        fields = [pa.field(n, kinds[kind], n == "note") for n, kind in self.columns.items()]
        one = {n: "9" if kind == "string" else 9 for n, kind in self.columns.items()}
        return pa.Table.from_pylist([one], pa.schema(fields))

    def main(self) -> list:
        return self.table.refresh().scan().to_arrow().to_pylist()


def rows(*keys: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "note": "old"} for key in keys], LONG)


def ids(table: pa.Table) -> list:
    return sorted(table["id"].to_pylist())


@pytest.fixture(params=NEW)
def world(request, tmp_path):
    return World(tmp_path, NEW[request.param])


def test_branches_and_changes_of_before_are_read_as_they_were(world):
    world.stage()
    world.replace()
    table = world.table.refresh()
    assert ids(table.scan(branch="staging").to_arrow()) == [3, 4, 5]
    assert table.scan(branch="staging", filter="id = 5").count() == 1
    staged = table.changes(world.published, "staging").to_arrow()
    kinds, keys = (staged[name].to_pylist() for name in ("_change_type", "id"))
    assert sorted(zip(kinds, keys, strict=True)) == [("+I", 5), ("-D", 1)]
    with pytest.raises(UnsupportedError, match=TOLD):
        table.changes(world.published).to_arrow()
    assert table.changes(None).to_arrow().num_rows == 1
    assert table.changes(None, world.published).to_arrow().num_rows > 0


@pytest.mark.parametrize("publish", ["link", "rewrite"])
def test_what_was_staged_before_does_not_come_to_the_new_table(world, publish):
    world.table.set_properties({"icefold.publish": publish})
    world.stage()
    world.replace()
    before = world.main()
    with pytest.raises(LostCursorError) as lost:
        resolve(world.table.refresh())
    told = int(lost.value.context["stopped_at"])
    with pytest.raises(UnsupportedError, match=TOLD) as refused:
        resolve(world.table.refresh(), from_snapshot=told, skip_unpublished=True)
    assert "drop the staging branch" in str(refused.value)
    assert world.main() == before
    world.table.refs.drop("staging")
    world.table.refresh().stage(world.new())
    resolve(world.table.refresh())
    assert world.main() == before


def test_writer_that_goes_on_where_it_staged_before_loses_nothing_of_it(world):
    world.stage()
    world.replace()
    world.table.refresh().stage(world.new())
    with pytest.raises(UnsupportedError, match=TOLD):
        world.table.refresh().scan(branch="staging").to_arrow()
    with pytest.raises(LostCursorError) as lost:
        resolve(world.table.refresh())
    told = int(lost.value.context["stopped_at"])
    with pytest.raises(UnsupportedError, match=TOLD) as refused:
        resolve(world.table.refresh(), from_snapshot=told, skip_unpublished=True)
    last = int(str(refused.value).split("--from-snapshot ")[1].split(";")[0])
    report = resolve(world.table.refresh(), from_snapshot=last, skip_unpublished=True)
    assert "1 staged snapshot" in report.describe()
    assert world.main() == world.new().to_pylist()


def test_append_of_before_is_not_picked_onto_the_new_table(world):
    main = world.head()
    world.table.refs.create_branch("audit")
    world.foreign.append([(7, "old")], branch="audit")
    picked = world.foreign.head("audit")
    assert picked != main
    world.replace()
    with pytest.raises(UnsupportedError, match=TOLD):
        world.table.refs.cherry_pick(snapshot_id=picked)
    assert world.main() == world.new().to_pylist()


@pytest.mark.parametrize("write", ["append", "stage"])
def test_commit_that_the_replacement_overtakes_is_a_conflict(world, write):
    interrupt(world.table, "commit.before_swap", world.replace)
    with pytest.raises(CommitConflictError, match="the table was replaced meanwhile"):
        getattr(world.table, write)(rows(8))
    assert world.main() == world.new().to_pylist()
    assert not compact(world.table.refresh(), CompactOptions(rewrite_all=True)).errors
