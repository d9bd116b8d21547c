from __future__ import annotations

import itertools

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from resolver.keys import KeyField, KeySchema
from tableformat.errors import InvalidInputError, UnsupportedError

SCHEMA = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "price", DecimalType(9, 2)),
    NestedField(4, "ratio", DoubleType()),
    NestedField(5, "tags", ListType(6, StringType())),
    NestedField(7, "props", MapType(8, StringType(), 9, LongType())),
    NestedField(
        10,
        "s",
        StructType(
            NestedField(11, "u", UUIDType()),
            NestedField(12, "t", StructType(NestedField(13, "f", FixedType(4)))),
        ),
    ),
    NestedField(14, "r", FloatType()),
)


def test_fingerprint_names_version_ids_and_types() -> None:
    key = KeySchema.of(SCHEMA, [13, 1, 3, 2, 11])
    assert key.fingerprint == "v1;1:long;2:string;3:decimal(2);11:uuid;13:fixed[4]"
    assert key.field_ids == (1, 2, 3, 11, 13)
    assert [field.path for field in key.fields][-1] == ("s", "t", "f")


def test_r27_order_of_the_ids_given_is_irrelevant() -> None:
    keys = {KeySchema.of(SCHEMA, ids) for ids in itertools.permutations([2, 1, 3])}
    assert len(keys) == 1
    assert KeySchema.of(SCHEMA, {3, 1}) == KeySchema.of(SCHEMA, [1, 3, 3, 1])


def test_renaming_a_column_keeps_the_fingerprint() -> None:
    renamed = Schema(NestedField(1, "other", LongType()))
    assert KeySchema.of(renamed, [1]).fingerprint == KeySchema.of(SCHEMA, [1]).fingerprint


@pytest.mark.parametrize("field_id", [4, 14])
def test_r25_float_keys_are_refused(field_id: int) -> None:
    with pytest.raises(InvalidInputError, match=r"float.*(ratio|r)"):
        KeySchema.of(SCHEMA, [1, field_id])


@pytest.mark.parametrize("field_id", [6, 8, 9, 99])
def test_fields_in_lists_and_maps_and_unknown_ones_are_refused(field_id: int) -> None:
    with pytest.raises(InvalidInputError, match=str(field_id)):
        KeySchema.of(SCHEMA, [field_id])


@pytest.mark.parametrize("field_id", [5, 7, 10])
def test_types_without_key_bytes_are_refused(field_id: int) -> None:
    with pytest.raises(UnsupportedError):
        KeySchema.of(SCHEMA, [field_id])


def test_key_without_fields_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        KeySchema.of(SCHEMA, [])


def test_fields_out_of_order_are_refused() -> None:
    fields = [KeyField(field_id=i, path=(str(i),), field_type=LongType()) for i in (2, 1)]
    with pytest.raises(InvalidInputError):
        KeySchema(tuple(fields))
