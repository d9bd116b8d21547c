"""IMMUTABLE and sequence columns: what can be declared, and what evolution does to it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.types import LongType, StringType

from maintenance.cli.main import cli
from tableformat import InvalidInputError, NotFoundError, Table
from tableformat.commit.evolution import update_schema
from tableformat.errors import AlreadyExistsError
from tableformat.spec.constraints import immutable_columns, sequence_field_id
from tableformat.spec.names import IMMUTABLE_COLUMNS, IMMUTABLE_FIELD_IDS, SEQUENCE_COLUMN
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("city", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([pa.field("zip", pa.string())])),
    ]
)


def create(**more: object) -> Table:
    options: dict[str, object] = {"primary_key": ["id"], **more}
    return memory_catalog().create_table("t.rows", SCHEMA, **options)  # type: ignore[arg-type]


def test_constraint_has_default_name_and_is_not_enforced() -> None:
    constraint = create(immutable_columns=["region", "city"]).immutable_columns
    assert constraint is not None
    assert constraint.name == "IMMUTABLE_COLUMNS_region_city"
    assert (constraint.columns, constraint.enforced) == (("region", "city"), False)


def test_constraint_without_a_primary_key_is_refused_with_the_exact_text() -> None:
    with pytest.raises(InvalidInputError) as error:
        create(primary_key=[], immutable_columns=["region"])
    expected = "IMMUTABLE constraints must be defined on tables with a primary key."
    assert str(error.value) == expected


def test_constraint_on_the_key_itself_is_accepted_silently() -> None:
    constraint = create(immutable_columns=["id"]).immutable_columns
    assert constraint is not None
    assert constraint.columns == ("id",)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "at least one column"),
        (["region", "region"], "named twice.*column=region"),
        (["nope"], "unknown column.*column=nope"),
        (["tags"], "primitive types.*column=tags"),
        (["tags.element"], "inside a list or a map"),
    ],
)
def test_constraint_that_cannot_be_right_is_refused(columns: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create(immutable_columns=columns)


def test_enforcement_that_is_not_known_is_refused() -> None:
    orders = create(immutable_columns=["region"])
    for wrong in ("except_delete", 1):  # either would allow deletes
        with pytest.raises(InvalidInputError, match="enforced, not, or except for deletes"):
            orders.set_immutable_columns(["region"], enforced=wrong)  # type: ignore[arg-type]


def test_enforcement_without_a_constraint_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no IMMUTABLE constraint to enforce"):
        create(enforce_immutable=True)


def test_table_has_at_most_one_constraint_until_it_is_dropped() -> None:
    table = create().set_immutable_columns(["region"])
    with pytest.raises(AlreadyExistsError, match="at most one"):
        table.set_immutable_columns(["city"])
    table.set_immutable_columns(["region"], name="fixed", enforced=True)
    assert table.immutable_columns is not None
    assert (table.immutable_columns.name, table.immutable_columns.enforced) == ("fixed", True)
    table.drop_immutable_columns()
    assert table.immutable_columns is None
    with pytest.raises(NotFoundError, match="no IMMUTABLE"):
        table.drop_immutable_columns()
    assert table.set_immutable_columns(["city", "place.zip"]).immutable_columns is not None


def test_rename_is_followed_by_field_id_and_keeps_the_name_of_the_constraint() -> None:
    table = create(immutable_columns=["region"]).set_sequence_column("version")
    table.update_schema(lambda s: s.rename_column("region", "area").rename_column("version", "v"))
    constraint = table.immutable_columns
    assert constraint is not None
    assert (constraint.columns, constraint.name) == (("area",), "IMMUTABLE_COLUMNS_region")
    assert table.state.metadata.properties[IMMUTABLE_COLUMNS] == "area"
    assert table.state.metadata.properties[SEQUENCE_COLUMN] == "v"
    table.update_schema(lambda s: s.add_column("region", StringType()))
    assert table.immutable_columns is not None
    assert table.immutable_columns.columns == ("area",)


def test_names_without_ids_are_followed_too_once_we_evolve() -> None:
    """Properties as somebody wrote them by hand, before ids were there."""
    table = create(immutable_columns=["region"])
    properties = dict(table.state.metadata.properties)
    del properties[IMMUTABLE_FIELD_IDS]
    by_hand = table.state.metadata.model_copy(update={"properties": properties})
    found = immutable_columns(by_hand)
    assert found is not None
    assert found.field_ids == (2,)


def test_rename_by_another_engine_changes_nothing() -> None:
    table = create(immutable_columns=["region"])
    before = table.state.metadata
    after = table.update_schema(lambda s: s.rename_column("region", "area")).state.metadata
    foreign = after.model_copy(update={"properties": before.properties})
    found = immutable_columns(foreign)
    assert found is not None
    assert found.columns == ("area",)


@pytest.mark.parametrize("column", ["region", "version"])
def test_declared_column_cannot_be_dropped(column: str) -> None:
    table = create(immutable_columns=["region"]).set_sequence_column("version")
    with pytest.raises(InvalidInputError, match=f"cannot drop a column.*column={column}"):
        table.update_schema(lambda s: s.delete_column(column))
    table.drop_immutable_columns().drop_sequence_column()
    table.update_schema(lambda s: s.delete_column(column))
    assert column not in table.schema().column_names


def test_key_under_a_constraint_may_grow_and_not_change() -> None:
    table = create(immutable_columns=["region"])
    update_schema(
        table.environment,
        table.identifier,
        lambda s: s.add_column("shop", LongType(), required=True, default_value=0),
        allow_incompatible_changes=True,
    )
    table.update_schema(lambda s: s.set_identifier_fields("id", "shop"))
    with pytest.raises(InvalidInputError, match=r"present primary key.*column=id"):
        table.update_schema(lambda s: s.set_identifier_fields("shop"))
    with pytest.raises(InvalidInputError, match="must be defined on tables with a primary key"):
        table.update_schema(lambda s: s.set_identifier_fields())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", "cannot be in the primary key"),
        ("amount", "a type with an order"),
        ("place.zip", "cannot be inside a struct"),
        ("nope", "unknown column"),
    ],
)
def test_sequence_column_that_cannot_be_right_is_refused(column: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create().set_sequence_column(column)


def test_second_sequence_column_is_refused() -> None:
    table = create().set_sequence_column("version").set_sequence_column("version")
    assert sequence_field_id(table.state.metadata) == 4
    with pytest.raises(InvalidInputError, match=r"another sequence column.*declared=version"):
        table.set_sequence_column("region")


def test_properties_of_declarations_are_not_set_by_hand() -> None:
    with pytest.raises(InvalidInputError, match="belongs to a declaration"):
        create().set_properties({IMMUTABLE_COLUMNS: "region"})


def test_command_line_declares_shows_and_drops(tmp_path: object) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["--warehouse", str(tmp_path), "table", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    columns = ("--column", "id:long!", "--column", "region:string", "--primary-key", "id")
    run("create", "t.a", *columns, "--immutable", "region", "--enforce-immutable")
    assert run("immutable", "t.a") == "IMMUTABLE_COLUMNS_region: region (enforced)\n"
    assert "no IMMUTABLE constraint" in run("immutable", "t.a", "--drop")
    assert "(not enforced)" in run("immutable", "t.a", "--columns", "region")
    assert '"immutable": [\n    "region"' in run("describe", "t.a", "--json")
    assert run("sequence", "t.a") == "t.a has no sequence column\n"
    assert run("sequence", "t.a", "--column", "region") == "region\n"
    assert "no sequence column" in run("sequence", "t.a", "--drop")
