from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from tableformat.errors import CorruptDataError
from tableformat.scan.key_fields import key_path, key_schema, merged_fields


def opt(field_id, name, kind, **extra):
    return NestedField(field_id, name, kind, required=False, **extra)


OLD = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    opt(2, "gone", StringType()),
    opt(
        3,
        "s",
        StructType(opt(4, "x", LongType()), opt(5, "y", StructType(opt(6, "z", DateType())))),
    ),
    opt(7, "l", ListType(8, LongType(), False)),
    opt(9, "d", DecimalType(5, 2)),
    schema_id=0,
)
NEW = Schema(
    NestedField(1, "key", LongType(), required=True),
    opt(3, "t", StructType(opt(5, "y", StructType(opt(6, "z", TimestampType()))))),
    opt(9, "d", DecimalType(20, 2)),
    opt(10, "added", IntegerType(), initial_default=7),
    schema_id=1,
)


@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD), (OLD, NEW, OLD)])
def test_field_has_the_type_that_the_others_were_promoted_to(order) -> None:
    merged = merged_fields(order)
    kinds = {field_id: str(field.field_type) for field_id, field in merged.items()}
    assert kinds == {
        1: "long",
        2: "string",
        4: "long",
        6: "timestamp",
        9: "decimal(20, 2)",
        10: "int",
    }


@pytest.mark.parametrize("read", [LongType(), StringType()])
def test_types_that_no_promotion_joins_are_those_of_the_schema_that_is_read(read) -> None:
    """REPLACE TABLE keeps the ids of columns by their names."""
    schemas = [Schema(opt(1, "id", kind)) for kind in (LongType(), StringType(), IntegerType())]
    last = Schema(opt(1, "id", read))
    assert merged_fields([*schemas, last])[1].field_type == read
    assert key_schema([*schemas, last], [1]).find_field(1).field_type == read


def test_dropped_and_nested_columns_are_read_by_their_ids() -> None:
    schema = key_schema((OLD, NEW), [1, 2, 6, 4, 10])
    assert [(f.field_id, f.name, f.required) for f in schema.fields] == [
        (1, "k1", False),
        (2, "k2", False),
        (3, "k3", False),
        (10, "k10", False),
    ]
    assert schema.find_field(10).initial_default == 7
    nested = schema.find_field(3).field_type
    assert {child.field_id for child in nested.fields} == {4, 5}
    assert key_path(schema, 6) == ("k3", "y", "z")
    assert key_path(schema, 4) == ("k3", "x")
    assert key_path(schema, 2) == ("k2",)


@pytest.mark.parametrize("field_id", [42, 8, 3])
def test_id_that_is_no_column_is_refused(field_id: int) -> None:
    """Unknown, inside a list, or a struct itself: none can be compared."""
    with pytest.raises(CorruptDataError, match=f"Cannot find required field for ID {field_id}"):
        key_schema((OLD, NEW), [1, field_id])
