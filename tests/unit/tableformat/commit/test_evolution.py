import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    BinaryType,
    FixedType,
    IntegerType,
    LongType,
    StringType,
    UUIDType,
)

from tableformat.commit.evolution import (
    update_properties,
    update_schema,
    update_spec,
    upgrade_format_version,
)
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
)
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.table_checker import check_table


@pytest.fixture
def table():
    table = CommitTable(partitioned=True)
    table.append(table.data("x"))
    return table


def evolve(table, function, *args, **kwargs):
    return function(table.environment, IDENTIFIER, *args, **kwargs)


def test_added_column_gets_a_fresh_id_and_its_default(table):
    state = evolve(
        table, update_schema, lambda s: s.add_column("amount", LongType(), default_value=7)
    )
    field = state.metadata.schema().find_field("amount")
    assert field.field_id == 4
    assert (field.initial_default, field.write_default) == (7, 7)
    assert state.metadata.last_column_id == 4
    assert len(state.metadata.schemas) == 2


def test_schema_edits_of_every_kind(table):
    def edit(schema):
        schema.rename_column("note", "remark")
        schema.add_column("n", IntegerType())
        schema.move_first("n")

    state = evolve(table, update_schema, edit)
    assert [f.name for f in state.metadata.schema().fields] == ["n", "id", "part", "remark"]
    state = evolve(table, update_schema, lambda s: s.update_column("n", LongType()))
    assert state.metadata.schema().find_type("n") == LongType()
    state = evolve(table, update_schema, lambda s: s.delete_column("n"))
    assert [f.name for f in state.metadata.schema().fields] == ["id", "part", "remark"]
    assert state.metadata.last_column_id == 4
    state = evolve(table, update_schema, lambda s: s.add_column("n", StringType()))
    assert state.metadata.schema().find_field("n").field_id == 5


@pytest.mark.parametrize(
    ("have", "want"),
    [(StringType(), BinaryType()), (BinaryType(), StringType()), (FixedType(16), UUIDType())],
)
def test_type_that_the_spec_does_not_promote_to_is_refused(table, have, want):
    """Rows that are there could not be read as it, here or in other engines."""
    evolve(table, update_schema, lambda s: s.add_column("x", have))
    before = table.state
    with pytest.raises(InvalidInputError, match=r"only be widened.*column=x"):
        evolve(table, update_schema, lambda s: s.update_column("x", want))
    assert table.state.metadata == before.metadata


def test_schema_that_comes_back_is_not_added_again(table):
    evolve(table, update_schema, lambda s: s.rename_column("note", "remark"))
    state = evolve(table, update_schema, lambda s: s.rename_column("remark", "note"))
    assert state.metadata.current_schema_id == 0
    assert len(state.metadata.schemas) == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.add_column("id", LongType()),
        lambda s: s.delete_column("nothing"),
        lambda s: s.update_column("id", IntegerType()),
        lambda s: s.delete_column("id"),  # the key
        lambda s: s.add_column("must", LongType(), required=True),
    ],
    ids=["taken", "missing", "narrower", "key", "required"],
)
def test_impossible_edit_is_refused_and_nothing_changes(table, edit):
    before = table.state.metadata_location
    with pytest.raises(InvalidInputError):
        evolve(table, update_schema, edit)
    assert table.state.metadata_location == before


def test_edit_is_run_again_when_a_data_commit_wins_the_swap(table):
    def intrude(_):
        table.catalog.before_commit = None
        table.append(table.data("y"))

    table.catalog.before_commit = intrude
    state = evolve(table, update_schema, lambda s: s.add_column("n", LongType()))
    assert "n" in state.metadata.schema().column_names
    assert set(table.live()) == {"x", "y"}


def test_concurrent_schema_change_is_a_conflict(table):
    def intrude(_):
        table.catalog.before_commit = None
        evolve(table, update_schema, lambda s: s.add_column("theirs", LongType()))

    table.catalog.before_commit = intrude
    with pytest.raises(CommitConflictError, match="structure"):
        evolve(table, update_schema, lambda s: s.add_column("ours", LongType()))
    assert "ours" not in table.state.metadata.schema().column_names


@pytest.mark.parametrize("moment", ["before", "after"])
def test_lost_answer_of_an_edit_is_settled_by_looking(table, moment):
    def lose(_):
        setattr(table.catalog, f"{moment}_commit", None)
        raise CommitUnknownError("answer lost")

    setattr(table.catalog, f"{moment}_commit", lose)
    if moment == "before":
        with pytest.raises(CommitUnknownError):
            evolve(table, update_schema, lambda s: s.add_column("n", LongType()))
    else:
        state = evolve(table, update_schema, lambda s: s.add_column("n", LongType()))
        assert "n" in state.metadata.schema().column_names


def test_files_keep_their_spec_after_partition_evolution(table):
    state = evolve(table, update_spec, lambda s: s.add_field("id", BucketTransform(4), "id_bucket"))
    assert state.metadata.default_spec_id == 1
    new = table.data("y").with_(spec_id=1, partition=("a", 3))
    table.append(new)
    assert {name: e.data_file.spec_id for name, e in table.live().items()} == {"x": 0, "y": 1}
    check_table(table.store.get, table.state.metadata_location)


def test_partition_field_that_comes_back_gets_its_old_id(table):
    evolve(table, update_spec, lambda s: s.remove_field("part"))
    state = evolve(table, update_spec, lambda s: s.add_identity("part"))
    assert state.metadata.spec().fields[0].field_id == 1000
    assert state.metadata.default_spec_id == 0
    evolve(table, update_spec, lambda s: s.remove_field("part"))
    state = evolve(table, update_spec, lambda s: s.add_identity("part").add_identity("note"))
    assert [field.field_id for field in state.metadata.spec().fields] == [1000, 1001]


def test_file_of_an_unknown_spec_is_refused(table):
    with pytest.raises(InvalidInputError, match="partition spec"):
        table.append(table.data("y").with_(spec_id=9))
    with pytest.raises(InvalidInputError, match="does not fit its spec"):
        table.append(table.data("y").with_(partition=()))


def test_commit_after_its_partition_column_was_dropped_keeps_old_values(table):
    evolve(table, update_spec, lambda s: s.remove_field("part"))
    evolve(table, update_schema, lambda s: s.delete_column("part"))
    x = table.live()["x"]
    table.append(table.data("y").with_(spec_id=1, partition=()))
    table.row_delta(deletes=[table.vector(x.data_file, "p")])
    assert table.live()["x"].data_file.partition == ("a",)
    check_table(table.store.get, table.state.metadata_location)


def test_properties_are_set_and_removed(table):
    evolve(table, update_properties, updates={"a": "1", "b": "2"})
    state = evolve(table, update_properties, updates={"c": "3"}, removals=["a", "unknown"])
    assert state.metadata.properties == {"b": "2", "c": "3"}
    before = table.state.metadata_location
    evolve(table, update_properties, updates={"c": "3"}, removals=["a"])
    assert table.state.metadata_location == before


def test_properties_that_make_no_sense_are_refused(table):
    with pytest.raises(InvalidInputError, match="both set and removed"):
        evolve(table, update_properties, updates={"a": "1"}, removals=["a"])
    with pytest.raises(InvalidInputError, match="string"):
        evolve(table, update_properties, updates={"a": 1})


def test_upgrade_of_a_v3_table_does_nothing(table):
    before = table.state.metadata_location
    evolve(table, upgrade_format_version)
    assert table.state.metadata_location == before
