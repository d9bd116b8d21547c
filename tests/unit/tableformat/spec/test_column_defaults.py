"""Defaults of columns are what was meant, through JSON and fresh field ids."""

import datetime as dt
import json
import math
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

import tableformat as tf
from tableformat.errors import InvalidInputError
from tableformat.spec.column_defaults import exact_default

ROWS = pa.table({"id": pa.array([1], pa.int64())})


@pytest.fixture
def table(tmp_path):
    table = tf.open_catalog("local", warehouse=str(tmp_path)).create_table(
        "a.t", ROWS.schema, primary_key=["id"]
    )
    table.append(ROWS)
    return table


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (iceberg.IntegerType(), -(2**31), -(2**31)),
        (iceberg.LongType(), "9223372036854775807", 2**63 - 1),
        (iceberg.FloatType(), 0.1, 0.10000000149011612),
        (iceberg.DoubleType(), -0.0, -0.0),
        (iceberg.DecimalType(9, 2), "1.5", Decimal("1.50")),
        (iceberg.DecimalType(9, 2), 1.25, Decimal("1.25")),
        (iceberg.DecimalType(38, 0), 10**38 - 1, Decimal(10**38 - 1)),
        (iceberg.DateType(), dt.date(2020, 1, 2), 18263),
        (iceberg.TimeType(), "00:00:00.000001", 1),
        (iceberg.UUIDType(), UUID(int=5), UUID(int=5).bytes),
        (iceberg.StringType(), "é\U0001f600", "é\U0001f600"),
    ],
)
def test_default_is_the_value_that_was_given(kind, given, kept) -> None:
    found = exact_default(given, kind, "x")
    assert found == kept
    assert not isinstance(kept, float) or math.copysign(1, found) == math.copysign(1, kept)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (iceberg.IntegerType(), 2**31),
        (iceberg.IntegerType(), "7.9"),
        (iceberg.LongType(), -(2**63) - 1),
        (iceberg.FloatType(), 1e39),
        (iceberg.DoubleType(), math.inf),
        (iceberg.DoubleType(), "1e400"),
        (iceberg.DoubleType(), math.nan),
        (iceberg.DecimalType(9, 2), Decimal("12345678.00")),
        (iceberg.DecimalType(9, 2), 1.255),
        (iceberg.DecimalType(38, 0), 10**38),
        (iceberg.DecimalType(9, 2), "NaN"),
        (iceberg.TimeType(), "22:31:08.123456789"),
        (iceberg.FixedType(3), b"ab"),
        (iceberg.ListType(1, iceberg.IntegerType()), [1]),
    ],
)
def test_default_that_the_column_cannot_hold_is_refused_and_nothing_changes(
    table, kind, given
) -> None:
    """PyIceberg keeps the largest int, cuts digits, or writes JSON's null."""
    before = table.metadata_location
    with pytest.raises(InvalidInputError, match=r"cannot have this default.*column=x"):
        table.update_schema(lambda s: s.add_column("x", kind, default_value=given))
    table.update_schema(lambda s: s.add_column("y", iceberg.IntegerType(), default_value=1))
    with pytest.raises(InvalidInputError, match=r"cannot have this default.*column=y"):
        table.update_schema(lambda s: s.set_default_value("y", 2**31))
    assert table.refresh().metadata_location != before
    assert [field.name for field in table.schema().fields] == ["id", "y"]


def test_widened_column_reads_the_same_default_as_before(tmp_path) -> None:
    """Metadata of others say 0.1 of a float."""
    columns = [
        iceberg.NestedField(1, "id", iceberg.LongType(), required=True),
        iceberg.NestedField(2, "x", iceberg.FloatType(), initial_default=0.1, write_default=0.1),
    ]
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("a.t", Schema(*columns), primary_key=["id"])
    table.append(ROWS)
    [before] = table.scan().to_arrow()["x"].to_pylist()
    table.update_schema(lambda s: s.update_column("x", iceberg.DoubleType()))
    table.append(pa.table({"id": pa.array([2], pa.int64())}))
    assert table.scan().to_arrow()["x"].to_pylist() == [before, before]
    assert stored_fields(table)["x"]["initial-default"] == before != 0.1


def test_defaults_survive_fresh_field_ids_at_every_level(table, tmp_path) -> None:
    inner = iceberg.StructType(
        iceberg.NestedField(31, "n", iceberg.IntegerType(), initial_default=5, write_default=6)
    )
    columns = [
        iceberg.NestedField(10, "id", iceberg.LongType(), required=True),
        iceberg.NestedField(20, "s", iceberg.StringType(), initial_default="i", write_default="w"),
        iceberg.NestedField(30, "of", inner),
        iceberg.NestedField(40, "many", iceberg.ListType(41, inner)),
        iceberg.NestedField(50, "map", iceberg.MapType(51, iceberg.StringType(), 52, inner)),
    ]
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    made = catalog.create_table("a.made", Schema(*columns), primary_key=["id"])
    for each in columns[1:]:
        table.update_schema(
            lambda s, each=each: s.add_column(
                each.name, each.field_type, default_value=each.initial_default
            )
        )
    for one, write in ((made, "w"), (table, "i")):
        fields = stored_fields(one)
        assert (fields["s"]["initial-default"], fields["s"]["write-default"]) == ("i", write)
        for kind in (
            fields["of"]["type"],
            fields["many"]["type"]["element"],
            fields["map"]["type"]["value"],
        ):
            [field] = kind["fields"]
            assert (field["initial-default"], field["write-default"]) == (5, 6)


def test_new_table_with_a_default_that_its_column_cannot_hold_is_refused(tmp_path) -> None:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    schema = Schema(
        iceberg.NestedField(1, "id", iceberg.LongType(), required=True),
        iceberg.NestedField(2, "x", iceberg.DoubleType(), write_default=math.inf),
    )
    with pytest.raises(InvalidInputError, match=r"cannot have this default.*column=x"):
        catalog.create_table("a.t", schema, primary_key=["id"])


def stored_fields(table):
    """The current schema's fields as the metadata file has them."""
    with table.environment.store.open_input(table.refresh().metadata_location) as source:
        metadata = json.loads(source.read())
    [schema] = [
        each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]
    ]
    return {field["name"]: field for field in schema["fields"]}
